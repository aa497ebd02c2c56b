"""Shares of a table's rows for Spark: what a task does, and which of the files that were made can be committed."""

import asyncio
import random
import resource
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import OffsetBounds, TableFile, TableFileKind
from anabranch.s3stream.model import NodeIdentity
from anabranch.spark.storage import StorageLocation, opened_catalog, opened_stores
from anabranch.tables.process import ColumnProcess
from anabranch.tables.upkeep.columns import Columns
from anabranch.tables.upkeep.data_files import DataFileMaker, MadeFile, WantedRows
from anabranch.tables.upkeep.plan import PartitionFacts
from anabranch.tables.upkeep.source import BlockSource, RowsGone
from anabranch.tables.upkeep.transfers import TableFiles

ANY_SIZE: Final = 1 << 62


class SentFile(NamedTuple):
    """A data file in the store, prepared and not committed."""

    file: TableFile
    made: MadeFile

    @property
    def bounds(self) -> OffsetBounds:
        """Its offsets."""
        return self.made.bounds


class ShareTask(NamedTuple):
    """Rows for one task to make."""

    wanted: WantedRows
    table_id: bytes
    node: NodeIdentity
    prepare_ttl_ms: int


class MadeShare(NamedTuple):
    """Files that a task has made."""

    sent: Sequence[SentFile]
    bytes_read: int
    cpu_s: float
    gone: bool
    """True if the topic has lost records of the share: what is missing is to be planned again."""


# in tasks


def make_files(location: StorageLocation, task: ShareTask) -> MadeShare:
    """Make the rows of a share, and write them to the store: one file, or several if one would take too much memory.

    Each attempt prepares files of its own. Raises StorageError, ColumnsError, MissingExtra, OSError for Spark to retry.
    """

    async def run() -> MadeShare:
        begun_s = _cpu_s()
        sent: list[SentFile] = []
        size, gone = 0, False
        async with _task_tools(location) as (catalog, files, maker):
            at, end = task.wanted.bounds
            while at < end:
                wanted = replace(task.wanted, bounds=OffsetBounds(at, end))
                try:
                    made, copied = await maker.make(wanted, bytes_max=ANY_SIZE)
                except RowsGone:
                    gone = True
                    break
                now = now_ms()
                (file,) = await catalog.tables.prepare_files(
                    task.table_id,
                    [TableFileKind.DATA],
                    node=task.node,
                    writer_id=new_id().hex(),
                    now_ms=now,
                    deadline_ms=now + task.prepare_ttl_ms,
                )
                await files.send(made.path, file)
                made.path.unlink()
                sent.append(SentFile(file, made))
                at, size = made.bounds.end_offset, size + copied.size_bytes
        return MadeShare(sent, size, _cpu_s() - begun_s, gone)

    return asyncio.run(run())


@asynccontextmanager
async def _task_tools(
    location: StorageLocation,
) -> AsyncIterator[tuple[Catalog, TableFiles, DataFileMaker]]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="anabranch-table-")))
        catalog = await stack.enter_async_context(opened_catalog(location, read_only=False))
        stores = await stack.enter_async_context(opened_stores(location, read_only=False))
        columns = Columns(ColumnProcess)
        stack.push_async_callback(columns.close)
        source = BlockSource(catalog, stores, location.cluster)
        yield catalog, TableFiles(catalog.tables, stores, None), DataFileMaker(source, columns, folder)


def new_id() -> bytes:
    """Return 16 random bytes."""
    return random.Random().randbytes(16)  # noqa: S311 - tells writers apart, hides nothing


def _cpu_s() -> float:
    """Return the CPU time of this process, and of those that it has started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def now_ms() -> int:
    """Return the time."""
    return time.time_ns() // 1_000_000


# what is to be made, and what of it can be committed


class Standing(NamedTuple):
    """Files that are not committed, divided by what the table has now."""

    ready: Sequence[SentFile]
    """Those that follow the table's end, by partition and offset."""
    waiting: Sequence[SentFile]
    """Those that follow others, which are not made yet."""
    overtaken: Sequence[SentFile]
    """Those with offsets that the table has."""


def divide(files: Iterable[SentFile], partitions: Mapping[int, PartitionFacts], *, files_max: int) -> Standing:
    """Divide files by what the table has of their partitions. At most so many are ready."""
    ready: list[SentFile] = []
    waiting: list[SentFile] = []
    overtaken: list[SentFile] = []
    ends: dict[int, int] = {}
    for each in sorted(files, key=lambda each: (each.made.idx, each.bounds)):
        partition = partitions[each.made.idx]
        begin = partition.table.end_offset
        if each.bounds.start_offset < begin:
            overtaken.append(each)
            continue
        # What the topic has lost before its first file is not waited for.
        end = ends.get(each.made.idx, max(begin, min(each.bounds.start_offset, partition.stream.start_offset)))
        if each.bounds.start_offset == end and len(ready) < files_max:
            ready.append(each)
            ends[each.made.idx] = each.bounds.end_offset
        else:
            waiting.append(each)
    return Standing(ready, waiting, overtaken)


def first_gap(partition: PartitionFacts, end: int, taken: Iterable[OffsetBounds]) -> OffsetBounds | None:
    """Return the first offsets before `end` that the table lacks, and that nobody makes; None: there are none."""
    at = partition.missing.start_offset
    for low, high in sorted(taken):
        if at < low:
            return OffsetBounds(at, min(low, end)) if at < end else None
        at = max(at, high)
    return OffsetBounds(at, end) if at < end else None
