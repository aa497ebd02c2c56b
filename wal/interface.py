"""Interface of a write-ahead log to the storage engine, and the errors that a log raises.

The engine (`s3stream`) imports this module and nothing else of `wal`. The implementation is a Delta WAL on a raw device
or file (`wal.log`), or a log of objects (`wal.object.log`).

Two kinds of position are used throughout. A *logical offset* is a byte count since the log was formatted; it only
grows. A *position* is the place of that byte on the device. It is derived from the offset (`FORMAT.md`) and not used
outside `wal`.
"""

from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from anabranch.wal.stats import WalStats

Buffer: TypeAlias = bytes | bytearray | memoryview


class WalError(Exception):
    """Any error of the write-ahead log."""


class OverCapacity(WalError):
    """The ring has no room for the record until the log is trimmed. Nothing was appended; the caller may retry."""


class RecordTooLarge(WalError):
    """The record is larger than the log's maximum. Nothing was appended; trimming does not help."""


class WalFailed(WalError):
    """A write failed or timed out: the log acks nothing more. Names the device, the position and the cause."""


class WalFenced(WalFailed):
    """A higher node epoch was found on the device: another node owns it now."""


class WalCorrupt(WalError):
    """A valid record follows a damaged one. Names device, offset, expected and found."""


class WalDamaged(WalCorrupt):
    """Durable bytes inside the log are damaged. A repair can bridge them."""

    def __init__(self, device_name: str, offset: int, found: str, durable_end: int) -> None:
        super().__init__(
            f"{device_name}: damaged at offset {offset}: found {found}; records up to {durable_end} were durable; "
            "`anabranch wal repair` shows which records can be kept, and keeps them"
        )
        self.offset = offset
        """Logical offset at which a record should begin."""
        self.found = found
        """Description of the bytes found there instead."""
        self.durable_end = durable_end
        """Logical offset up to which, at least, records were durable."""


class WalRefused(WalError):
    """The device cannot be used as it is: too small, foreign content, another node's log. Names what was found."""


class WalInUse(WalRefused):
    """Another process has the device open."""


class Durable:
    """Completion of the block that a record was written in, shared by all records of the block.

    Unlike with a future, a cancelled waiter does not cancel it, and callbacks run synchronously, in the order they were
    added, on the event loop's thread: acks are sent in the order of appends. A callback must not raise.
    """

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: WalError | None = None
        self._callbacks: list[Callable[[WalError | None], None]] = []

    def add_done_callback(self, callback: Callable[[WalError | None], None]) -> None:
        """Call `callback(error)` when the block is durable (error None) or has failed; immediately if it already is."""
        if self.done:
            callback(self.error)
        else:
            self._callbacks.append(callback)

    def complete(self, error: WalError | None = None) -> None:
        """Mark the block durable, or failed with `error`. For the log only; once."""
        assert not self.done, "a block completes once"
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)

    def __await__(self) -> Generator[object, None, None]:
        """Wait until durable; raises the log's error."""
        if not self.done:
            waiter = get_running_loop().create_future()
            self.add_done_callback(lambda _: None if waiter.done() else waiter.set_result(None))
            yield from waiter
        if self.error is not None:
            raise self.error


class QueueFull(OverCapacity):
    """The device is behind. Nothing was appended: retry when `durable` completes, not after a trim.

    The queue for the device is full, or the record would reach a part of a new file that is not written yet.
    """

    def __init__(self, message: str, durable: Durable) -> None:
        super().__init__(message)
        self.durable = durable
        """Completion of the oldest queued block, or of the next part of the file: a good time to retry."""


class AppendedRecord(NamedTuple):
    """Offsets of an appended record, and the completion of its block."""

    offset: int
    """Logical offset of the record's header, in bytes."""
    end_offset: int
    """Logical offset just past the record's body: trimming to `offset` frees up to here."""
    durable: Durable


class RecoveredRecord(NamedTuple):
    """A record found on the device."""

    offset: int
    body: memoryview


class WriteAheadLog(Protocol):
    """An append-only ring of records that survive a crash once their `Durable` has completed without error.

    All methods are called on one event loop's thread.
    """

    @property
    def wal_id(self) -> str:
        """Unique id of the log, 16 hex digits. Available once `recover` has finished."""
        ...

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the ring available to records, headers and padding included."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes between the trim offset and the next offset."""
        ...

    @property
    def is_long(self) -> bool:
        """True if a recovery would take long whatever the bytes in use are: the log should be trimmed soon."""
        ...

    @property
    def error(self) -> WalError | None:
        """Error that appends raise, or None while the log accepts them."""
        ...

    def recover(self) -> AsyncIterator[RecoveredRecord]:
        """Open the log and yield the records past the trim offset, in order. Called once, before any append."""
        ...

    def append(self, parts: Sequence[Buffer]) -> AppendedRecord:
        """Append one record whose body is the concatenation of `parts`; the parts are copied before it returns.

        Raises OverCapacity if the ring is full (QueueFull if the device is behind), WalFailed after a failure,
        WalFenced if another node has claimed the log.
        Completions come in the order of appends: a record is never reported durable before an earlier one.
        """
        ...

    async def trim(self, offset: int) -> None:
        """Free all records up to and including the one at `offset`; durable in the header when this returns."""
        ...

    async def reset(self) -> None:
        """Free all appended records."""
        ...

    async def close(self) -> None:
        """Write what was appended, mark the shutdown graceful, release the device."""
        ...


class NodeWal(WriteAheadLog, Protocol):
    """A log as the node that owns it shows and stops it."""

    @property
    def description(self) -> str:
        """Place and guarantee of the log, for the log text at start."""
        ...

    @property
    def drained(self) -> bool:
        """True if the log was closed gracefully and is empty."""
        ...

    @property
    def stats(self) -> WalStats:
        """Counters since the log was opened."""
        ...

    def snapshot(self) -> WalStats:
        """Update the gauges of `stats` and return it."""
        ...

    def failed(self, error: WalError) -> None:
        """Stop permanently: everything appended and not acked fails, and every later call raises `error`.

        Only after `recover`, which would not end otherwise.
        """
        ...

    async def prove_ownership(self) -> None:
        """Return if no other node had fenced the log when this was called, or since.

        Raises WalFenced if one has: the log has failed then. Raises another WalError if that is not known.
        """
        ...
