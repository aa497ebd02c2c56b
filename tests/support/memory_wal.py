"""A write-ahead log in memory, for tests of the layers above: the same contract without a device.

It implements the parts of the contract that callers may get wrong: completions happen on a later turn of the loop and
in order, one `Durable` is shared by the records of a turn, capacity counts headers and is freed by `trim` only. `crash`
returns the log that a restart would find: exactly the records that were reported durable and not trimmed.
"""

from asyncio import get_running_loop
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from anabranch.wal.interface import AppendedRecord, Buffer, Durable, OverCapacity, RecoveredRecord, WalError, WalFailed

_HEADER_BYTES = 24


@dataclass(slots=True)
class _Record:
    offset: int
    body: bytes
    durable: bool


class MemoryWal:
    """A `WriteAheadLog` of `capacity_bytes`; with `auto_complete` off, records wait for `complete`."""

    wal_id = "00000000000000a1"

    def __init__(self, capacity_bytes: int = 64 << 20, *, auto_complete: bool = True) -> None:
        self.auto_complete = auto_complete
        self.is_long = False
        self.trims: list[int] = []
        """Offsets that `trim` was called with, for assertions."""
        self._capacity_bytes = capacity_bytes
        self.records: list[_Record] = []
        self._trimmed_end = 0
        self._next_offset = 0
        self.pending: list[tuple[Durable, list[_Record]]] = []
        self._open: tuple[Durable, list[_Record]] | None = None
        self._recovered = False
        self._closed = False
        self._error: WalError | None = None

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the ring available to records, headers included."""
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes between the trim offset and the next offset."""
        return self._next_offset - self._trimmed_end

    @property
    def error(self) -> WalError | None:
        """Error that appends raise, or None."""
        return self._error

    async def recover(self) -> AsyncIterator[RecoveredRecord]:
        """Yield the records past the trim offset, in order."""
        assert not self._recovered, "recover() runs once"
        self._recovered = True
        for record in list(self.records):
            yield RecoveredRecord(record.offset, memoryview(record.body))

    def append(self, parts: Sequence[Buffer]) -> AppendedRecord:
        """Append one record. It becomes durable on the next turn of the loop, or by `complete`."""
        if self._error is not None:
            raise self._error
        if self._closed:
            raise WalFailed("memory WAL: closed")
        body = b"".join(parts)
        size_bytes = _HEADER_BYTES + len(body)
        if self.used_bytes + size_bytes > self._capacity_bytes:
            raise OverCapacity(
                f"memory WAL: record of {size_bytes} bytes, {self._capacity_bytes - self.used_bytes} bytes free"
            )
        if self._open is None:
            self._open = (Durable(), [])
            self.pending.append(self._open)
            get_running_loop().call_soon(self._turn)
        durable, records = self._open
        record = _Record(self._next_offset, body, durable=False)
        records.append(record)
        self.records.append(record)
        self._next_offset += size_bytes
        return AppendedRecord(record.offset, self._next_offset, durable)

    def complete(self, count: int | None = None) -> None:
        """Make the first `count` pending groups of records durable (all, if None)."""
        self._open = None
        for _ in range(len(self.pending) if count is None else count):
            durable, records = self.pending.pop(0)
            for record in records:
                record.durable = True
            durable.complete()

    def fail(self, error: WalError | None = None) -> None:
        """Fail the log as a broken device would: nothing pending becomes durable, appends raise."""
        self._error = error or WalFailed("memory WAL: failed by the test")
        self._open = None
        pending, self.pending = self.pending, []
        for durable, _ in pending:
            durable.complete(self._error)

    def crash(self) -> "MemoryWal":
        """Fail this log and return the one that a restart would find."""
        after = MemoryWal(self._capacity_bytes, auto_complete=self.auto_complete)
        after.records = [record for record in self.records if record.durable]
        after._trimmed_end = self._trimmed_end
        after._next_offset = self._next_offset
        if self._error is None:
            self.fail(WalFailed("memory WAL: crashed"))
        return after

    async def trim(self, offset: int) -> None:
        """Free all records up to and including the one at `offset`."""
        self.trims.append(offset)
        if self._error is not None:
            raise self._error
        kept = 0
        for record in self.records:
            if record.offset > offset:
                break
            self._trimmed_end = record.offset + _HEADER_BYTES + len(record.body)
            kept += 1
        del self.records[:kept]

    async def reset(self) -> None:
        """Free all appended records."""
        self.records.clear()
        self._trimmed_end = self._next_offset

    async def close(self) -> None:
        """Make all pending records durable and refuse appends."""
        if self._error is None:
            self.complete()
        self._closed = True

    def _turn(self) -> None:
        self._open = None
        if self.auto_complete:
            self.complete()
