"""What groups ask of a partition of `__consumer_offsets`, and how they write to it.

`InternalLog` is met by a broker partition and by a list in memory in tests. `LogWriter` gathers what is written during
one turn of the event loop into one batch: consumers commit often and little, and a batch costs more than a record.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from broker.partitions.producers import Producer
from protocol.errors import ErrorCode
from s3stream.errors import StorageError, StorageFull
from wal.interface import Durable, WalError


class KeyValue(NamedTuple):
    """A record of an internal topic; a value of None deletes the key."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """Bytes of key and value, without the record's own framing."""
        return len(self.key) + len(self.value or b"")


class ReplayedBatch(NamedTuple):
    """What a replay yields: records, or the marker that ends a producer's transaction."""

    records: Sequence[KeyValue]
    producer: Producer | None = None
    """Of a transaction: its records hold once a marker says so."""
    committed: bool | None = None
    """A marker's verdict; None for records."""


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

        Raises StorageFull when it must be tried again later, StorageStopped when never.
        """
        ...

    def replay(self) -> AsyncIterator[ReplayedBatch]:
        """Yield all durable records from the start of the log, in order, a batch at a time."""
        ...

    async def trim(self, offset: int) -> None:
        """Drop all records before `offset`."""
        ...


class InternalTopic(Protocol):
    """An internal topic whose partitions can be opened as logs."""

    async def open(self, *, create: bool) -> Sequence[InternalLog | None] | None:
        """Return its partitions, with None for those another node leads; None if there is no such topic.

        Raises KafkaError or StorageError if it cannot be created.
        """
        ...


WriteDone = Callable[[ErrorCode], None]
"""Called with NONE when the records are durable, else with the code a client is to see. Must not raise."""

BATCH_BYTES_MAX = 1024 * 1024
"""Like Kafka's message.max.bytes: what is larger is spread over batches, a single record beyond it is refused."""
FULL_RETRY_S = 0.02
"""How long to wait before trying again when the storage is full."""


class _QueuedWrite(NamedTuple):
    records: Sequence[KeyValue]
    done: WriteDone | None


class _AppendedBatch(NamedTuple):
    records: Sequence[KeyValue]
    completes: Sequence[_QueuedWrite]
    """Writes whose last record is in here."""


class LogWriter:
    """Writes to one log, in order, what comes in one turn of the loop together; can rewrite the log to its live state.

    While the storage is full, writes wait as produced records do: refusing them would make groups rebalance. The queue
    is bounded by the number of requests under way.
    """

    def __init__(self, log: InternalLog) -> None:
        self.log = log
        self.written_bytes = 0
        """Since the last rewrite, or since the log was opened, its replay included."""
        self.live_bytes = 0
        """What the last rewrite left."""
        self._queue: list[_QueuedWrite] = []
        self._flush_scheduled = False
        self._held = False
        self._closed = False
        self._in_flight = 0
        self._drained: asyncio.Future[None] | None = None

    def write(self, records: Sequence[KeyValue], done: WriteDone | None = None) -> None:
        """Queue records for the end of this turn of the loop, in the order of calls."""
        if any(record.size_bytes > BATCH_BYTES_MAX for record in records):
            if done is not None:
                done(ErrorCode.MESSAGE_TOO_LARGE)
            return
        self._queue.append(_QueuedWrite(records, done))
        self._schedule_flush()

    def write_transactional(self, records: Sequence[KeyValue], producer: Producer, done: WriteDone) -> bool:
        """Append records of a transaction at once, behind all that was written before; False, and `done`, if it fails.

        At once, because the caller has just seen that the transaction is open: a turn later its marker may be there.
        For the same reason they do not wait while the storage is full, but the client does.
        """
        if _size_bytes(records) > BATCH_BYTES_MAX:
            done(ErrorCode.MESSAGE_TOO_LARGE)
            return False
        if self._queue:
            self._flush()
        if self._queue or self._held:
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            return False
        try:
            durable = self.log.append(records, producer)
        except StorageError as error:
            full = isinstance(error, StorageFull)
            done(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if full else ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return False
        self._appending(durable, _AppendedBatch(records, [_QueuedWrite(records, done)]))
        return True

    def track_marker(self, durable: Durable) -> None:
        """A transaction's marker was appended to the log: until it is durable, and so known, there is no rewrite."""
        self._in_flight += 1
        durable.add_done_callback(lambda _: self._landed())

    def close(self) -> None:
        """The owner forgets the live state, which from now on says nothing of the log: no rewrite begins any more."""
        self._closed = True

    async def rewrite(
        self,
        live: Callable[[], Iterable[KeyValue]],
        open_transactions: Callable[[], Iterable[tuple[Producer, Sequence[KeyValue]]]] = tuple,
    ) -> None:
        """Append the live state and trim everything before it; writes that come meanwhile wait for the append.

        Both are called when nothing is under way, so that they see exactly what the log says. Raises StorageError: the
        log is then as valid as before, only longer.
        """
        self._held = True
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
            self._held = False
            self._schedule_flush()
        if durable is not None:
            await durable
        await self.log.trim(start_offset)

    def _schedule_flush(self) -> None:
        if self._queue and not self._held and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._held:
            return
        queue, self._queue = self._queue, []
        batches = list(_batches(queue))
        for index, batch in enumerate(batches):
            try:
                durable = self.log.append(batch.records)
            except StorageFull:
                self._queue = [write for later in batches[index:] for write in later.completes]
                self._flush_scheduled = True
                asyncio.get_running_loop().call_later(FULL_RETRY_S, self._flush)
                return
            except StorageError:
                for write in batch.completes:
                    if write.done is not None:
                        write.done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                continue
            self._appending(durable, batch)

    def _appending(self, durable: Durable, batch: _AppendedBatch) -> None:
        self.written_bytes += _size_bytes(batch.records)
        self._in_flight += 1
        durable.add_done_callback(partial(self._appended, batch))

    def _appended(self, batch: _AppendedBatch, error: WalError | None) -> None:
        code = ErrorCode.NONE if error is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
        for write in batch.completes:
            if write.done is not None:
                write.done(code)
        self._landed()

    def _landed(self) -> None:
        self._in_flight -= 1
        if not self._in_flight and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


def _size_bytes(records: Iterable[KeyValue]) -> int:
    return sum(record.size_bytes for record in records)


def _batches(writes: Sequence[_QueuedWrite]) -> Iterator[_AppendedBatch]:
    """Gather records into batches of bounded size. A write that is tried again as a whole repeats records: harmless."""
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
