"""What a repair of the log loses, by stream and offset, and a copy of the bytes that it leaves out.

The log knows no streams; its records do. A stream's records follow each other, so that those missing between two that
are kept can be named for certain. Of the others, what is left of a damaged record may still tell.
"""

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import click

from s3stream.append.wal_record import RecordKind, WalRecord, WalRecordError, decode_record
from wal.interface import RecoveredRecord
from wal.repair import DamagedRange, RepairPlan, read_damaged, read_kept
from wal.requests import Device


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets of a stream, from `start` up to `end`, that lay in damaged bytes."""

    damage: int
    """Number of the damage, from 0."""
    stream_id: int
    start: int
    end: int
    certain: bool
    """Follows from the records around it; else a damaged record says so."""


@dataclass(slots=True)
class LossFinder:
    """Takes the kept records in order, and names what is missing between them."""

    damages: Sequence[DamagedRange]
    records: int = 0
    losses: list[LostOffsets] = field(default_factory=list)
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Of each stream: end offset of its last record, and where that lies in the log."""

    @property
    def streams(self) -> int:
        """Streams with kept records."""
        return len(self._ends)

    def take(self, records: Iterable[RecoveredRecord]) -> None:
        """Go on with the next kept records."""
        for record in records:
            self.records += 1
            decoded = _decoded(record)
            if decoded is not None:
                self._take(decoded)

    def _take(self, record: WalRecord) -> None:
        batch = record.batch
        expected, since = self._ends.get(batch.stream_id, (batch.base_offset, record.wal_offset))
        if record.kind is RecordKind.BATCH and batch.base_offset > expected:
            between = (n for n, damage in enumerate(self.damages) if since <= damage.start < record.wal_offset)
            self.losses += [
                LostOffsets(number, batch.stream_id, expected, batch.base_offset, certain=True)
                for number in list(between)[:1]
            ]
        self._ends[batch.stream_id] = (batch.end_offset, record.wal_offset)

    def with_remains(self, trim_offset: int) -> list[LostOffsets]:
        """Return all losses: those that only damaged records tell of last."""
        guesses = []
        for number, damage in enumerate(self.damages):
            for remnant in damage.remains:
                decoded = _decoded(remnant) if remnant.offset > trim_offset else None
                if decoded is None or decoded.kind is not RecordKind.BATCH:
                    continue
                batch = decoded.batch
                if not any(
                    loss.stream_id == batch.stream_id and loss.start <= batch.base_offset < loss.end
                    for loss in self.losses
                ):
                    guesses.append(
                        LostOffsets(number, batch.stream_id, batch.base_offset, batch.end_offset, certain=False)
                    )
        return [*self.losses, *guesses]


def _decoded(record: RecoveredRecord) -> WalRecord | None:
    try:
        return decode_record(record.offset, record.body)
    except WalRecordError:
        return None


async def describe_repair(device: Device, plan: RepairPlan) -> list[str]:
    """Return what a repair would do and lose, in lines."""
    finder = LossFinder(plan.damages)
    async for records in read_kept(device, plan):
        finder.take(records)
    losses = finder.with_remains(plan.header.trim_offset)
    lines = [f"header {copy}: it is written anew" for copy in plan.damaged_copies]
    for number, damage in enumerate(plan.damages):
        lines.append(
            f"damage {number + 1}: {damage.end - damage.start} bytes of the log, from offset {damage.start} to "
            f"{damage.end} (position {plan.header.position_of(damage.start)}): {damage.reason}"
        )
        mine = [loss for loss in losses if loss.damage == number]
        lines += [_describe_loss(loss) for loss in mine]
        lines.append("  other records in these bytes" if mine else "  the records in these bytes, if any,")
        lines[-1] += " cannot be named: a stream that ended there ends earlier now"
    if plan.given_up_bytes:
        lines.append(
            f"{plan.given_up_bytes} bytes of sound records between damages are lost, too: the header holds no more gaps"
        )
    lines.append(f"kept: {finder.records} records of {finder.streams} streams")
    return lines


def _describe_loss(loss: LostOffsets) -> str:
    sure = "lost" if loss.certain else "lost, by what is left of a damaged record"
    last = loss.end - 1
    offsets = f"offset {last} is" if loss.start == last else f"offsets {loss.start} to {last} are"
    return f"  stream {loss.stream_id}: {offsets} {sure}"


def save_path(log: Path, now: str) -> Path:
    """Return where damaged pages go by default: beside a log in a file, into the working directory for a device."""
    folder = log.parent if log.is_file() else Path.cwd()
    return folder / f"{log.name}.damaged-{now}"


async def save_damaged(device: Device, plan: RepairPlan, path: Path) -> None:
    """Copy the pages that the repair changes or leaves out to a new sparse file, at the positions they have."""
    try:
        with await asyncio.to_thread(path.open, "xb") as file:
            async for position, pages in read_damaged(device, plan):
                await asyncio.to_thread(_write, file, position, pages)
            await asyncio.to_thread(os.fsync, file.fileno())
    except OSError as error:
        reason = error.strerror or error
        raise click.ClickException(f"{path}: cannot save the damaged pages: {reason}; nothing was changed") from None


def _write(file: BinaryIO, position: int, data: memoryview) -> None:
    file.seek(position)
    file.write(data)
    file.flush()
