"""Coordinator shards: the partitions of an internal topic that this node leads, each with state machines over its log.

Groups and transactions work alike. A group id or transactional id belongs to the partition that it hashes to, and to
the node that leads the partition. A partition is replayed before its shard serves requests, which get
COORDINATOR_LOAD_IN_PROGRESS until then. Its log is rewritten to the live records when it has grown well beyond them.

Partitions come and go while the node runs. A shard lives as long as the node leads its partition without a break. When
that ends, requests that wait get NOT_COORDINATOR, and the shard is dropped. The state is in the log: the next shard of
the partition, here or elsewhere, continues from there.

The number of partitions must not change, as in Kafka. If it does, ids belong to other partitions from then on, and
start with empty state there. Their remains in the former shards end by timeouts.

Invariants:

- A log that cannot be read is never overwritten.
- A shard that was dropped writes nothing, and reports nothing as durable.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import structlog

from anabranch.broker.kafka.coordination.log import InternalLog, InternalTopic, LogWriter
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from anabranch.s3stream.errors import ObjectDamage, StorageError
from anabranch.wal.interface import WalError

LOADS_AT_ONCE_MAX = 8
COMPACT_BYTES_MIN = 4 * 1024 * 1024
"""Least growth of a log since its last rewrite before it is rewritten again."""
COMPACT_RATIO = 2
"""Least growth as a multiple of the bytes that the last rewrite wrote. Both must be reached."""
CHECK_S = 10.0
"""Interval at which logs are checked for a rewrite, and failed loads are repeated."""
HASHES_MAX = 4096
REMEMBERED_CHARACTERS_MAX = 256
"""Hashes of longer ids are not remembered, so that the memory is bounded."""

_log = structlog.get_logger(__name__)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 31-based, over UTF-16 code units, in 32 bits with a sign."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(data), 2):
        value = (31 * value + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(name: str, partitions: int) -> int:
    """Return the partition that a group id or transactional id belongs to, as Kafka's tools compute it."""
    value = _remembered_hash(name) if len(name) <= REMEMBERED_CHARACTERS_MAX else java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


_remembered_hash = lru_cache(HASHES_MAX)(java_hash)
"""Hashes of the ids that were used last: each heartbeat and commit needs one."""


class Shard(Protocol):
    """The coordinator of the ids of one partition."""

    writer: LogWriter
    loaded: bool
    unreadable: bool
    """True if the log cannot be decoded."""
    damage: str
    """Description of the corrupt or missing object that makes the log unreadable; empty if there is none."""

    async def load(self) -> None:
        """Replay the log. Raises StorageError, WalError, MalformedMessage, KafkaError. Cancelled, it loads nothing."""
        ...

    async def rewrite(self) -> None:
        """Rewrite the log to its live records. Raises StorageError, and WalError if the node's log fails meanwhile."""
        ...

    def close(self) -> None:
        """Write nothing more and drop the state. Requests that wait get NOT_COORDINATOR."""
        ...


S = TypeVar("S", bound=Shard)


class Shards(Generic[S]):
    """The shards of one internal topic. `kind` names their contents, "groups" or "transactions", in log lines."""

    def __init__(
        self, topic: InternalTopic, kind: str, make: Callable[[LogWriter], S], parking: Parking | None = None
    ) -> None:
        """`parking` is notified of shards that are being loaded."""
        self._topic = topic
        self._kind = kind
        self._make = make
        self._parking = parking or Parking()
        self._count: int | None = None
        self._led: dict[int, S] = {}
        self._loading: dict[S, asyncio.Task[None]] = {}
        self._loads = asyncio.Semaphore(LOADS_AT_ONCE_MAX)
        self._unloaded = asyncio.Event()
        self._closed = False

    # -- Partitions --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Follow the topic from now on: lead a shard for each partition that this node leads."""
        self._topic.subscribe(self.sync)
        self.sync()

    def sync(self) -> None:
        """Add and remove shards until there is one for each partition that this node leads."""
        if self._closed:
            return
        known = self._topic.logs()
        before, self._count = self._count, None if known is None else len(known)
        if before is not None and self._count not in {None, before}:
            _log.error(
                f"the number of partitions has changed: {self._kind} belong to other partitions, and begin anew there",
                before=before,
                now=self._count,
            )
        logs = {index: log for index, log in enumerate(known or ()) if log is not None}
        for index, shard in list(self._led.items()):
            if shard.writer.log is not logs.get(index):
                self.remove(index)
        for index, log in logs.items():
            if index not in self._led:
                self.add(index, log)

    def add(self, index: int, log: InternalLog) -> None:
        """Begin to lead a partition. `run` loads its shard."""
        assert index not in self._led, "a partition has one shard"
        shard = self._led[index] = self._make(LogWriter(log))
        shard.loaded = log.next_offset == 0  # an empty log needs no replay
        if not shard.loaded:
            self._parking.begin(shard)
        self._unloaded.set()

    def remove(self, index: int) -> None:
        """Cease to lead a partition: end its load, answer requests that wait, and drop its shard."""
        self._end(self._led.pop(index))

    def _end(self, shard: S) -> None:
        load = self._loading.get(shard)
        if load is not None:
            load.cancel()
        shard.close()
        self._parking.end(shard)

    def close(self) -> None:
        """Stop all shards, and add no more."""
        self._closed = True
        for shard in self.led_shards():
            self._end(shard)

    # -- Work --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load shards as they are added, repeat failed loads, and rewrite logs that have grown, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_compact())
            while True:
                self._unloaded.clear()
                for index, shard in self._led.items():
                    if not (shard.loaded or shard.unreadable or shard in self._loading or self._closed):
                        self._begin(tasks, shard, self._load(index, shard))
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._unloaded.wait()

    def _begin(self, tasks: asyncio.TaskGroup, shard: S, load: Coroutine[Any, Any, None]) -> None:
        task = self._loading[shard] = tasks.create_task(load)
        task.add_done_callback(lambda _: self._loading.pop(shard))

    async def _load(self, index: int, shard: S) -> None:
        """Load a shard. One that cannot be read now is tried again later."""
        async with self._loads:
            try:
                await shard.load()
                shard.damage = ""
            except ObjectDamage as error:
                if not shard.damage:
                    _log.error(f"{self._kind} not loaded: an object is damaged", partition=index, error=str(error))
                shard.damage = str(error)
            except (StorageError, WalError) as error:
                _log.error(f"{self._kind} not loaded, trying again", partition=index, error=str(error))
            except (MalformedMessage, KafkaError) as error:
                shard.unreadable = True
                _log.error(f"{self._kind} not loaded: the log is damaged", partition=index, error=str(error))
        if not is_loading(shard):
            self._parking.end(shard)

    async def _keep_compact(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            await self.compact()

    async def compact(self) -> None:
        """Rewrite logs that have grown well beyond their live records."""
        for index, shard in list(self._led.items()):
            writer = shard.writer
            if shard.loaded and writer.written_bytes >= max(COMPACT_BYTES_MIN, COMPACT_RATIO * writer.live_bytes):
                try:
                    await shard.rewrite()
                except (StorageError, WalError) as error:
                    if self._led.get(index) is shard:
                        _log.warning(f"log of {self._kind} not compacted", partition=index, error=str(error))

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if the topic is known. Shards that this node leads may not be loaded yet."""
        return self._count is not None

    @property
    def count(self) -> int:
        """Number of partitions of the topic, whichever nodes lead them. Raises COORDINATOR_NOT_AVAILABLE."""
        if self._count is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return self._count

    def led_shards(self) -> Sequence[S]:
        """Return the shards of the partitions that this node leads now, loaded or not."""
        return list(self._led.values())

    def leads_shard_of(self, name: str) -> bool:
        """Return whether this node leads the partition that an id belongs to."""
        return self._count is not None and partition_of(name, self._count) in self._led

    def is_loading(self, name: str) -> bool:
        """Return whether this node leads the partition that an id belongs to, and is about to have its shard loaded."""
        shard = None if self._count is None else self._led.get(partition_of(name, self._count))
        return shard is not None and not self._closed and is_loading(shard)

    def shard_of(self, name: str) -> S:
        """Return the loaded shard that an id belongs to. Raises KafkaError like `shard_at`."""
        return self.shard_at(partition_of(name, self.count))

    def shard_at(self, partition: int) -> S:
        """Return the loaded shard of a partition.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self._closed or not 0 <= partition < self.count:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._led.get(partition)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        check_loaded(shard)
        return shard


def is_loading(shard: Shard) -> bool:
    """Return whether the shard is not loaded, but may be soon."""
    return not (shard.loaded or shard.unreadable or shard.damage)


def check_loaded(shard: Shard) -> None:
    """Raise KafkaError unless the shard has been loaded."""
    if shard.unreadable:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if shard.damage:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"not loaded: {shard.damage}")
    if not shard.loaded:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
