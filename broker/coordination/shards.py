"""The partitions of an internal topic that this node leads, each with a state machine over its log: a shard.

Groups and transactions are kept alike: a name belongs to the partition that it hashes to, and to the node that leads
it; a partition is replayed before its shard answers (COORDINATOR_LOAD_IN_PROGRESS until then), and its log is rewritten
to what is live when it has grown well beyond that. It keeps true that a log that cannot be read is never written over.
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
"""A log is rewritten to its live state only when it has grown by at least this much since the last time..."""
COMPACT_RATIO = 2
"""...and by this many times what the rewrite left."""
CHECK_S = 10.0
"""How often logs are looked over, and loading is tried again."""

_log = structlog.get_logger(__name__)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 31-based, over UTF-16 code units, in 32 bits with a sign."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(data), 2):
        value = (31 * value + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(name: str, partitions: int) -> int:
    """Return the partition that a group or a transactional id belongs to, as every Kafka client tool computes it."""
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


class Shard(Protocol):
    """What lives in one partition."""

    writer: LogWriter
    loaded: bool
    unreadable: bool
    """The log cannot be read."""
    damage: str
    """Of the log's objects, if it cannot be read because one of them is corrupt or missing."""

    async def load(self) -> None:
        """Replay the log. Raises StorageError, MalformedMessage, KafkaError."""
        ...

    async def rewrite(self) -> None:
        """Rewrite the log to what is live. Raises StorageError, and WalError when the node's log fails meanwhile."""
        ...

    def close(self) -> None:
        """Stop; whoever waits for an answer is told to look for another coordinator."""
        ...


S = TypeVar("S", bound=Shard)


class Shards(Generic[S]):
    """The shards of one internal topic. `kind` is what is said to be in them when one cannot be loaded."""

    def __init__(self, topic: InternalTopic, kind: str, make: Callable[[LogWriter], S]) -> None:
        self._topic = topic
        self._kind = kind
        self._make = make
        self._shards: list[S | None] | None = None
        self._opening = asyncio.Lock()
        self._unloaded = asyncio.Event()
        self._closed = False

    async def open(self, *, create: bool) -> None:
        """Take up the partitions there are, or those of a new topic. Raises KafkaError or StorageError."""
        async with self._opening:
            if self._shards is not None or self._closed:
                return
            logs = await self._topic.open(create=create)
            if logs is None:
                return
            shards = [None if log is None else self._make(LogWriter(log)) for log in logs]
            for shard in shards:
                if shard is not None:
                    shard.loaded = shard.writer.log.next_offset == 0  # nothing was ever written: nothing to replay
            self._shards = shards
            self._unloaded.set()

    async def maintain(self) -> None:
        """Wait until there is something to load, or for a while; load it, and keep the logs short."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_S):
                await self._unloaded.wait()
        self._unloaded.clear()
        await self.load()
        await self.compact()

    async def load(self) -> None:
        """Load what is not loaded yet; what cannot be read now is left for the next time."""
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
        """Rewrite logs that hold little that is live."""
        for index, shard in self._led_with_index():
            writer = shard.writer
            if shard.loaded and writer.written_bytes >= max(COMPACT_BYTES_MIN, COMPACT_RATIO * writer.live_bytes):
                try:
                    await shard.rewrite()
                except (StorageError, WalError) as error:
                    _log.warning(f"log of {self._kind} not compacted", partition=index, error=str(error))

    def close(self) -> None:
        """Stop for good."""
        self._closed = True
        for shard in self.led_shards():
            shard.close()

    def topic_deleted(self) -> None:
        """The topic was deleted, with all that was in it; the next `open` may create it anew."""
        for shard in self.led_shards():
            shard.close()
        self._shards = None

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the topic is there, its shards loaded or not."""
        return self._shards is not None

    @property
    def count(self) -> int:
        """Partitions of the topic, which must be open."""
        assert self._shards is not None, "asked for when open"
        return len(self._shards)

    def led_shards(self) -> Iterator[S]:
        """All shards that this node leads, loaded or not."""
        return (shard for _, shard in self._led_with_index())

    def _led_with_index(self) -> Iterator[tuple[int, S]]:
        return ((index, shard) for index, shard in enumerate(self._shards or ()) if shard is not None)

    def leads_shard_of(self, name: str) -> bool:
        """Whether this node leads the partition that a name belongs to."""
        shards = self._shards
        return shards is not None and shards[partition_of(name, len(shards))] is not None

    def shard_of(self, name: str) -> S:
        """Return the loaded shard that a name belongs to. Raises KafkaError as `at`."""
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
        """Return the shard of a partition if this node leads it and has loaded it."""
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
