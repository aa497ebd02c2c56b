"""What groups ask of a partition of `__consumer_offsets`, and how they write to it.

`InternalLog` is met by a broker partition and by a list in memory in tests. `LogWriter` gathers what is written during
one turn of the event loop into one batch: consumers commit often and little, and a batch costs more than a record.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from protocol.errors import ErrorCode
from s3stream.errors import StorageError
from wal.interface import Durable, WalError

OFFSETS_TOPIC = "__consumer_offsets"


class KeyValue(NamedTuple):
    """A record of an internal topic; a value of None deletes the key."""

    key: bytes
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        """Bytes of key and value, without the record's own framing."""
        return len(self.key) + len(self.value or b"")


class InternalLog(Protocol):
    """One partition of an internal topic, open for writing on this node."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record appended."""
        ...

    def append(self, records: Sequence[KeyValue]) -> Durable:
        """Append one batch. Raises StorageFull when it must be tried again later, StorageStopped when never."""
        ...

    def replay(self) -> AsyncIterator[Sequence[KeyValue]]:
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
"""Like Kafka's message.max.bytes: a single write beyond it is refused."""


class LogWriter:
    """Writes to one log, in order, one batch per turn of the loop; can rewrite the log to its live state."""

    def __init__(self, log: InternalLog) -> None:
        self.log = log
        self.written_bytes = 0
        """Since the last rewrite, or since the log was opened, its replay included."""
        self.live_bytes = 0
        """What the last rewrite left."""
        self._queue: list[tuple[Sequence[KeyValue], WriteDone | None]] = []
        self._queued_bytes = 0
        self._flush_scheduled = False
        self._held = False
        self._in_flight = 0
        self._drained: asyncio.Future[None] | None = None

    def write(self, records: Sequence[KeyValue], done: WriteDone | None = None) -> None:
        """Queue records for the end of this turn of the loop. They stay together, in the order of calls."""
        size_bytes = sum(record.size_bytes for record in records)
        if size_bytes > BATCH_BYTES_MAX:
            if done is not None:
                done(ErrorCode.MESSAGE_TOO_LARGE)
            return
        if self._queued_bytes + size_bytes > BATCH_BYTES_MAX and not self._held:
            self._flush()
        self._queue.append((records, done))
        self._queued_bytes += size_bytes
        self._schedule_flush()

    async def rewrite(self, live: Callable[[], Iterable[KeyValue]]) -> None:
        """Append the live state and trim everything before it; writes that come meanwhile wait for the append.

        `live` is called when nothing is under way, so that it sees exactly what the log says. Raises StorageError: the
        log is then as valid as before, only longer.
        """
        self._held = True
        try:
            while self._in_flight:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
            start_offset = self.log.next_offset
            durable = self._append_all(live())
        finally:
            self._held = False
            self._schedule_flush()
        if durable is not None:
            await durable
        await self.log.trim(start_offset)

    def _append_all(self, records: Iterable[KeyValue]) -> Durable | None:
        durable = None
        batch: list[KeyValue] = []
        batch_bytes = live_bytes = 0
        for record in records:
            if batch and batch_bytes + record.size_bytes > BATCH_BYTES_MAX:
                durable = self.log.append(batch)
                batch, batch_bytes = [], 0
            batch.append(record)
            batch_bytes += record.size_bytes
            live_bytes += record.size_bytes
        if batch:
            durable = self.log.append(batch)
        self.written_bytes, self.live_bytes = 0, live_bytes
        return durable

    def _schedule_flush(self) -> None:
        if self._queue and not self._held and not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_scheduled = False
        if not self._held:
            self._flush()

    def _flush(self) -> None:
        queue, self._queue, self._queued_bytes = self._queue, [], 0
        if not queue:
            return
        records = queue[0][0] if len(queue) == 1 else [record for part, _ in queue for record in part]
        waiting = [done for _, done in queue if done is not None]
        try:
            durable = self.log.append(records)
        except StorageError:
            for done in waiting:
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self.written_bytes += sum(record.size_bytes for record in records)
        self._in_flight += 1
        durable.add_done_callback(lambda error: self._appended(waiting, error))

    def _appended(self, waiting: Sequence[WriteDone], error: WalError | None) -> None:
        self._in_flight -= 1
        code = ErrorCode.NONE if error is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
        for done in waiting:
            done(code)
        if not self._in_flight and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
