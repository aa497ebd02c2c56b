"""Losses of a log repair, by stream and offset, and the copy of the damaged bytes.

The log does not know streams, but its records do. Offsets of a stream are contiguous, so records missing between two
kept ones are identified for certain. Of the others, the remains of a damaged record may give stream and offsets.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import click

from anabranch.platform import sync
from anabranch.s3stream.append.wal_record import RecordKind, WalRecord, WalRecordError, decode_record
from anabranch.wal.interface import RecoveredRecord
from anabranch.wal.repair import DamagedRange, RepairPlan, read_damaged, read_kept
from anabranch.wal.requests import Device


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Offsets of a stream in damaged bytes, from `start` up to `end`."""

    damage: int
    """Index of the damaged range."""
    stream_id: int
    start: int
    end: int
    certain: bool
    """True if it follows from kept records; false if it is read from a damaged record."""


@dataclass(slots=True)
class LossFinder:
    """Finds the offsets missing between kept records, which are added in order."""

    damages: Sequence[DamagedRange]
    records: int = 0
    losses: list[LostOffsets] = field(default_factory=list)
    _ends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """End offset of each stream's last record, and the record's offset in the log, by stream id."""

    @property
    def streams(self) -> int:
        """Number of streams with kept records."""
        return len(self._ends)

    def add(self, records: Iterable[RecoveredRecord]) -> None:
        """Add the next kept records."""
        for record in records:
            self.records += 1
            decoded = _decoded(record)
            if decoded is not None:
                self._add(decoded)

    def _add(self, record: WalRecord) -> None:
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
        """Return all losses, those read from damaged records last."""
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


@dataclass(frozen=True, slots=True)
class RepairLosses:
    """Records that a repair keeps and loses."""

    records: int
    """Records that are kept."""
    streams: int
    """Streams with kept records."""
    offsets: Sequence[LostOffsets]


async def find_losses(device: Device, plan: RepairPlan) -> RepairLosses:
    """Read the records that a repair keeps, and return what it loses."""
    finder = LossFinder(plan.damages)
    async for records in read_kept(device, plan):
        finder.add(records)
    return RepairLosses(finder.records, finder.streams, finder.with_remains(plan.header.trim_offset))


def repair_data(plan: RepairPlan, losses: RepairLosses) -> dict[str, Any]:
    """Return the effect and losses of a repair for JSON and YAML."""
    return {
        "needed": plan.needed,
        "repaired": False,
        "saved_to": None,
        "damaged_headers": list(plan.damaged_copies),
        "damages": [
            {
                "start_offset": damage.start,
                "end_offset": damage.end,
                "position": plan.header.position_of(damage.start),
                "reason": damage.reason,
                "losses": [
                    {
                        "stream": loss.stream_id,
                        "first_offset": loss.start,
                        "end_offset": loss.end,
                        "certain": loss.certain,
                    }
                    for loss in losses.offsets
                    if loss.damage == number
                ],
            }
            for number, damage in enumerate(plan.damages)
        ],
        "given_up_bytes": plan.given_up_bytes,
        "kept_records": losses.records,
        "kept_streams": losses.streams,
    }


def repair_lines(plan: RepairPlan, losses: RepairLosses) -> list[str]:
    """Describe what a repair would do and lose, in lines."""
    lines = [f"header {copy}: will be rewritten" for copy in plan.damaged_copies]
    for number, damage in enumerate(plan.damages):
        lines.append(
            f"damage {number + 1}: {damage.end - damage.start} bytes of the log, from offset {damage.start} to "
            f"{damage.end} (position {plan.header.position_of(damage.start)}): {damage.reason}"
        )
        mine = [loss for loss in losses.offsets if loss.damage == number]
        lines += [_describe_loss(loss) for loss in mine]
        lines.append("  other records in these bytes" if mine else "  records in these bytes, if any,")
        lines[-1] += " cannot be identified: a stream that ended there ends earlier now"
    if plan.given_up_bytes:
        lines.append(
            f"{plan.given_up_bytes} bytes of valid records between damages are also lost: the header holds no more gaps"
        )
    lines.append(f"kept: {losses.records} records of {losses.streams} streams")
    return lines


def _describe_loss(loss: LostOffsets) -> str:
    certainty = "lost" if loss.certain else "lost, according to a damaged record"
    last = loss.end - 1
    offsets = f"offset {last} is" if loss.start == last else f"offsets {loss.start} to {last} are"
    return f"  stream {loss.stream_id}: {offsets} {certainty}"


def save_path(log: Path, now: str) -> Path:
    """Return the default path for damaged pages: next to a log file; for a device, in the working directory."""
    folder = log.parent if log.is_file() else Path.cwd()
    return folder / f"{log.name}.damaged-{now}"


async def save_damaged(device: Device, plan: RepairPlan, path: Path) -> None:
    """Copy the pages that the repair changes or skips to a new sparse file, at their positions in the log."""
    try:
        with await asyncio.to_thread(path.open, "xb") as file:
            async for position, pages in read_damaged(device, plan):
                await asyncio.to_thread(_write, file, position, pages)
            await asyncio.to_thread(sync, file.fileno())
    except OSError as error:
        reason = error.strerror or error
        raise click.ClickException(f"{path}: cannot save the damaged pages: {reason}; nothing was changed") from None


def _write(file: BinaryIO, position: int, data: memoryview) -> None:
    file.seek(position)
    file.write(data)
    file.flush()
