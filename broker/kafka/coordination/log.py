"""The log of a coordinator shard, a partition of an internal topic, and the writer that appends to it.

A broker partition implements `InternalLog`, and so does a list in memory in tests. `LogWriter` combines the writes of
one turn of the event loop in one batch: consumers commit small records often, and a batch costs more than a record.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.protocol.errors import ErrorCode
from anabranch.s3stream.errors import AppendTooLarge, LogStalled, StorageError, StorageFull
from anabranch.wal.interface import Durable, WalError


class KeyValue(NamedTuple):
    """A record of an internal topic; a value of None deletes the key."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """Bytes of key and value, without the record's own framing."""
        return len(self.key) + len(self.value or b"")


class ReplayedBatch(NamedTuple):
    """One batch of a replay: records, or the marker that ends a producer's transaction."""

    records: Sequence[KeyValue]
    producer: Producer | None = None
    """Producer of a transaction, whose records apply once a commit marker follows; None outside of transactions."""
    committed: bool | None = None
    """True for a commit marker, False for an abort marker, None for records."""


class InternalLog(Protocol):
    """One partition of an internal topic, open for writing on this node."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record appended."""
        ...

    @property
    def leader_epoch(self) -> int:
        """Grows whenever the log is opened for writing."""
        ...

    def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        """Append one batch, as part of the producer's transaction if one is given.

        The log has all of the batch or nothing of it. Completions come in the order of appends, and after one has
        failed, no later one is durable. Nothing was appended if this raises: StorageFull if a later attempt can
        succeed, AppendTooLarge if none with this batch can, StorageStopped if no append can.
        """
        ...

    def replay(self) -> AsyncIterator[ReplayedBatch]:
        """Yield all records from the start of the log, in order, a batch at a time, once they are durable.

        Includes records that an earlier owner of the log appended without getting their acknowledgement. Raises
        StorageError, and WalError if the node's log fails meanwhile.
        """
        ...

    async def trim(self, offset: int) -> None:
        """Delete all records before `offset`."""
        ...


class InternalTopic(Protocol):
    """An internal topic, whose partitions that this node leads are open as logs."""

    def logs(self) -> Sequence[InternalLog | None] | None:
        """Return its partitions, with None for those that another node leads; None if the topic is unknown.

        A partition is the same object until this node ceases to lead it. Led again, it is another one.
        """
        ...

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change that `logs` may show. It must not raise."""
        ...


WriteDone = Callable[[ErrorCode], None]
"""Called with NONE when the records are durable, else with the error code for the client. Must not raise."""

BATCH_BYTES_MAX = 1024 * 1024
"""Like Kafka's message.max.bytes. A larger record is refused; a larger write is a batch of its own."""
WRITE_BYTES_MAX = 8 * 1024 * 1024
"""Largest write: the log takes it as a whole. In Kafka, too, a write is one batch, of message.max.bytes at most."""
FULL_RETRY_S = 0.02
"""Pause between attempts while the storage is full."""


def is_too_large(records: Iterable[KeyValue]) -> bool:
    """Return whether the log does not take these records as one write."""
    sizes = [record.size_bytes for record in records]
    return max(sizes, default=0) > BATCH_BYTES_MAX or sum(sizes) > WRITE_BYTES_MAX


class JointWrites:
    """Several writes with one answer: `done` is called when all have ended, with the first error."""

    def __init__(self, writes: int, done: WriteDone | None) -> None:
        """`writes` is their number; `done` is called at once if there are none."""
        self._left = writes
        self._error = ErrorCode.NONE
        self._done = done
        self._check()

    def ended(self, error: ErrorCode) -> None:
        """Note the end of one of them."""
        self._left -= 1
        self._error = self._error or error
        self._check()

    def _check(self) -> None:
        if not self._left and self._done is not None:
            self._done(self._error)


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    done: WriteDone | None = None
    refusable: bool = False


@dataclass(slots=True, eq=False)
class _Batch:
    """Writes that the log takes together, all or none."""

    records: list[KeyValue] = field(default_factory=list)
    writes: list[_Write] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, write: _Write, size_bytes: int) -> None:
        """Add a write of this size."""
        self.records += write.records
        self.writes.append(write)
        self.size_bytes += size_bytes


class LogWriter:
    """Appends to one log in the order of calls, one batch per turn of the loop, and rewrites the log to its live state.

    While the storage is full, writes wait as produced records do: refusing them would make groups rebalance. The queue
    is bounded by the number of requests in progress. While the log has stalled, writes that change a group's state
    ahead of the log wait, too; those that a client can simply repeat are refused (`refusable`).

    Invariants:

    - The log has all records of a write or none, also after a crash or for the log's next owner.
    - When a write fails, those queued behind it fail, too: their records may build on its own. Nothing builds on a
      refusable one, so those behind it go on.
    - After `close` nothing is appended, and no write is reported as durable.
    """

    def __init__(self, log: InternalLog) -> None:
        self.log = log
        self.written_bytes = 0
        """Bytes written since the last rewrite, or since the log was opened, its replay included."""
        self.live_bytes = 0
        """Bytes that the last rewrite wrote."""
        self._queue: list[_Write] = []
        self._flush_scheduled = False
        self._paused = False
        self._closed = False
        self._in_flight: dict[_Batch, None] = {}
        self._drained: asyncio.Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """True if all writes have ended."""
        return not self._queue and not self._in_flight

    def write(self, records: Sequence[KeyValue], done: WriteDone | None = None, *, refusable: bool = False) -> None:
        """Queue records for the end of this turn of the loop, in the order of calls.

        `refusable`: while the log has stalled, call `done` with COORDINATOR_NOT_AVAILABLE instead.
        """
        if self._closed:
            if done is not None:
                done(ErrorCode.NOT_COORDINATOR)
            return
        if not records or is_too_large(records):
            if done is not None:
                done(ErrorCode.MESSAGE_TOO_LARGE if records else ErrorCode.NONE)
            return
        self._queue.append(_Write(records, done, refusable))
        self._schedule_flush()

    def write_transactional(self, records: Sequence[KeyValue], producer: Producer, done: WriteDone) -> bool:
        """Append records of a transaction at once, after all earlier writes. If it fails, call `done`, return False.

        They are not queued, because the caller has just seen that the transaction is open: a turn later its marker may
        have been written. For the same reason they do not wait while the storage is full: the client tries again.
        """
        if self._closed:
            done(ErrorCode.NOT_COORDINATOR)
            return False
        size_bytes = _size_bytes(records)
        if size_bytes > BATCH_BYTES_MAX:
            done(ErrorCode.MESSAGE_TOO_LARGE)
            return False
        if self._queue:
            self._flush()
        if self._queue or self._paused:
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return False
        try:
            durable = self.log.append(records, producer)
        except StorageError as error:
            full = isinstance(error, StorageFull)
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if full else ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return False
        batch = _Batch()
        batch.add(_Write(records, done), size_bytes)
        self._track_append(durable, batch)
        return True

    def track_marker(self, durable: Durable) -> None:
        """Delay rewrites until a transaction's marker, appended to the log by another writer, is durable."""
        self._track_append(durable, _Batch())

    def close(self) -> None:
        """Write nothing more. Writes whose end is not known get NOT_COORDINATOR: the log's next owner may find them."""
        self._closed = True
        unfinished = [write for batch in self._in_flight for write in batch.writes] + self._queue
        self._in_flight.clear()
        self._queue.clear()
        self._wake_rewrite()
        _end(unfinished, ErrorCode.NOT_COORDINATOR)

    async def rewrite(
        self,
        live: Callable[[], Iterable[KeyValue]],
        open_transactions: Callable[[], Iterable[tuple[Producer, Sequence[KeyValue]]]] = tuple,
    ) -> None:
        """Append the live state and delete everything before it. Writes during the append wait for its end.

        `live` and `open_transactions` are called when no write is in flight, so that they return the state of the log.
        Raises StorageError, or WalError; the log is then as valid as before, but longer.
        """
        self._paused = True
        try:
            while self._in_flight:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
            if self._closed:
                return
            start_offset = self.log.next_offset
            appended: list[Durable] = []
            live_bytes = 0
            for producer, records in ((None, live()), *open_transactions()):
                for batch in _batches(_Write([record]) for record in records):
                    appended.append(self.log.append(batch.records, producer))
                    live_bytes += batch.size_bytes
            self.written_bytes, self.live_bytes = 0, live_bytes
        finally:
            self._paused = False
            self._schedule_flush()
        for durable in appended:
            await durable
        if not self._closed:
            await self.log.trim(start_offset)

    def _schedule_flush(self) -> None:
        if self._queue and not self._paused and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._paused:
            return
        queue, self._queue = self._queue, []
        batches = list(_batches(queue))
        for index, batch in enumerate(batches):
            try:
                durable = self.log.append(batch.records)
            except StorageFull as error:
                self._wait_for_room(batches[index:], is_stalled=isinstance(error, LogStalled))
                return
            except StorageError as error:
                too_large = isinstance(error, AppendTooLarge)
                behind = [write for later in batches[index + 1 :] for write in later.writes] + self._queue
                self._queue = []
                _end(batch.writes, ErrorCode.MESSAGE_TOO_LARGE if too_large else ErrorCode.COORDINATOR_NOT_AVAILABLE)
                _end(behind, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            self._track_append(durable, batch)

    def _wait_for_room(self, batches: Sequence[_Batch], *, is_stalled: bool) -> None:
        writes = [write for batch in batches for write in batch.writes]
        self._queue[:0] = [write for write in writes if not (is_stalled and write.refusable)]
        self._flush_scheduled = True
        asyncio.get_running_loop().call_later(FULL_RETRY_S, self._flush)
        if is_stalled:
            _end((write for write in writes if write.refusable), ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _track_append(self, durable: Durable, batch: _Batch) -> None:
        self.written_bytes += batch.size_bytes
        self._in_flight[batch] = None
        durable.add_done_callback(partial(self._appended, batch))

    def _appended(self, batch: _Batch, error: WalError | None) -> None:
        if self._closed:
            return
        del self._in_flight[batch]
        _end(batch.writes, ErrorCode.NONE if error is None else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not self._in_flight:
            self._wake_rewrite()

    def _wake_rewrite(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _end(writes: Iterable[_Write], error: ErrorCode) -> None:
    for write in writes:
        if write.done is not None:
            write.done(error)


def _size_bytes(records: Iterable[KeyValue]) -> int:
    return sum(record.size_bytes for record in records)


def _batches(writes: Iterable[_Write]) -> Iterator[_Batch]:
    """Combine writes in batches of bounded size, each write as a whole."""
    batch = _Batch()
    for write in writes:
        size_bytes = _size_bytes(write.records)
        if batch.writes and batch.size_bytes + size_bytes > BATCH_BYTES_MAX:
            yield batch
            batch = _Batch()
        batch.add(write, size_bytes)
    if batch.writes:
        yield batch
