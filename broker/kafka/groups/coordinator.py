"""The group coordinator: finds the shard of a group, loads shards, and expires offsets.

A group belongs to the partition of `__consumer_offsets` that its id hashes to, and to the node that leads it. Until
the partition is replayed, requests get COORDINATOR_LOAD_IN_PROGRESS, and clients try again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from anabranch.broker.kafka.configs.group_times import GroupTimesGetter
from anabranch.broker.kafka.configs.streams import StreamsConfigsGetter
from anabranch.broker.kafka.coordination.log import InternalTopic, LogWriter
from anabranch.broker.kafka.coordination.shards import Shards, check_loaded
from anabranch.broker.kafka.groups.interface import Group
from anabranch.broker.kafka.groups.kinds import default_streams_configs
from anabranch.broker.kafka.groups.modern.topic_image import NO_TOPICS, TopicImageGetter
from anabranch.broker.kafka.groups.requests import NEVER_MS
from anabranch.broker.kafka.groups.shard import GroupShard, TopicNamesReader
from anabranch.broker.kafka.groups.shard_group import ShardGroup
from anabranch.broker.kafka.groups.share.requests import StatesCreated, StatesToCreate
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

EXPIRE_GROUPS_PER_TURN = 100


class GroupCoordinator:
    """The groups that this node coordinates. Call `start`, keep `run` running, and call `close` at the end."""

    def __init__(  # noqa: PLR0913 - the parts of a coordinator
        self,
        topic: InternalTopic,
        settings: GroupSettings,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        new_id: Callable[[], str],
        topics: TopicImageGetter = lambda: NO_TOPICS,
        consumer_times: GroupTimesGetter | None = None,
        share_times: GroupTimesGetter | None = None,
        streams_configs: StreamsConfigsGetter = default_streams_configs,
        expiry_now_ms: Callable[[], int] | None = None,
        read_topic_names: TopicNamesReader | None = None,
        parking: Parking | None = None,
    ) -> None:
        """`steady_ms` is the clock of deadlines, by default the event loop's; `expiry_now_ms` that of expired offsets.

        `consumer_times` and `share_times` return a group's own times, `streams_configs` its configs.

        `read_topic_names` identifies offsets of deleted topics when a shard is loaded; without it they are kept.
        `parking` is notified of shards that are being loaded.
        """
        self.settings = settings
        self.now_ms = now_ms
        self._steady_ms = steady_ms
        self._expiry_now_ms = expiry_now_ms or now_ms
        self.new_id = new_id
        """Returns the unique part of a new member id."""
        self._topics = topics
        self._consumer_times = consumer_times
        self._share_times = share_times
        self._streams_configs = streams_configs
        self.states_to_create: asyncio.Queue[StatesToCreate] = asyncio.Queue()
        """States that share groups ask for, taken by `broker.kafka.groups.share.creator`."""
        self._read_topic_names = read_topic_names
        self._shards = Shards(topic, "groups", self._new_shard, parking)

    # -- Life --------------------------------------------------------------------------------------------------------

    def start(self, existing_topics: Collection[str] | None = None) -> None:
        """Coordinate the groups of those partitions of `__consumer_offsets` that this node leads. `run` loads them.

        `existing_topics` are the names of all topics at the start of the node, if they have been read.
        """
        self._shards.start()
        for shard in self._shards.led_shards():
            shard.existing_topics = existing_topics

    def _new_shard(self, writer: LogWriter) -> GroupShard:
        return GroupShard(
            writer,
            self.settings,
            now_ms=self.now_ms,
            steady_ms=self._steady_ms,
            topics=self._topics,
            consumer_times=self._consumer_times,
            share_times=self._share_times,
            create_states=self._create_states,
            streams_configs=self._streams_configs,
            read_topic_names=self._read_topic_names,
            group_count=self.group_count,
        )

    async def run(self) -> None:
        """Load shards, rewrite logs that have grown and expire offsets, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._shards.run())
            while True:
                await asyncio.sleep(self.settings.offsets_check_interval_ms / 1000)
                await self.expire()

    def _create_states(self, asked: StatesToCreate | KafkaError) -> None:
        """Have states created once their group has recorded that it asks for them; after an error it has not."""
        if not isinstance(asked, KafkaError):
            self.states_to_create.put_nowait(asked)

    def note_created(self, group_id: str, result: StatesCreated) -> None:
        """Pass the result on to the group that has asked. Raises KafkaError if it is not here any more."""
        self.shard(group_id).membership.handle(group_id, result)

    @property
    def wake_ms(self) -> int:
        """Time on the steady clock at which a group is woken next; NEVER_MS: none is waiting."""
        return min((shard.wake_ms for shard in self._shards.led_shards()), default=NEVER_MS)

    @property
    def is_settled(self) -> bool:
        """True if all deadlines that have passed were noticed, and all writes have ended."""
        return all(shard.is_settled for shard in self._shards.led_shards())

    def reset_timers(self) -> None:
        """Set the timers anew, after the steady clock was moved: what was due has happened once it `is_settled`."""
        for shard in self._shards.led_shards():
            shard.reset_timers()

    async def compact(self) -> None:
        """Rewrite logs that have grown well beyond their live records."""
        await self._shards.compact()

    async def expire(self) -> None:
        """Delete expired offsets, and groups without members or offsets."""
        for shard in self._shards.led_shards():
            for count, group_id in enumerate(shard.group_ids() if shard.loaded else ()):
                shard.expire(group_id, self._expiry_now_ms())
                if count % EXPIRE_GROUPS_PER_TURN == 0:
                    await asyncio.sleep(0)

    def close(self) -> None:
        """Stop coordinating. Requests that wait are answered with NOT_COORDINATOR."""
        self._shards.close()

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if `__consumer_offsets` is known. Groups of this node may not be loaded yet."""
        return self._shards.is_open

    def is_coordinator_of(self, group_id: str) -> bool:
        """Return whether this node coordinates the group."""
        return self._shards.leads_shard_of(group_id)

    def is_loading(self, group_id: str) -> bool:
        """Return whether this node coordinates the group as soon as its shard is loaded."""
        return self._shards.is_loading(group_id)

    def shard(self, group_id: str) -> GroupShard:
        """Return the loaded shard of a group.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self._shards.shard_of(group_id)

    def shard_with_id(self, group_id: str) -> GroupShard:
        """Return the loaded shard of a group whose id must not be empty (INVALID_GROUP_ID). Raises KafkaError."""
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        return self.shard(group_id)

    @property
    def partition_count(self) -> int:
        """Number of partitions of `__consumer_offsets`. Raises COORDINATOR_NOT_AVAILABLE."""
        return self._shards.count

    def shard_at(self, partition: int) -> GroupShard:
        """Return the loaded shard of a partition. Raises KafkaError like `shard`."""
        return self._shards.shard_at(partition)

    def groups(self) -> Iterator[Group]:
        """Yield all groups of this node. Raises KafkaError while some are still being loaded."""
        for shard in self._shards.led_shards():
            check_loaded(shard)
            yield from shard.groups()

    def loaded_entries(self) -> Iterator[ShardGroup]:
        """Yield the groups that are loaded, with their offsets, for reading only."""
        for shard in self._shards.led_shards():
            if shard.loaded:
                yield from shard.entries()

    def group_count(self) -> int:
        """Return the number of groups of this node that are loaded."""
        return sum(shard.group_count() for shard in self._shards.led_shards())

    @property
    def shards_loading(self) -> int:
        """Number of shards that are not loaded, because they are being read or cannot be read."""
        return sum(not shard.loaded for shard in self._shards.led_shards())

    def forget_topics(self, topics: Iterable[str]) -> Sequence[asyncio.Future[ErrorCode]]:
        """Delete the offsets of deleted topics. Return the outcomes, which are known when they are durable."""
        names = frozenset(topics)
        outcomes = []
        for shard in self._shards.led_shards():
            outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            shard.forget_topics(names, outcome.set_result)
            outcomes.append(outcome)
        return outcomes
