"""The recovery scan: finds the surviving records in the bytes of a ring, and the offset where writing continues.

Pure: the caller reads, `Scan` decides. It returns the longest prefix of the appended records and raises `WalCorrupt`
where bytes known to be durable are damaged. Nothing whose CRC, offset and log id do not match is trusted (`FORMAT.md`,
"Recovery").
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from anabranch.wal.format import (
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RECORD_START_BYTES,
    Header,
    Magic,
    Shutdown,
    decode_durable_offset,
    decode_record_header,
    decode_skip,
    explain_record_header,
    page_up,
    record_salt,
    unpack_record,
)
from anabranch.wal.interface import RecoveredRecord, WalCorrupt, WalDamaged


class BlockSpan(NamedTuple):
    """Offsets of a block. The log's head moves from block to block as records are trimmed."""

    start: int
    last_offset: int
    """Offset of its last record."""
    end: int


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Result of the scan."""

    end_offset: int
    """End of the last record of the unbroken chain."""
    next_offset: int
    """Offset of the next write: past everything that was scanned, page-aligned."""
    reason: str
    """Description of the bytes at the end that are not a record, or that the shutdown was graceful."""
    blocks: tuple[BlockSpan, ...]
    """Blocks with records, in order. The last may be torn and then ends at `end_offset`."""
    records: int
    """Valid records, trimmed ones included."""
    record_bytes: int
    dropped_records: int
    """Valid records past the end: in flight when the node died, never acked."""
    dropped_bytes: int

    @property
    def needs_skip(self) -> bool:
        """True if a skip record must bridge the gap to `next_offset`."""
        return page_up(self.end_offset) < self.next_offset


class Scan:
    """State of a scan. `feed` it the ring from the head offset on, until `end` is set."""

    def __init__(self, header: Header, device_name: str) -> None:
        self.end: ScanEnd | None = None
        self.at = header.head_offset
        """Next offset to check. The next `feed` must contain the bytes from here on."""
        self._device_name: Final = device_name
        self._head_offset: Final = header.head_offset
        self._salt: Final = record_salt(header.log_id)
        self._trim_offset: Final = header.trim_offset
        self._window_bytes: Final = header.window_bytes
        self._graceful: Final = header.shutdown == Shutdown.GRACEFUL
        self.limit: Final = header.durable_offset if self._graceful else header.head_offset + header.ring_bytes
        """Offset that no record ends past."""
        self._ring_bytes: Final = header.ring_bytes
        self._gaps = deque(gap for gap in header.gaps if gap.start >= self.at)
        self._durable_offset = header.durable_offset
        self._blocks: list[BlockSpan] = []
        self._block_start = self.at
        self._last_offset = -1
        """Offset of the last record of the block being read, -1 before its first."""
        self._records = self._record_bytes = 0
        self._hole: int | None = None
        self._hole_reason = ""
        self._past_hole_end = 0
        """Largest end of a valid record past the hole."""
        self._dropped_records = self._dropped_bytes = 0

    def feed(self, data: memoryview, offset: int) -> list[RecoveredRecord]:
        """Check `data`, whose first byte is at `offset` (at or before `at`); return the records that it completes.

        The bodies are views of `data`. Raises WalCorrupt if durable bytes are damaged.
        """
        assert offset <= self.at, f"scan fed from {offset}, expected at most {self.at}"
        found: list[RecoveredRecord] = []
        if self._hole is None:
            self._follow(data, offset, found)
        if self._hole is not None and self.end is None:
            self._read_past_hole(data, offset)
        return found

    def _follow(self, data: memoryview, base: int, found: list[RecoveredRecord]) -> None:
        """Follow the chain of records until data runs out, the chain breaks or the limit is reached."""
        while self.at < self.limit:
            stop = self._stop()
            self._take_records(data, base, found, stop)
            if self.at == stop:
                self._pass_gap()
                continue
            index = self.at - base
            body = index + RECORD_HEADER_BYTES
            if body > len(data) and base + len(data) < self.limit:
                return
            header = decode_record_header(data, index, self.at, self._salt) if body <= len(data) else None
            if header is not None and base + body + header.body_bytes <= stop:
                end = body + header.body_bytes
                if end > len(data):
                    return
                content = data[body:end]
                if header.magic == Magic.PADDING and crc32c(content) == header.body_crc:
                    self.at = base + end
                    self._close_block(self.at)
                    self._durable_offset = max(self._durable_offset, decode_durable_offset(content))
                    continue
            if not self._break_off(data, base):
                return
        self._finish(self.at, self.at, "graceful stop" if self._graceful else "the ring is full")

    def _stop(self) -> int:
        """Return the offset where the chain of records is interrupted: the next gap in the header, or the limit."""
        while self._gaps and self._gaps[0].start < self.at:
            self._gaps.popleft()  # a skip record has bridged it
        return min(self._gaps[0].start, self.limit) if self._gaps else self.limit

    def _pass_gap(self) -> None:
        """Continue after the gap that begins at `at`, if one does."""
        if not self._gaps or self.at != self._gaps[0].start:
            return
        gap = self._gaps.popleft()
        self.at = min(gap.end, self.limit)
        page = self.at - self.at % PAGE_BYTES
        if page >= gap.start:  # else the block that the gap begins in continues after it, on the same page
            self._close_block(gap.start)
            # The head may move here, to a page boundary: the gap is then cut to begin there.
            self._block_start = page

    def _take_records(self, data: memoryview, base: int, found: list[RecoveredRecord], stop: int) -> None:
        """Take the valid records that are complete in `data`, from `at` to `stop`; stop before anything else.

        Recovery spends its time in this loop, so `decode_record_header` is inlined here. `Scan._follow` handles the
        rest.
        """
        size_bytes = len(data) - RECORD_HEADER_BYTES
        salt, trim_offset = self._salt, self._trim_offset
        room = min(stop - base, len(data))
        index = self.at - base
        last, records, record_bytes = -1, 0, 0
        while index <= size_bytes:
            magic, body_bytes, body_offset, body_crc, header_crc = unpack_record(data, index)
            body = index + RECORD_HEADER_BYTES
            if magic != RECORD_MAGIC or body_offset != base + body:
                break
            if crc32c(data[index : index + RECORD_START_BYTES], salt) != header_crc:
                break
            end = body + body_bytes
            if end > room:
                break
            content = data[body:end]
            if crc32c(content) != body_crc:
                break
            last = base + index
            records += 1
            record_bytes += body_bytes
            if last > trim_offset:
                found.append(RecoveredRecord(last, content))
            index = end
        if records:
            self._records += records
            self._record_bytes += record_bytes
            self._last_offset = last
            self.at = base + index

    def _close_block(self, end: int) -> None:
        """End the block being read at `end`, where the next one begins."""
        if self._last_offset >= 0:
            self._blocks.append(BlockSpan(self._block_start, self._last_offset, end))
            self._last_offset = -1
        self._block_start = end

    def _break_off(self, data: memoryview, base: int) -> bool:
        """Handle a missing record at `at`: True if a skip record continues the chain, False if not (yet)."""
        at = self.at
        page = page_up(at)
        index = page - base
        if page < self.limit:
            if index + PAGE_BYTES > len(data):
                return False
            skip = self._skip_at(data, index, page)
            if skip is not None and skip[0] == at:
                self._close_block(at)
                self.at = self._block_start = skip[1]
                return True
        self._hole = at
        self._hole_reason = self._explain(data, at - base, at)
        self._close_block(at)
        self.at = page
        return False

    def _skip_at(self, data: memoryview, index: int, offset: int) -> tuple[int, int] | None:
        header = decode_record_header(data, index, offset, self._salt)
        if header is None or header.magic != Magic.SKIP or header.body_bytes != PAGE_BYTES - RECORD_HEADER_BYTES:
            return None
        body = data[index + RECORD_HEADER_BYTES : index + PAGE_BYTES]
        if crc32c(body) != header.body_crc:
            return None
        from_offset, to_offset = decode_skip(body)
        if not offset < to_offset <= self.limit or to_offset % PAGE_BYTES:
            return None
        return from_offset, to_offset

    def _explain(self, data: memoryview, index: int, at: int) -> str:
        body = index + RECORD_HEADER_BYTES
        if body > len(data):
            return "no record: end of the ring"
        header = decode_record_header(data, index, at, self._salt)
        if header is None:
            return explain_record_header(data, index, at, self._salt)
        if at + RECORD_HEADER_BYTES + header.body_bytes > self.limit:
            return f"record of {header.body_bytes} bytes passes the end of the ring"
        found = crc32c(data[body : body + header.body_bytes])
        return f"record of {header.body_bytes} bytes with body CRC {found:#010x}, expected {header.body_crc:#010x}"

    def _read_past_hole(self, data: memoryview, base: int) -> None:
        """Read page by page to one window past the hole, only to find out what is there."""
        assert self._hole is not None
        size_bytes = len(data)
        stop = min(page_up(self._hole + self._window_bytes), self.limit)
        # Including the page at `stop`: a record there cannot have been in flight together with the hole.
        while self.at <= stop and self.at < self.limit:
            index = self.at - base
            if index + RECORD_HEADER_BYTES > size_bytes and base + size_bytes < self.limit:
                return
            after = self._record_past_hole(data, index)
            if after is None:
                return
            self.at = after
        next_offset = min(max(stop, page_up(self._past_hole_end)), self.limit)
        if self._durable_offset > self._hole or self._past_hole_end > self._hole + self._window_bytes:
            durable_end = max(self._durable_offset, self._past_hole_end)
            raise WalDamaged(self._device_name, self._hole, self._hole_reason, durable_end)
        self._finish(self._hole, next_offset, self._hole_reason)

    def _record_past_hole(self, data: memoryview, index: int) -> int | None:
        """Check for a record at `at`, past the hole; return the next offset to check, None if more data is needed."""
        at = self.at
        body = index + RECORD_HEADER_BYTES
        header = decode_record_header(data, index, at, self._salt) if body <= len(data) else None
        if header is None and body <= len(data):
            self._refuse_later_lap(data, index)
        if header is not None and at + RECORD_HEADER_BYTES + header.body_bytes <= self.limit:
            end = body + header.body_bytes
            if end > len(data):
                return None
            content = data[body:end]
            if crc32c(content) == header.body_crc:
                self._note_past_hole(header.magic, content, at + RECORD_HEADER_BYTES + header.body_bytes)
                return at + RECORD_HEADER_BYTES + header.body_bytes
        return at + PAGE_BYTES - at % PAGE_BYTES

    def _refuse_later_lap(self, data: memoryview, index: int) -> None:
        """Raise WalCorrupt if the ring holds a record of a later lap here: the header write before it was lost."""
        body_offset = unpack_record(data, index)[2]
        offset = body_offset - RECORD_HEADER_BYTES
        laps, elsewhere = divmod(offset - self.at, self._ring_bytes)
        if laps > 0 and not elsewhere and decode_record_header(data, index, offset, self._salt) is not None:
            raise WalCorrupt(
                f"{self._device_name}: the header is older than the log, a header write was lost: its head is at offset"
                f" {self._head_offset}, and in the place of offset {self.at} is a record of offset {offset}"
            )

    def _note_past_hole(self, magic: int, body: memoryview, end: int) -> None:
        self._past_hole_end = max(self._past_hole_end, end)
        if magic == RECORD_MAGIC:
            self._dropped_records += 1
            self._dropped_bytes += len(body)
        elif magic == Magic.PADDING:
            self._durable_offset = max(self._durable_offset, decode_durable_offset(body))
        elif magic == Magic.SKIP:
            self._durable_offset = max(self._durable_offset, decode_skip(body)[0])

    def _finish(self, end_offset: int, next_offset: int, reason: str) -> None:
        self._close_block(end_offset)
        self.end = ScanEnd(
            end_offset=end_offset,
            next_offset=next_offset,
            reason=reason,
            blocks=tuple(self._blocks),
            records=self._records,
            record_bytes=self._record_bytes,
            dropped_records=self._dropped_records,
            dropped_bytes=self._dropped_bytes,
        )
