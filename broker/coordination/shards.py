"""Coordinator shards: the partitions of an internal topic that this node leads, each with state machines over its log.

Groups and transactions work alike. A group id or transactional id belongs to the partition that it hashes to, and to
the node that leads the partition. A partition is replayed before its shard serves requests, which get
COORDINATOR_LOAD_IN_PROGRESS until then. Its log is rewritten to the live records when it has grown well beyond them.

Invariant: a log that cannot be read is never overwritten.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import structlog

from broker.coordination.log import InternalTopic, LogWriter
from protocol.errors import ErrorCode, KafkaError, MalformedMessage
from s3stream.errors import ObjectDamage, StorageError
from wal.interface import WalError

LOADS_AT_ONCE_MAX = 8
COMPACT_BYTES_MIN = 4 * 1024 * 1024
"""Least growth of a log since its last rewrite before it is rewritten again."""
COMPACT_RATIO = 2
"""Least growth as a multiple of the bytes that the last rewrite wrote. Both must be reached."""
CHECK_S = 10.0
"""Interval at which logs are checked for a rewrite, and failed loads are repeated."""

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
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


class Shard(Protocol):
    """The coordinator of the ids of one partition."""

    writer: LogWriter
    loaded: bool
    unreadable: bool
    """True if the log cannot be decoded."""
    damage: str
    """Description of the corrupt or missing object because of which the log cannot be read; empty if there is none."""

    async def load(self) -> None:
        """Replay the log. Raises StorageError, MalformedMessage, KafkaError."""
        ...

    async def rewrite(self) -> None:
        """Rewrite the log to its live records. Raises StorageError, and WalError if the node's log fails meanwhile."""
        ...

    def close(self) -> None:
        """Stop. Requests that wait are answered with an error that makes clients look for another coordinator."""
        ...


S = TypeVar("S", bound=Shard)


class Shards(Generic[S]):
    """The shards of one internal topic. `kind` names their contents, "groups" or "transactions", in log lines."""

    def __init__(self, topic: InternalTopic, kind: str, make: Callable[[LogWriter], S]) -> None:
        self._topic = topic
        self._kind = kind
        self._make = make
        self._shards: list[S | None] | None = None
        self._opening = asyncio.Lock()
        self._unloaded = asyncio.Event()
        self._closed = False

    async def open(self, *, create: bool) -> None:
        """Open the topic's partitions, after creating the topic if asked to. Raises KafkaError or StorageError."""
        async with self._opening:
            if self._shards is not None or self._closed:
                return
            logs = await self._topic.open(create=create)
            if logs is None:
                return
            shards = [None if log is None else self._make(LogWriter(log)) for log in logs]
            for shard in shards:
                if shard is not None:
                    shard.loaded = shard.writer.log.next_offset == 0  # an empty log needs no replay
            self._shards = shards
            self._unloaded.set()

    async def maintain(self) -> None:
        """Wait for shards to load, at most CHECK_S; then load them, and rewrite logs that have grown."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await self._unloaded.wait()
        self._unloaded.clear()
        await self.load()
        await self.compact()

    async def load(self) -> None:
        """Load all shards that are not loaded. One that cannot be read now is tried again by the next call."""
        if self._closed:
            return
        at_once = asyncio.Semaphore(LOADS_AT_ONCE_MAX)

        async def load(index: int, shard: S) -> None:
            async with at_once:
                try:
                    await shard.load()
                    shard.damage = ""
                except ObjectDamage as error:
                    if not shard.damage:
                        _log.error(f"{self._kind} not loaded: an object is damaged", partition=index, error=str(error))
                    shard.damage = str(error)
                except StorageError as error:
                    _log.error(f"{self._kind} not loaded, trying again", partition=index, error=str(error))
                except (MalformedMessage, KafkaError) as error:
                    shard.unreadable = True
                    _log.error(f"{self._kind} not loaded: the log is damaged", partition=index, error=str(error))

        async with asyncio.TaskGroup() as group:
            for index, shard in self._led_with_index():
                if not shard.loaded and not shard.unreadable:
                    group.create_task(load(index, shard))

    async def compact(self) -> None:
        """Rewrite logs that have grown well beyond their live records."""
        for index, shard in self._led_with_index():
            writer = shard.writer
            if shard.loaded and writer.written_bytes >= max(COMPACT_BYTES_MIN, COMPACT_RATIO * writer.live_bytes):
                try:
                    await shard.rewrite()
                except (StorageError, WalError) as error:
                    _log.warning(f"log of {self._kind} not compacted", partition=index, error=str(error))

    def close(self) -> None:
        """Stop all shards and open none any more."""
        self._closed = True
        for shard in self.led_shards():
            shard.close()

    def topic_deleted(self) -> None:
        """Drop all shards, because the topic was deleted. The next `open` may recreate it."""
        for shard in self.led_shards():
            shard.close()
        self._shards = None

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if the topic exists and is open. Its shards may not be loaded yet."""
        return self._shards is not None

    @property
    def count(self) -> int:
        """Number of partitions of the topic, which must be open."""
        assert self._shards is not None, "the topic is open"
        return len(self._shards)

    def led_shards(self) -> Iterator[S]:
        """Return all shards of partitions that this node leads, loaded or not."""
        return (shard for _, shard in self._led_with_index())

    def _led_with_index(self) -> Iterator[tuple[int, S]]:
        return ((index, shard) for index, shard in enumerate(self._shards or ()) if shard is not None)

    def leads_shard_of(self, name: str) -> bool:
        """Return whether this node leads the partition that an id belongs to."""
        shards = self._shards
        return shards is not None and shards[partition_of(name, len(shards))] is not None

    def shard_of(self, name: str) -> S:
        """Return the loaded shard that an id belongs to. Raises KafkaError like `shard_at`."""
        return self.shard_at(partition_of(name, len(self._shards or (None,))))

    def shard_at(self, partition: int) -> S:
        """Return the loaded shard of a partition.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self._closed or self._shards is None or not 0 <= partition < len(self._shards):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._shards[partition]
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        check_loaded(shard)
        return shard

    def loaded_shard_at(self, partition: int) -> S | None:
        """Return the shard of a partition, None unless this node leads it and has loaded it."""
        shard = None if self._shards is None else self._shards[partition]
        return shard if shard is not None and shard.loaded else None


def check_loaded(shard: Shard) -> None:
    """Raise KafkaError unless the shard has been loaded."""
    if shard.unreadable:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if shard.damage:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"not loaded: {shard.damage}")
    if not shard.loaded:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
