"""Data files of the rows of a partition, made on this machine from blocks by the process that makes columns."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

import structlog

from anabranch.s3stream.catalog.table_values import OffsetBounds
from anabranch.tables.process import FALLBACKS_MAX, ColumnsError, SlowShare, Tried
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import Finding, Share, ShareReport
from anabranch.tables.transactions import SnapshotTransactions
from anabranch.tables.upkeep.columns import Columns
from anabranch.tables.upkeep.context import no_step
from anabranch.tables.upkeep.source import BlockSource, CopiedBlocks

log = structlog.get_logger(__name__)

SMALLER: Final = 4
"""Part of the blocks whose rows have taken too much memory that is tried next."""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows to make: those that READ_COMMITTED shows of some offsets of a partition."""

    topic: str
    idx: int
    stream_id: int
    bounds: OffsetBounds
    transactions: SnapshotTransactions
    """Transactions of the partition; of the aborted ones at least those that are within the bounds."""
    finding: Finding
    codec: str
    """Compression of the files."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A data file on this machine."""

    path: Path
    idx: int
    bounds: OffsetBounds
    report: ShareReport


class DataFileMaker:
    """Makes data files in a folder of this machine, which exists."""

    def __init__(
        self,
        source: BlockSource,
        columns: Columns,
        folder: Path,
        *,
        step: Callable[[str], Awaitable[None]] = no_step,
        fallbacks_max: int = FALLBACKS_MAX + 1,
    ) -> None:
        """`fallbacks_max` is that of `ColumnProcess.make`."""
        self._source = source
        self._columns = columns
        self._folder = folder
        self._step = step
        self._fallbacks_max = fallbacks_max
        self._tried: dict[int, Tried] = {}
        """Shares that take several turns, by stream."""

    async def make(self, wanted: WantedRows, *, bytes_max: int) -> tuple[MadeFile, CopiedBlocks]:
        """Make a data file of the first rows that are wanted, of about so many bytes of blocks; returns both.

        Rows that take too much memory are made in smaller files. Raises RowsGone, other StorageErrors, ColumnsError,
        MissingExtra, OSError.
        """
        while True:
            copied = await self._source.copy(
                wanted.stream_id, *wanted.bounds, self._folder / "blocks", bytes_max=bytes_max
            )
            await self._step("blocks copied")
            try:
                return await self._make_of(wanted, copied), copied
            except ColumnsError as error:
                if error.kind not in {"memory", "ended"} or len(copied.entries) == 1:
                    raise
                bytes_max = max(1, copied.size_bytes // SMALLER)
                log.warning("rows of a table are made in smaller files", table=wanted.topic, reason=str(error))

    async def _make_of(self, wanted: WantedRows, copied: CopiedBlocks) -> MadeFile:
        blocks, target = self._folder / "blocks", fresh_path(self._folder)
        bounds = OffsetBounds(copied.start_offset, copied.end_offset)
        share = Share(
            str(blocks),
            copied.entries,
            PartitionRange(wanted.topic, wanted.idx, *bounds, wanted.transactions.aborted_between(*bounds)),
            wanted.finding.schema,
            wanted.finding.value,
            wanted.finding.key,
            str(target),
            wanted.codec,
        )
        tried = self._tried.pop(wanted.stream_id, None)
        try:
            report = await self._columns.ask(
                lambda process: process.make(share, tried, fallbacks_max=self._fallbacks_max)
            )
        except SlowShare as error:
            self._tried[wanted.stream_id] = error.tried
            raise
        blocks.unlink()
        await self._step("rows made")
        return MadeFile(target, wanted.idx, bounds, report)


def fresh_path(folder: Path) -> Path:
    """Return the path of a data file that is not in the folder yet."""
    return next(path for at in count() if not (path := folder / f"{at}.parquet").exists())
