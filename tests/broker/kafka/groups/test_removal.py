"""Groups whose partition of `__consumer_offsets` another node takes over, and groups that this node takes over."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Collection

import pytest

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.classic.state_table import ClassicGroupState
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.groups.modern.topic_image import NO_TOPICS, TopicImage
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.records import offset_record
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import CatalogUnavailable, StorageFull
from tests.broker.kafka.groups.consumer.test_shard import TOPICS, ConsumerShard, parts
from tests.support.memory_log import MemoryLog, MemoryTopic
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

T0, T1, X0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("x", 0)
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)


class MovingGroups(ConsumerShard):
    """The coordinator of one partition, which the node leads at first."""

    def __init__(self, log: MemoryLog, settings: GroupSettings = SETTINGS, topics: TopicImage = TOPICS) -> None:
        super().__init__(log, settings)
        self.topic = MemoryTopic([log])
        self.names: Collection[str] | Exception = ()
        self.names_read = 0
        self.groups = GroupCoordinator(
            self.topic,
            settings,
            now_ms=lambda: self.wall_ms,
            new_id=lambda: "id",
            topics=lambda: topics,
            read_topic_names=self._read_names,
        )
        self.groups.start()
        self.shard = self.groups.shard("g") if not log.next_offset else self.shard

    async def _read_names(self) -> Collection[str]:
        self.names_read += 1
        if isinstance(self.names, Exception):
            raise self.names
        return self.names

    async def enter_another_group(self) -> None:
        """Become a member of the group `h`, with the new protocol."""
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        request = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=60_000, topic_names=["t"], ticket=done.set_result)
        self.shard.membership.handle("h", request)
        assert isinstance(await done, ConsumerHeartbeatResponse)

    def code(self) -> ErrorCode:
        try:
            self.groups.shard("g")
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def remove(self) -> None:
        """Cease to lead the partition."""
        self.topic.lead(0, None)

    async def add(self) -> None:
        """Lead the partition again, until it is loaded."""
        self.topic.lead(0, self.log)
        await self.load()

    async def load(self) -> None:
        """Run until the partition is loaded."""
        task = asyncio.create_task(self.groups.run())
        await until(lambda: self.code() is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        task.cancel()
        await asyncio.wait([task])
        self.shard = self.groups.shard("g")


@pytest.fixture
async def client() -> AsyncIterator[MovingGroups]:
    client = MovingGroups(MemoryLog())
    yield client
    client.groups.close()


async def test_members_go_on_by_heartbeat_without_a_rebalance(client: MovingGroups) -> None:
    await client.enter()
    await client.commit(T0, offset=7, member=True)
    client.remove()
    assert client.code() is ErrorCode.NOT_COORDINATOR
    await client.add()
    assert client.state() is ClassicGroupState.STABLE
    assert client.heartbeat() is ErrorCode.NONE
    offset = client.offset(T0)
    assert offset is not None
    assert offset.offset == 7


async def test_a_waiting_join_is_sent_to_the_next_coordinator() -> None:
    client = MovingGroups(MemoryLog(), GroupSettings(initial_rebalance_delay_ms=60_000))
    joined = client.join()
    client.remove()
    assert (await joined).error is ErrorCode.NOT_COORDINATOR
    assert client.log.records() == []


async def test_a_sync_that_waits_for_the_leader_is_sent_to_the_next_coordinator(client: MovingGroups) -> None:
    await client.enter()
    leader, client.member_id = client.member_id, ""
    second = client.join(new_member_id="n")
    client.member_id = leader
    await client.join()
    joined = await second
    client.member_id, client.generation = joined.member_id, joined.generation
    synced = client.sync()
    assert not synced.done()
    client.remove()
    assert (await synced).error is ErrorCode.NOT_COORDINATOR


async def test_a_sync_that_waits_for_the_log_is_sent_to_the_next_coordinator(client: MovingGroups) -> None:
    joined = await client.join()
    client.member_id, client.generation = joined.member_id, joined.generation
    client.log.hold = True
    synced = client.sync()
    await until(lambda: bool(client.log.held))
    client.remove()
    assert (await synced).error is ErrorCode.NOT_COORDINATOR
    client.log.hold = False
    client.log.release()
    await client.add()
    assert (await client.sync()).assignment == b"all", "it was durable"


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "appended"])
async def test_a_commit_on_its_way_is_not_answered_as_durable(client: MovingGroups, *, queued: bool) -> None:
    assert await client.commit(T0, offset=1) is ErrorCode.NONE
    client.log.hold = True
    late = client.commit(T0, offset=2)
    if not queued:
        await until(lambda: bool(client.log.held))
    client.remove()
    assert await late is ErrorCode.NOT_COORDINATOR
    adding = asyncio.ensure_future(client.add())
    for _ in range(10):
        await asyncio.sleep(0)
    assert queued or client.code() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a replay now would not find it"
    client.log.hold = False
    client.log.release()
    await adding
    offset = client.offset(T0)
    assert offset is not None
    assert offset.offset == (1 if queued else 2), "the log decides"


async def test_a_commit_that_waits_for_room_is_never_written(client: MovingGroups) -> None:
    client.log.refusal = StorageFull("later")
    late = client.commit(T0)
    await asyncio.sleep(0)
    client.remove()
    assert await late is ErrorCode.NOT_COORDINATOR
    client.log.refusal = None
    await client.add()
    await client.commit(T1)
    assert client.offset(T0) is None


async def test_a_shard_that_was_removed_takes_nothing_more(client: MovingGroups) -> None:
    """A request that looked for its shard before an await."""
    await client.enter()
    former, records = client.shard, client.log.records()
    client.remove()
    assert await client.commit(T0) is ErrorCode.NOT_COORDINATOR
    done: list[ErrorCode] = []
    offsets = [(T0, CommittedOffset(1, -1, "", 0))]
    former.offsets.commit("g", "", None, -1, offsets, done.append, Producer(7, 0))
    former.expire("g", 10**15)
    await asyncio.sleep(0)
    assert done == [ErrorCode.NOT_COORDINATOR]
    assert client.log.records() == records


def test_no_timer_of_a_removed_group_fires() -> None:
    async def main() -> None:
        client = MovingGroups(MemoryLog())
        await client.enter(session_ms=6_000)
        await client.enter_another_group()
        records = client.log.records()
        client.remove()
        await asyncio.sleep(3_600)
        assert client.log.records() == records
        await client.add()
        assert client.state() is ClassicGroupState.STABLE, "a new coordinator gives each member a new session"
        await asyncio.sleep(6.1)
        assert client.state() is ClassicGroupState.EMPTY

    run_virtual(main())


async def test_a_heartbeat_of_the_new_protocol_is_sent_to_the_next_coordinator(client: MovingGroups) -> None:
    joined = await client.beat("m")
    assert isinstance(joined, ConsumerHeartbeatResponse)
    client.log.hold = True
    second = client.beat("n")
    client.remove()
    answer = await second
    assert isinstance(answer, KafkaError)
    assert answer.code is ErrorCode.NOT_COORDINATOR
    client.log.hold = False
    client.log.release()
    await client.add()
    assert client.group().members.keys() == {"m"}, "the other record was queued only"
    again = await client.beat("m", joined.epoch, owned=parts(0, 1, 2, 3))
    assert isinstance(again, ConsumerHeartbeatResponse)
    assert again.epoch == joined.epoch, "no rebalance"


async def test_a_conversion_on_its_way_is_not_undone_in_a_removed_shard(client: MovingGroups) -> None:
    await client.join()
    client.log.hold = True
    upgrade = client.beat("n")
    await until(lambda: bool(client.log.held))
    former = client.shard
    client.remove()
    answer = await upgrade
    assert isinstance(answer, KafkaError)
    assert former.groups() == []


@pytest.mark.parametrize("marker", ["before", "on its way", "after"])
async def test_offsets_of_a_transaction_follow_its_marker(client: MovingGroups, marker: str) -> None:
    """The marker's callback of before the removal applies nothing to the next shard, whose replay has the marker."""
    producer = Producer(7, 0)
    client.log.hold = True
    late: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    offsets = [(T0, CommittedOffset(5, -1, "", 0))]
    client.shard.offsets.commit("g", "", None, -1, offsets, late.set_result, producer)

    def mark() -> None:
        former = client.shard
        durable = client.log.append_marker(producer, committed=True)
        durable.add_done_callback(lambda _: former.offsets.end_transaction(7, committed=True))

    if marker != "after":
        mark()
    if marker == "before":
        client.log.release()
    client.remove()
    assert await late is (ErrorCode.NONE if marker == "before" else ErrorCode.NOT_COORDINATOR)
    adding = asyncio.ensure_future(client.add())
    await asyncio.sleep(0)
    client.log.hold = False
    client.log.release()
    await adding
    if marker == "after":
        assert client.offset(T0) is None
        mark()
    offset = client.offset(T0)
    assert offset is not None
    assert offset.offset == 5
    assert not list(client.shard.offsets.open_transactions())


async def test_a_deletion_on_its_way_is_left_to_the_next_coordinator(client: MovingGroups) -> None:
    await client.commit(T0, X0)
    client.log.hold = True
    (outcome,) = client.groups.forget_topics(["x"])
    client.remove()
    assert await outcome is ErrorCode.NOT_COORDINATOR
    client.log.hold = False
    client.names = ["t"]
    await client.add()
    await until(lambda: client.offset(X0) is None)
    assert client.offset(T0) is not None


async def test_nothing_of_a_removed_shard_stays_in_memory(client: MovingGroups) -> None:
    await client.enter()
    await client.enter_another_group()
    client.log.hold = True
    late = client.commit(T0, member=True)
    await until(lambda: bool(client.log.held))
    gone = weakref.ref(client.shard)
    client.remove()
    assert await late is ErrorCode.NOT_COORDINATOR
    client.log.release()
    del client.shard
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("names", "kept"), [(["t"], False), (["t", "x"], True)], ids=["deleted", "detached or created just now"]
)
async def test_offsets_of_a_topic_unknown_here_are_dropped_only_if_the_cluster_does_not_have_it(
    client: MovingGroups, names: Collection[str], *, kept: bool
) -> None:
    """The node may have begun to lead the partition before it heard of a topic that others know."""
    await client.commit(T0, X0)
    client.remove()
    client.names = names
    await client.add()
    await client.commit(T1)
    assert (client.offset(X0) is not None) is kept
    assert client.offset(T0) is not None


async def test_the_catalog_is_not_asked_while_all_topics_are_known(client: MovingGroups) -> None:
    await client.commit(T0)
    client.remove()
    client.names = CatalogUnavailable("away")
    await client.add()
    assert client.names_read == 0


async def test_offsets_of_unknown_topics_wait_for_the_catalog(
    client: MovingGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, they would be those of a topic created later under the name; dropped, consumers would start over."""
    monkeypatch.setattr("anabranch.broker.kafka.coordination.shards.CHECK_S", 0.001)
    await client.commit(T0, X0)
    client.remove()
    client.names = CatalogUnavailable("away")
    adding = asyncio.ensure_future(client.add())
    await until(lambda: client.names_read > 1)
    assert client.code() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    client.names = ["t", "x"]
    await adding
    assert client.offset(X0) is not None


async def test_the_limit_of_groups_counts_those_of_the_shards_led_here() -> None:
    log = MemoryLog([[offset_record(name, T0, CommittedOffset(1, -1, "", 1))] for name in "abc"])
    client = MovingGroups(log, GroupSettings(groups_max=3), NO_TOPICS)
    client.names = ["t"]
    await client.load()
    with pytest.raises(KafkaError) as refused:
        await client.commit(T0)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    client.log = MemoryLog()
    client.remove()
    await client.add()
    assert await client.commit(T0) is ErrorCode.NONE
