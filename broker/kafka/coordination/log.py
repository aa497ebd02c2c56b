"""The log of a coordinator shard, a partition of an internal topic, and the writer that appends to it.

A broker partition implements `InternalLog`, and so does a list in memory in tests. `LogWriter` combines the writes of
one turn of the event loop in one batch: consumers commit small records often, and a batch costs more than a record.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.protocol.errors import ErrorCode
from anabranch.s3stream.errors import LogStalled, StorageError, StorageFull
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

        Raises StorageFull if a later attempt can succeed, StorageStopped if none can.
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
"""Like Kafka's message.max.bytes. Larger writes are spread over several batches; a larger record is refused."""
FULL_RETRY_S = 0.02
"""Pause between attempts while the storage is full."""


class _QueuedWrite(NamedTuple):
    records: Sequence[KeyValue]
    done: WriteDone | None
    refusable: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _AppendedBatch:
    records: Sequence[KeyValue] = ()
    completes: Sequence[_QueuedWrite] = ()
    """Writes whose last record is in this batch."""


class LogWriter:
    """Appends to one log in the order of calls, one batch per turn of the loop, and rewrites the log to its live state.

    While the storage is full, writes wait as produced records do: refusing them would make groups rebalance. The queue
    is bounded by the number of requests in progress. While the log has stalled, writes that change a group's state
    ahead of the log wait, too; those that a client can simply repeat are refused (`refusable`).

    Invariant: after `close` nothing is appended, and no write is reported as durable.
    """

    def __init__(self, log: InternalLog) -> None:
        self.log = log
        self.written_bytes = 0
        """Bytes written since the last rewrite, or since the log was opened, its replay included."""
        self.live_bytes = 0
        """Bytes that the last rewrite wrote."""
        self._queue: list[_QueuedWrite] = []
        self._flush_scheduled = False
        self._paused = False
        self._closed = False
        self._in_flight: dict[_AppendedBatch, None] = {}
        self._drained: asyncio.Future[None] | None = None

    def write(self, records: Sequence[KeyValue], done: WriteDone | None = None, *, refusable: bool = False) -> None:
        """Queue records for the end of this turn of the loop, in the order of calls.

        `refusable`: while the log has stalled, call `done` with COORDINATOR_NOT_AVAILABLE instead.
        """
        if self._closed:
            if done is not None:
                done(ErrorCode.NOT_COORDINATOR)
            return
        if any(record.size_bytes > BATCH_BYTES_MAX for record in records):
            if done is not None:
                done(ErrorCode.MESSAGE_TOO_LARGE)
            return
        self._queue.append(_QueuedWrite(records, done, refusable))
        self._schedule_flush()

    def write_transactional(self, records: Sequence[KeyValue], producer: Producer, done: WriteDone) -> bool:
        """Append records of a transaction at once, after all earlier writes. If it fails, call `done`, return False.

        They are not queued, because the caller has just seen that the transaction is open: a turn later its marker may
        have been written. For the same reason they do not wait while the storage is full: the client tries again.
        """
        if self._closed:
            done(ErrorCode.NOT_COORDINATOR)
            return False
        if _size_bytes(records) > BATCH_BYTES_MAX:
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
        self._track_append(durable, _AppendedBatch(records, [_QueuedWrite(records, done)]))
        return True

    def track_marker(self, durable: Durable) -> None:
        """Delay rewrites until a transaction's marker, appended to the log by another writer, is durable."""
        self._track_append(durable, _AppendedBatch())

    def close(self) -> None:
        """Write nothing more. Writes whose end is not known get NOT_COORDINATOR: the log's next owner may find them."""
        self._closed = True
        unfinished = [write for batch in self._in_flight for write in batch.completes] + self._queue
        self._in_flight.clear()
        self._queue.clear()
        self._wake_rewrite()
        for write in unfinished:
            if write.done is not None:
                write.done(ErrorCode.NOT_COORDINATOR)

    async def rewrite(
        self,
        live: Callable[[], Iterable[KeyValue]],
        open_transactions: Callable[[], Iterable[tuple[Producer, Sequence[KeyValue]]]] = tuple,
    ) -> None:
        """Append the live state and delete everything before it. Writes during the append wait for its end.

        `live` and `open_transactions` are called when no write is in flight, so that they return the state of the log.
        Raises StorageError; the log is then as valid as before, but longer.
        """
        self._paused = True
        try:
            while self._in_flight:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
            if self._closed:
                return
            start_offset = self.log.next_offset
            durable = None
            live_bytes = 0
            for batch in _batches([_QueuedWrite([record], None) for record in live()]):
                durable = self.log.append(batch.records)
                live_bytes += _size_bytes(batch.records)
            for producer, records in open_transactions():
                for batch in _batches([_QueuedWrite([record], None) for record in records]):
                    durable = self.log.append(batch.records, producer)
                    live_bytes += _size_bytes(batch.records)
            self.written_bytes, self.live_bytes = 0, live_bytes
        finally:
            self._paused = False
            self._schedule_flush()
        if durable is not None:
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
                left = [write for later in batches[index:] for write in later.completes]
                is_stalled = isinstance(error, LogStalled)
                self._queue[:0] = [write for write in left if not (is_stalled and write.refusable)]
                self._flush_scheduled = True
                asyncio.get_running_loop().call_later(FULL_RETRY_S, self._flush)
                if is_stalled:
                    _refuse(write for write in left if write.refusable)
                return
            except StorageError:
                _refuse(batch.completes)
                continue
            self._track_append(durable, batch)

    def _track_append(self, durable: Durable, batch: _AppendedBatch) -> None:
        self.written_bytes += _size_bytes(batch.records)
        self._in_flight[batch] = None
        durable.add_done_callback(partial(self._appended, batch))

    def _appended(self, batch: _AppendedBatch, error: WalError | None) -> None:
        if self._closed:
            return
        del self._in_flight[batch]
        code = ErrorCode.NONE if error is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
        for write in batch.completes:
            if write.done is not None:
                write.done(code)
        if not self._in_flight:
            self._wake_rewrite()

    def _wake_rewrite(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _refuse(writes: Iterable[_QueuedWrite]) -> None:
    for write in writes:
        if write.done is not None:
            write.done(ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _size_bytes(records: Iterable[KeyValue]) -> int:
    return sum(record.size_bytes for record in records)


def _batches(writes: Sequence[_QueuedWrite]) -> Iterator[_AppendedBatch]:
    """Combine records in batches of bounded size. A write that is tried again repeats records, which is harmless."""
    records: list[KeyValue] = []
    completes: list[_QueuedWrite] = []
    size_bytes = 0
    for write in writes:
        for record in write.records:
            if records and size_bytes + record.size_bytes > BATCH_BYTES_MAX:
                yield _AppendedBatch(records, completes)
                records, completes, size_bytes = [], [], 0
            records.append(record)
            size_bytes += record.size_bytes
        completes.append(write)
    if records:
        yield _AppendedBatch(records, completes)
