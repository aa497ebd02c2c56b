"""The group coordinator: finds a group's shard, has shards loaded, and does what is to be done from time to time.

A group belongs to the partition of `__consumer_offsets` that its id hashes to, and to the node that leads it. Until
the partition is replayed its groups answer COORDINATOR_LOAD_IN_PROGRESS; clients wait and try again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from broker.coordination.internal_topics import OFFSETS_TOPIC
from broker.coordination.log import InternalTopic, LogWriter
from broker.coordination.shards import Shards, check_loaded
from broker.groups.classic.group import ClassicGroup
from broker.groups.consumer.group import ConsumerGroup
from broker.groups.consumer.group_base import SessionTimeout
from broker.groups.consumer.topic_image import NO_TOPICS, TopicImageGetter
from broker.groups.shard import GroupShard
from broker.settings.client_areas import GroupSettings
from protocol.errors import ErrorCode, KafkaError

EXPIRE_GROUPS_PER_TURN = 100


class GroupCoordinator:
    """All groups this node coordinates. Call `start`, keep `run` running, and `close` at the end."""

    def __init__(
        self,
        topic: InternalTopic,
        settings: GroupSettings,
        *,
        now_ms: Callable[[], int],
        new_id: Callable[[], str],
        topics: TopicImageGetter = lambda: NO_TOPICS,
        session_timeout_ms: SessionTimeout | None = None,
        expiry_now_ms: Callable[[], int] | None = None,
    ) -> None:
        """`expiry_now_ms` tells by what time offsets are dropped, where that is another clock."""
        self.settings = settings
        self.now_ms = now_ms
        self._expiry_now_ms = expiry_now_ms or now_ms
        self.new_id = new_id
        """Makes the unique part of member ids."""
        self._topics = topics
        self._session_timeout_ms = session_timeout_ms
        """Of a consumer group, where groups have configs of their own."""
        self._shards = Shards(topic, "groups", self._new_shard)

    # -- Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up the partitions there are; `run` loads them."""
        await self._shards.open(create=False)

    async def ensure_topic(self) -> None:
        """Create `__consumer_offsets` if there is none. Raises KafkaError or StorageError."""
        if not self._shards.is_open:
            await self._shards.open(create=True)

    def _new_shard(self, writer: LogWriter) -> GroupShard:
        return GroupShard(
            writer,
            self.settings,
            now_ms=self.now_ms,
            topics=self._topics,
            session_timeout_ms=self._session_timeout_ms,
        )

    async def run(self) -> None:
        """Load shards as they appear, expire offsets and keep the logs short, until cancelled."""
        loop = asyncio.get_running_loop()
        interval_s = self.settings.offsets_check_interval_ms / 1000
        next_expiry_s = loop.time() + interval_s
        while True:
            await self._shards.maintain()
            if loop.time() >= next_expiry_s:
                next_expiry_s = loop.time() + interval_s
                await self.expire()

    async def compact(self) -> None:
        """Rewrite logs that hold little that is live."""
        await self._shards.compact()

    async def expire(self) -> None:
        """Drop expired offsets, and groups with nothing left."""
        for shard in self._shards.led_shards():
            for count, group_id in enumerate(shard.group_ids() if shard.loaded else ()):
                shard.expire(group_id, self._expiry_now_ms())
                if count % EXPIRE_GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def close(self) -> None:
        """Stop coordinating; whoever waits for an answer is told to look for another coordinator."""
        self._shards.close()

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether `__consumer_offsets` is open, its groups loaded or not."""
        return self._shards.is_open

    def is_coordinator_of(self, group_id: str) -> bool:
        """Whether this node coordinates the group."""
        return self._shards.leads_shard_of(group_id)

    def shard(self, group_id: str) -> GroupShard:
        """Return the loaded shard of a group.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self._shards.shard_of(group_id)

    def shard_with_id(self, group_id: str) -> GroupShard:
        """Return the same for a group with members: it must have a name (INVALID_GROUP_ID)."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.shard(group_id)

    @property
    def partition_count(self) -> int:
        """Partitions of `__consumer_offsets`, which must be open (`ready`)."""
        return self._shards.count

    def shard_at(self, partition: int) -> GroupShard:
        """Return the loaded shard of a partition. Raises KafkaError as `shard`."""
        return self._shards.shard_at(partition)

    def end_transaction(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """A marker is durable in a partition of `__consumer_offsets`: the offsets of its transaction hold, or never."""
        shard = self._shards.loaded_shard_at(partition)
        if shard is not None:
            shard.offsets.end_transaction(producer_id, committed=committed)

    def groups(self) -> Iterator[ClassicGroup | ConsumerGroup]:
        """Yield all groups. Raises KafkaError while some are still being loaded."""
        for shard in self._shards.led_shards():
            check_loaded(shard)
            yield from shard.groups()

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Drop the offsets committed for deleted topics; with `__consumer_offsets` itself, everything there is."""
        names: Sequence[str] = list(topics)
        if OFFSETS_TOPIC in names:
            self._shards.topic_deleted()  # the next client that looks for its coordinator creates it anew
            return
        for shard in self._shards.led_shards():
            if shard.loaded:
                shard.offsets.forget_topics(names)
