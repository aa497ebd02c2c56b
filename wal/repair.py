"""Repair of a log with damaged bytes: planned by reading only, applied by one new state of the header.

A repair keeps every record that is proven by its checksums, its offset and the log's id. Where the chain of records is
broken and later bytes were durable, a gap in the header leads to the next proven record (`FORMAT.md`, "Repair").
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from anabranch.wal.block import aligned_buffer
from anabranch.wal.format import (
    GAPS_MAX,
    HEADER_COPIES,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    Header,
    LogGap,
    Magic,
    RecordHeader,
    Shutdown,
    decode_copies,
    decode_record_header,
    decode_skip,
    next_header,
    page_up,
    record_salt,
)
from anabranch.wal.interface import RecoveredRecord, WalDamaged, WalRefused
from anabranch.wal.owner import read_copies, read_header, write_header
from anabranch.wal.reader import read_ring
from anabranch.wal.recovery import Scan
from anabranch.wal.requests import Device, IoKind, perform

_CHUNK_BYTES: Final = 4 << 20
_MAGICS: Final = tuple(int(magic).to_bytes(4, "little") for magic in Magic)


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Range of the log without a proven record, between two proven ones."""

    start: int
    end: int
    reason: str
    remains: tuple[RecoveredRecord, ...] = ()
    """Records with a valid header and a damaged body: the content of the bodies is unreliable."""


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Result of `plan_repair`: the damage, and the header that a repair writes."""

    header: Header
    """The header as found."""
    damaged_copies: tuple[str, ...]
    """Errors in copies of the header. A repair writes both."""
    damages: tuple[DamagedRange, ...]
    given_up_bytes: int
    """Bytes of proven records that are lost because ranges are joined: a header has a limited number of gaps."""
    repaired: Header
    """The header that a repair writes, except for sequence and time."""

    @property
    def needed(self) -> bool:
        """True if there is anything to repair."""
        return bool(self.damages or self.damaged_copies)


async def plan_repair(device: Device) -> RepairPlan:
    """Find the damaged ranges and the records that can be kept. Does not write.

    Raises WalRefused, WalCorrupt (both copies of the header are lost, or only an old one is left) or WalFailed.
    """
    header = await read_header(device)
    if header is None:
        raise WalRefused(f"{device.name}: blank, no WAL was formatted here")
    copies = decode_copies(await read_copies(device))
    damaged_copies = tuple(f"copy {number}: {copy}" for number, copy in enumerate(copies) if isinstance(copy, str))
    ring = _RingReader(device, header)
    damages: list[DamagedRange] = []
    gaps = header.gaps
    while (found := await _first_damage(device, replace(header, gaps=gaps))) is not None:
        # A gap of the header contains no record: the search ends where the next gap begins.
        behind = next((gap for gap in gaps if gap.start > found.offset), None)
        end = await ring.next_record(found.offset + 1, behind.start if behind else ring.limit)
        if end is None:
            end = behind.start if behind else min(page_up(found.durable_end), ring.limit)
        damages.append(DamagedRange(found.offset, end, found.found, await ring.remains(found.offset, end)))
        gaps = tuple(sorted((*gaps, LogGap(found.offset, end))))
    joined, given_up_bytes = join_gaps(gaps, GAPS_MAX)
    return RepairPlan(header, damaged_copies, tuple(damages), given_up_bytes, replace(header, gaps=joined))


def join_gaps(gaps: tuple[LogGap, ...], most: int) -> tuple[tuple[LogGap, ...], int]:
    """Join neighbouring gaps, those with the fewest bytes between them first, until at most `most` are left.

    Adjacent gaps are joined in any case. Return the gaps, and the number of bytes between them that are lost.
    """
    left = list(gaps)
    given_up_bytes = 0
    while len(left) > 1:
        number = min(range(len(left) - 1), key=lambda number: left[number + 1].start - left[number].end)
        between = left[number + 1].start - left[number].end
        if between > 0 and len(left) <= most:
            break
        given_up_bytes += between
        left[number : number + 2] = [LogGap(left[number].start, left[number + 1].end)]
    return tuple(left), given_up_bytes


async def read_kept(device: Device, plan: RepairPlan) -> AsyncIterator[list[RecoveredRecord]]:
    """Yield the records that a recovery will return after the repair."""
    async for records in read_ring(device, plan.repaired, Scan(plan.repaired, device.name)):
        yield records


async def repair(device: Device, plan: RepairPlan, *, now_ms: Callable[[], int]) -> None:
    """Apply a plan: write both copies of the header. A crash leaves the old state or the new one."""
    header = plan.repaired
    for _ in range(HEADER_COPIES):
        header = replace(next_header(header), last_write_ms=now_ms())
        await write_header(device, header)
        await perform(device, IoKind.FLUSH)


async def read_damaged(device: Device, plan: RepairPlan) -> AsyncIterator[tuple[int, memoryview]]:
    """Yield position and content of the pages that a repair overwrites or excludes from the log. Raises WalFailed."""
    yield 0, await read_copies(device)
    for damage in plan.damages:
        first = damage.start - damage.start % PAGE_BYTES
        for position, length in plan.header.segments(first, page_up(damage.end) - first):
            for at in range(position, position + length, _CHUNK_BYTES):
                page = aligned_buffer(min(_CHUNK_BYTES, position + length - at))
                await perform(device, IoKind.READ, [(at, page)])
                yield at, page


async def _first_damage(device: Device, header: Header) -> WalDamaged | None:
    """Scan the log; return the first damage to durable bytes, None if there is none."""
    try:
        async for _ in read_ring(device, header, Scan(header, device.name)):
            pass
    except WalDamaged as damaged:
        return damaged
    return None


class _RingReader:
    """Random access to the ring, and a search for proven records at any byte."""

    def __init__(self, device: Device, header: Header) -> None:
        self.limit: Final = (
            header.durable_offset if header.shutdown is Shutdown.GRACEFUL else header.head_offset + header.ring_bytes
        )
        """Offset that no record ends past."""
        self._device: Final = device
        self._header: Final = header
        self._salt: Final = record_salt(header.log_id)

    async def read(self, start: int, end: int) -> memoryview:
        """Return the bytes of the offsets from `start` to `end`. Raises WalFailed."""
        first = start - start % PAGE_BYTES
        buffer = aligned_buffer(page_up(end) - first)
        segments = []
        at = 0
        for position, length in self._header.segments(first, len(buffer)):
            segments.append((position, buffer[at : at + length]))
            at += length
        await perform(self._device, IoKind.READ, segments)
        return buffer[start - first : end - first]

    async def next_record(self, start: int, end: int) -> int | None:
        """Return the first offset from `start` of a proven record that ends by `end`; None if there is none.

        A skip record is not part of the chain: its target is returned instead.
        """
        for chunk_start in range(start, end - RECORD_HEADER_BYTES + 1, _CHUNK_BYTES):
            chunk_end = min(chunk_start + _CHUNK_BYTES + RECORD_HEADER_BYTES - 1, end)
            chunk = await self.read(chunk_start, chunk_end)
            for index in _candidates(bytes(chunk)):
                offset = chunk_start + index
                header = decode_record_header(chunk, index, offset, self._salt)
                if header is None or offset + RECORD_HEADER_BYTES + header.body_bytes > end:
                    continue
                body = await self._body(offset, header)
                if crc32c(body) != header.body_crc:
                    continue
                return min(decode_skip(body)[1], self.limit) if header.magic == Magic.SKIP else offset
        return None

    async def remains(self, start: int, end: int) -> tuple[RecoveredRecord, ...]:
        """Return the chain of records from `start` to `end` whose headers are valid, up to the first that is not."""
        found = []
        while start + RECORD_HEADER_BYTES <= end:
            header = decode_record_header(await self.read(start, start + RECORD_HEADER_BYTES), 0, start, self._salt)
            if header is None or start + RECORD_HEADER_BYTES + header.body_bytes > end:
                break
            if header.magic == Magic.RECORD:
                found.append(RecoveredRecord(start, await self._body(start, header)))
            start += RECORD_HEADER_BYTES + header.body_bytes
        return tuple(found)

    async def _body(self, offset: int, header: RecordHeader) -> memoryview:
        start = offset + RECORD_HEADER_BYTES
        return await self.read(start, start + header.body_bytes)


def _candidates(chunk: bytes) -> list[int]:
    """Return the indexes of record magics that are followed by enough bytes for a record header, in order."""
    found = []
    for magic in _MAGICS:
        at = chunk.find(magic)
        while 0 <= at <= len(chunk) - RECORD_HEADER_BYTES:
            found.append(at)
            at = chunk.find(magic, at + 1)
    return sorted(found)
