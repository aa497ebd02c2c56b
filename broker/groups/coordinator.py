"""The group coordinator: finds a group's shard, loads shards, and does what is to be done from time to time.

A group belongs to the partition of `__consumer_offsets` that its id hashes to, and to the node that leads it. Until
the partition is replayed its groups answer COORDINATOR_LOAD_IN_PROGRESS; clients wait and try again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import structlog

from broker.groups.classic import ClassicGroup
from broker.groups.consumer import ConsumerGroup
from broker.groups.consumer_values import Topics
from broker.groups.log import OFFSETS_TOPIC, InternalLog, InternalTopic, LogWriter
from broker.groups.shard import NO_TOPICS, GroupShard
from broker.settings import GroupSettings
from protocol.errors import ErrorCode, KafkaError, MalformedMessage
from s3stream.errors import StorageError

LOADS_AT_ONCE_MAX = 8
COMPACT_BYTES_MIN = 4 * 1024 * 1024
"""A log is rewritten to its live state only when it has grown by at least this much since the last time..."""
COMPACT_RATIO = 2
"""...and by this many times what the rewrite left."""
CHECK_S = 10.0
"""How often logs are looked over, and loading is tried again."""
EXPIRE_GROUPS_PER_TURN = 100

_log = structlog.get_logger(__name__)


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: 31-based, over UTF-16 code units, in 32 bits with a sign."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(data), 2):
        value = (31 * value + (data[i] << 8 | data[i + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def partition_of(group_id: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` a group belongs to, as every Kafka client tool computes it."""
    value = java_hash(group_id)
    return (0 if value == -(1 << 31) else abs(value)) % partitions


class GroupCoordinator:
    """All groups this node coordinates. Call `start`, keep `run` running, and `close` at the end."""

    def __init__(
        self,
        topic: InternalTopic,
        settings: GroupSettings,
        *,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        topics: Topics = lambda: NO_TOPICS,
    ) -> None:
        self.settings = settings
        self.now_ms = now_ms
        self.new_id = new_id
        """Makes the unique part of member ids."""
        self._topic = topic
        self._topics = topics
        self._shards: list[GroupShard | None] | None = None
        self._opening = asyncio.Lock()
        self._unloaded = asyncio.Event()
        self._closed = False

    # -- Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up the partitions there are; `run` loads them."""
        await self._open(create=False)

    async def ensure(self) -> None:
        """Create `__consumer_offsets` if there is none. Raises KafkaError or StorageError."""
        if self._shards is None:
            await self._open(create=True)

    async def _open(self, *, create: bool) -> None:
        async with self._opening:
            if self._shards is not None or self._closed:
                return
            logs = await self._topic.open(create=create)
            if logs is not None:
                self._shards = [None if log is None else self._new_shard(log) for log in logs]
                self._unloaded.set()

    def _new_shard(self, log: InternalLog) -> GroupShard:
        shard = GroupShard(LogWriter(log), self.settings, now_ms=self.now_ms, topics=self._topics)
        shard.loaded = log.next_offset == 0  # nothing was ever written: nothing to replay
        return shard

    async def run(self) -> None:
        """Load shards as they appear, expire offsets and keep the logs short, until cancelled."""
        loop = asyncio.get_running_loop()
        interval_s = self.settings.offsets_check_interval_ms / 1000
        next_expiry_s = loop.time() + interval_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):
                    await self._unloaded.wait()
            self._unloaded.clear()
            await self._load()
            await self.compact()
            if loop.time() >= next_expiry_s:
                next_expiry_s = loop.time() + interval_s
                await self.expire()

    async def _load(self) -> None:
        at_once = asyncio.Semaphore(LOADS_AT_ONCE_MAX)

        async def load(index: int, shard: GroupShard) -> None:
            async with at_once:
                try:
                    await shard.load()
                except StorageError as error:
                    _log.error("groups not loaded, trying again", partition=index, error=str(error))
                except (MalformedMessage, KafkaError) as error:
                    shard.broken = True
                    _log.error("groups not loaded: the log is damaged", partition=index, error=str(error))

        async with asyncio.TaskGroup() as group:
            for index, shard in self._led():
                if not shard.loaded and not shard.broken:
                    group.create_task(load(index, shard))

    def _led(self) -> Iterator[tuple[int, GroupShard]]:
        return ((index, shard) for index, shard in enumerate(self._shards or ()) if shard is not None)

    async def compact(self) -> None:
        """Rewrite logs that hold little that is live."""
        for index, shard in self._led():
            writer = shard.writer
            if shard.loaded and writer.written_bytes >= max(COMPACT_BYTES_MIN, COMPACT_RATIO * writer.live_bytes):
                try:
                    await writer.rewrite(shard.live_records, shard.open_transactions)
                except StorageError as error:
                    _log.warning("offsets log not compacted", partition=index, error=str(error))

    async def expire(self) -> None:
        """Drop expired offsets, and groups with nothing left."""
        for _, shard in self._led():
            for count, group_id in enumerate(shard.group_ids() if shard.loaded else ()):
                shard.expire(group_id)
                if count % EXPIRE_GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def close(self) -> None:
        """Stop coordinating; whoever waits for an answer is told to look for another coordinator."""
        self._closed = True
        for _, shard in self._led():
            shard.close()

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `__consumer_offsets` is open, its groups loaded or not."""
        return self._shards is not None

    def coordinates(self, group_id: str) -> bool:
        """Whether this node coordinates the group."""
        shards = self._shards
        return shards is not None and shards[partition_of(group_id, len(shards))] is not None

    def shard(self, group_id: str) -> GroupShard:
        """Return the loaded shard of a group.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        if self._closed or self._shards is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._shards[partition_of(group_id, len(self._shards))]
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        _check_loaded(shard)
        return shard

    def members_shard(self, group_id: str) -> GroupShard:
        """Return the same for a group with members: it must have a name (INVALID_GROUP_ID)."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.shard(group_id)

    @property
    def partition_count(self) -> int:
        """Partitions of `__consumer_offsets`, which must be open (`ready`)."""
        assert self._shards is not None, "asked for when ready"
        return len(self._shards)

    def shard_at(self, partition: int) -> GroupShard:
        """Return the loaded shard of a partition. Raises KafkaError as `shard`."""
        if self._closed or self._shards is None or not 0 <= partition < len(self._shards):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        shard = self._shards[partition]
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        _check_loaded(shard)
        return shard

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """A marker is durable in a partition of `__consumer_offsets`: the offsets of its transaction hold, or never."""
        shard = None if self._shards is None else self._shards[partition]
        if shard is not None and shard.loaded:
            shard.end_transaction(producer_id, committed=committed)

    def groups(self) -> Iterator[ClassicGroup | ConsumerGroup]:
        """Yield all groups. Raises KafkaError while some are still being loaded."""
        for _, shard in self._led():
            _check_loaded(shard)
            yield from shard.groups()

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Drop the offsets committed for deleted topics; with `__consumer_offsets` itself, everything there is."""
        names: Sequence[str] = list(topics)
        for _, shard in self._led():
            if OFFSETS_TOPIC in names:
                shard.close()
            elif shard.loaded:
                shard.forget_topics(names)
        if OFFSETS_TOPIC in names:
            self._shards = None  # the next client that looks for its coordinator creates it anew


def _check_loaded(shard: GroupShard) -> None:
    if shard.broken:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    if not shard.loaded:
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
