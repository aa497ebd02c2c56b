"""A log of an internal topic in memory, whose writes become durable when the test releases them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from anabranch.broker.kafka.coordination.log import InternalLog, KeyValue, ReplayedBatch
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.s3stream.errors import StorageError
from anabranch.wal.interface import Durable, WalError


class MemoryLog:
    """Satisfies `broker.kafka.coordination.log.InternalLog`. With `hold` set, appends wait for `release`.

    With `delay_s`, appends become durable in order, each `delay_s()` seconds later on the loop's clock.
    """

    def __init__(
        self,
        batches: Sequence[Sequence[KeyValue] | ReplayedBatch] = (),
        *,
        delay_s: Callable[[], float] | None = None,
    ) -> None:
        self.batches: list[tuple[int, ReplayedBatch]] = []
        self.next_offset = 0
        self.leader_epoch = 0
        self.hold = False
        self.refusal: StorageError | None = None
        self.held: list[Durable] = []
        self.durable_batches = 0
        self._delay_s: Callable[[], float] | None = None
        for batch in batches:
            _ = self._append(batch if isinstance(batch, ReplayedBatch) else ReplayedBatch(list(batch)))
        self._delay_s = delay_s
        self.hold = delay_s is not None

    def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        """Append one batch."""
        assert records
        return self._append(ReplayedBatch(list(records), producer))

    def append_marker(self, producer: Producer, *, committed: bool) -> Durable:
        """Append the marker that ends a transaction."""
        return self._append(ReplayedBatch((), producer, committed))

    def _append(self, batch: ReplayedBatch) -> Durable:
        if self.refusal is not None:
            raise self.refusal
        self.batches.append((self.next_offset, batch))
        self.next_offset += len(batch.records) or 1
        durable = Durable()
        if self._delay_s is not None and not self.held:
            asyncio.get_running_loop().call_later(self._delay_s(), self.release)
        self.held.append(durable)
        if not self.hold:
            self.release()
        return durable

    def release(self, error: WalError | None = None) -> None:
        """Make everything appended so far durable, or fail it."""
        held, self.held = self.held, []
        if error is None:
            self.durable_batches = len(self.batches)
        for durable in held:
            durable.complete(error)

    async def replay(self) -> AsyncIterator[ReplayedBatch]:
        """Yield the durable records, once that is all that was appended."""
        if self.held:
            await self.held[-1]
        for batch in self.durable():
            yield batch

    async def trim(self, offset: int) -> None:
        """Drop all records before `offset`."""
        before = len(self.batches)
        self.batches = [(base, batch) for base, batch in self.batches if base >= offset]
        self.durable_batches -= before - len(self.batches)

    def records(self) -> list[KeyValue]:
        """Return all records, durable or not."""
        return [record for _, batch in self.batches for record in batch.records]

    def durable(self) -> list[ReplayedBatch]:
        """Return the durable batches."""
        return [batch for _, batch in self.batches[: self.durable_batches]]

    def crash(self) -> "MemoryLog":
        """Return the log as a new process would find it, in a new leader epoch."""
        if self._delay_s is not None:
            self.held.clear()  # writes that are not durable by now are lost
        survivor = MemoryLog(self.durable(), delay_s=self._delay_s)
        survivor.leader_epoch = self.leader_epoch + 1
        return survivor


class MemoryTopic:
    """Satisfies `broker.kafka.coordination.log.InternalTopic`."""

    def __init__(self, partitions: Sequence[InternalLog | None], *, exists: bool = True) -> None:
        self._partitions = list(partitions)
        self._exists = exists
        self._listeners: list[Callable[[], None]] = []

    def logs(self) -> Sequence[InternalLog | None] | None:
        """Return the logs, None where another node leads; None if the topic does not exist."""
        return self._partitions if self._exists else None

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change."""
        self._listeners.append(listener)

    def lead(self, index: int, log: InternalLog | None) -> None:
        """Begin to lead a partition, or cease to with None."""
        self._partitions[index] = log
        self._notify()

    def replace(self, partitions: Sequence[InternalLog | None] | None) -> None:
        """Replace the topic by one with these partitions, or delete it."""
        self._partitions, self._exists = list(partitions or ()), partitions is not None
        self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
