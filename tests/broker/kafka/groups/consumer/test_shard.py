"""Consumer groups in a shard over a log in memory: times of answers, contents of the log, recovery after a crash."""

import asyncio

import pytest

from anabranch.broker.kafka.configs.group_times import GroupTimes
from anabranch.broker.kafka.coordination.log import KeyValue, LogWriter
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup, ConsumerGroupState
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember
from anabranch.broker.kafka.groups.modern.machine import REMOVED_AT_ONCE_MAX
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.records import GroupRecord, offset_record, parse_record
from anabranch.broker.kafka.groups.requests import LeaveRequest, LeavingMember
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.wal.interface import WalFailed
from tests.broker.kafka.groups.test_shard import ClassicShard
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
TOPIC_ID = b"t" * 16
LONG = [f"{number}".ljust(30_000, "x") for number in range(40)]
"""A subscription that makes a record of more than 1 MiB."""
TOPICS = TopicImage.of(1, [TopicMetadata(TOPIC_ID, "t", 4)])
T0 = TopicPartition("t", 0)


def parts(*numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(TOPIC_ID, number) for number in numbers)


class ConsumerShard(ClassicShard):
    """The same with members that speak the new protocol."""

    def __init__(self, log: MemoryLog, settings: GroupSettings = SETTINGS) -> None:
        super().__init__(log)
        self.settings = settings
        self.shard = GroupShard(LogWriter(log), settings, now_ms=lambda: self.wall_ms, topics=lambda: TOPICS)

    def beat(
        self, member_id: str, epoch: int = 0, **fields: object
    ) -> "asyncio.Future[ConsumerHeartbeatResponse | KafkaError]":
        wanted: dict[str, object] = {"owned": frozenset(), **fields}
        if epoch == 0:
            wanted = {"rebalance_timeout_ms": 60_000, "topic_names": ["t"], **wanted}
        done: asyncio.Future[ConsumerHeartbeatResponse | KafkaError] = asyncio.get_running_loop().create_future()
        request = ConsumerHeartbeat(member_id, epoch, ticket=done.set_result, **wanted)  # type: ignore[arg-type]
        self.shard.membership.handle("g", request)
        return done

    def group(self) -> ConsumerGroup:
        group = self.shard.group("g")
        assert isinstance(group, ConsumerGroup)
        return group

    async def crash(self) -> "ConsumerShard":
        other = ConsumerShard(self.log.crash(), self.settings)
        other.wall_ms = self.wall_ms
        await other.shard.load()
        self.shard.close()
        return other

    def commit_as(self, member_id: str, epoch: int, *keys: TopicPartition, **fields: bool) -> ErrorCode:
        committed = CommittedOffset(1, 3, "", self.wall_ms)
        errors: list[ErrorCode] = []
        offsets = [(key, committed) for key in keys]
        try:
            self.shard.offsets.commit("g", member_id, None, epoch, offsets, errors.append, **fields)  # type: ignore[arg-type]
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


@pytest.fixture
async def client() -> ConsumerShard:
    client = ConsumerShard(MemoryLog())
    await client.shard.load()
    return client


async def test_an_answer_waits_for_what_it_says_and_for_what_was_changed_before_it(client: ConsumerShard) -> None:
    assert await client.beat("m") == ConsumerHeartbeatResponse("m", 2, parts(0, 1, 2, 3))
    client.log.hold = True
    joined = client.beat("n")
    plain = client.beat("n", 3)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not joined.done()
    assert not plain.done(), "it knows of an epoch that may be forgotten"
    client.log.release()
    assert await joined == ConsumerHeartbeatResponse("n", 3, frozenset())
    assert await plain == ConsumerHeartbeatResponse("n", 3, None)


async def test_partitions_go_over_when_they_are_let_go_and_survive_a_crash_in_between(client: ConsumerShard) -> None:
    await client.beat("m")
    await client.beat("n")
    told = await client.beat("m", 2, owned=parts(0, 1, 2, 3))
    assert told == ConsumerHeartbeatResponse("m", 2, parts(0, 1))
    assert await client.beat("n", 3) == ConsumerHeartbeatResponse("n", 3, None)
    client = await client.crash()
    assert client.group().state is ConsumerGroupState.RECONCILING
    assert await client.beat("m", 2, owned=parts(0, 1)) == ConsumerHeartbeatResponse("m", 3, None)
    assert await client.beat("n", 3) == ConsumerHeartbeatResponse("n", 3, parts(2, 3))
    assert client.group().state is ConsumerGroupState.STABLE


async def test_a_failed_write_is_told_and_forgotten(client: ConsumerShard) -> None:
    await client.beat("m")
    client.log.hold = True
    joined = client.beat("n")
    await asyncio.sleep(0)
    client.log.release(WalFailed("gone"))
    answer = await joined
    assert isinstance(answer, KafkaError)
    assert answer.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(client.group().members) == ["m"]
    assert client.group().epoch == 2


async def test_a_group_too_large_to_store_is_refused_and_stays_as_it_was(client: ConsumerShard) -> None:
    await client.beat("m")
    with pytest.raises(KafkaError) as refused:
        _ = client.beat("n", topic_names=LONG)
    assert refused.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert list(client.group().members) == ["m"]
    assert (await client.beat("m", 2)) == ConsumerHeartbeatResponse("m", 2, None)
    with pytest.raises(KafkaError):
        client.shard.membership.handle("other", ConsumerHeartbeat("m", 0, rebalance_timeout_ms=1, topic_names=LONG))
    assert client.shard.group("other") is None


async def test_an_unknown_group_is_not_made_by_anything_but_a_join(client: ConsumerShard) -> None:
    for epoch in (1, -1):
        with pytest.raises(KafkaError) as refused:
            _ = client.beat("m", epoch)
        assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(KafkaError):
        _ = client.beat("m", topic_regex="(")
    assert client.shard.groups() == []


async def test_silent_members_are_removed_and_an_administrator_may_remove_them_too() -> None:
    client = ConsumerShard(MemoryLog(), GroupSettings(consumer_session_timeout_ms=300))
    await client.shard.load()
    await client.beat("m")
    await until(lambda: client.group().state is ConsumerGroupState.EMPTY)
    await client.beat("n", instance_id="i")
    assert client.shard.membership.handle("g", LeaveRequest([LeavingMember("", "i"), LeavingMember("x", None)])) == [
        0,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    await asyncio.sleep(0)
    client = await client.crash()
    assert client.group().state is ConsumerGroupState.EMPTY
    assert client.group().epoch == 5


async def test_many_members_that_fall_silent_at_once_are_all_removed() -> None:
    client = ConsumerShard(MemoryLog(), GroupSettings(consumer_session_timeout_ms=300))
    await client.shard.load()
    _ = [client.beat(f"m{number}") for number in range(3 * REMOVED_AT_ONCE_MAX)]
    await until(lambda: client.group().state is ConsumerGroupState.EMPTY)
    await until(lambda: not any(entry.writes for entry in client.shard.entries()))
    client = await client.crash()
    assert client.group().state is ConsumerGroupState.EMPTY


async def test_an_empty_classic_group_becomes_a_consumer_group_and_back_with_its_offsets(client: ConsumerShard) -> None:
    await client.enter()
    await client.commit(T0, offset=5, member=True)
    with pytest.raises(KafkaError, match="malformed") as refused:
        _ = client.beat("m")
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    client.shard.membership.handle("g", LeaveRequest([LeavingMember(client.member_id, None)]))
    await client.beat("m")
    assert client.offset(T0) is not None
    client = await client.crash()
    assert client.group().state is ConsumerGroupState.STABLE
    assert client.offset(T0) is not None
    await client.beat("m", -1)
    await client.enter()
    client = await client.crash()
    assert client.state() == "Stable"
    assert not isinstance(client.shard.group("g"), ConsumerGroup)
    assert client.offset(T0) is not None


async def test_a_commit_needs_the_members_epoch_or_one_since_which_it_has_the_partition(client: ConsumerShard) -> None:
    await client.beat("m")
    assert client.commit_as("m", 2, T0) is ErrorCode.NONE
    assert client.commit_as("m", 2, T0, knows_member_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    assert client.commit_as("m", 3, T0) is ErrorCode.STALE_MEMBER_EPOCH
    assert client.commit_as("x", 2, T0) is ErrorCode.UNKNOWN_MEMBER_ID
    assert client.commit_as("", -1, T0) is ErrorCode.UNKNOWN_MEMBER_ID
    await client.beat("n")
    await client.beat("m", 2, owned=parts(0, 1))
    await client.beat("m", 2, owned=parts(0, 1))
    assert client.group().members["m"].epoch == 3
    assert client.commit_as("m", 2, T0) is ErrorCode.NONE, "it has had that one all the time"
    assert client.commit_as("m", 2, TopicPartition("t", 3)) is ErrorCode.STALE_MEMBER_EPOCH
    assert client.commit_as("m", 2, TopicPartition("gone", 0)) is ErrorCode.STALE_MEMBER_EPOCH
    assert client.shard.offsets.check_fetch("g", "m", 3) is ErrorCode.NONE
    assert client.shard.offsets.check_fetch("g", None, -1) is ErrorCode.NONE
    assert client.shard.offsets.check_fetch("g", "m", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert client.shard.offsets.check_fetch("g", "x", 2) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_deleted_group_leaves_nothing(client: ConsumerShard) -> None:
    await client.beat("m", topic_regex="t.*", topic_names=[])
    with pytest.raises(KafkaError) as refused:
        client.shard.delete("g", lambda _: None)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    await client.beat("m", -1)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    client.shard.delete("g", done.set_result)
    assert await done is ErrorCode.NONE
    client = await client.crash()
    assert client.shard.groups() == []
    assert list(client.shard.live_records()) == []


async def test_records_are_written_and_deleted_in_apache_kafkas_order(client: ConsumerShard) -> None:
    await client.beat("m", topic_regex="t.*", topic_names=[])
    written = [records.KINDS.parse_key(key) for key, _ in client.log.records()]
    assert [key.kind for key in written if key is not None] == [
        records.MEMBER,
        records.PATTERN,
        records.EPOCH,
        records.TARGET,
        records.TARGET_EPOCH,
        records.CURRENT,
    ]
    gone = [records.KINDS.parse_key(key) for key, _ in client.group().records.tombstones()]
    assert [key.kind for key in gone if key is not None] == [
        records.CURRENT,
        records.TARGET,
        records.TARGET_EPOCH,
        records.MEMBER,
        records.PATTERN,
        records.EPOCH,
    ]


async def test_a_rewritten_log_holds_the_same_group(client: ConsumerShard) -> None:
    await client.beat("m", topic_regex="t.*", topic_names=[])
    for _ in range(20):
        await client.beat("n")
        await client.beat("n", -1)
    before = {record.key: record.value for record in client.log.records()}
    await client.shard.writer.rewrite(client.shard.live_records)
    after = client.log.records()
    assert {record.key: record.value for record in after} == {k: v for k, v in before.items() if v is not None}
    kinds = sorted(key.kind for record in after if (key := records.KINDS.parse_key(record.key)) is not None)
    assert kinds == [
        records.EPOCH,
        records.MEMBER,
        records.TARGET_EPOCH,
        records.TARGET,
        records.CURRENT,
        records.PATTERN,
    ]
    client = await client.crash()
    assert client.group().members["m"].assigned.keys() == parts(0, 1, 2, 3)


async def test_offsets_of_subscribed_topics_are_kept_and_others_expire(client: ConsumerShard) -> None:
    await client.beat("m", topic_regex="t", topic_names=[])
    unread = TopicPartition("u", 0)
    assert client.commit_as("m", 2, T0) is ErrorCode.NONE
    await asyncio.sleep(0)
    _ = client.log.append([offset_record("g", unread, CommittedOffset(1, 1, "", 1))])
    client = await client.crash()
    client.wall_ms += 30 * 86_400_000
    client.shard.expire("g", client.wall_ms)
    await asyncio.sleep(0)
    offsets = client.shard.offsets.of("g")
    assert offsets is not None
    assert list(offsets.topics) == ["t"]
    await client.beat("m", -1)
    client.shard.expire("g", client.wall_ms)
    assert client.shard.group("g") is None


async def test_every_record_is_kafkas(client: ConsumerShard) -> None:
    await client.beat("m")
    assert all(isinstance(parse_record(record), GroupRecord) for record in client.log.records())


async def test_a_pattern_of_kafkas_that_is_not_served_goes_on_matching_what_it_did(client: ConsumerShard) -> None:
    pattern = "t|" + "x" * 1024
    stored = ConsumerMember("m", topic_regex=pattern, rebalance_timeout_ms=1_000, epoch=3)
    written = {
        RecordKey(records.EPOCH, "g"): records.epoch_value(3, 0),
        RecordKey(records.MEMBER, "g", "m"): records.member_value(stored),
        RecordKey(records.CURRENT, "g", "m"): records.current_value(stored),
        RecordKey(records.PATTERN, "g", pattern): records.pattern_value(["t"], 1, 1),
    }
    _ = client.log.append([KeyValue(records.KINDS.key_bytes(key), value) for key, value in written.items()])
    client = await client.crash()
    assert await client.beat("m", 3) == ConsumerHeartbeatResponse("m", 4, parts(0, 1, 2, 3))


async def test_an_assignment_waits_for_the_interval_since_the_last_one() -> None:
    client = ConsumerShard(MemoryLog(), GroupSettings(consumer_assignment_interval_ms=1_000))
    await client.shard.load()
    assert await client.beat("m") == ConsumerHeartbeatResponse("m", 2, parts(0, 1, 2, 3))
    client.wall_ms += 999
    assert await client.beat("n") == ConsumerHeartbeatResponse("n", 2, frozenset())
    assert await client.beat("m", 2, owned=None) == ConsumerHeartbeatResponse("m", 2, None)
    client = await client.crash()
    assert await client.beat("n", 2) == ConsumerHeartbeatResponse("n", 2, None), "the time is in the log"
    client.wall_ms += 1
    assert await client.beat("n", 2) == ConsumerHeartbeatResponse("n", 3, None), "it waits for the other now"
    assert await client.beat("m", 2, owned=parts(0, 1, 2, 3)) == ConsumerHeartbeatResponse("m", 2, parts(0, 1))


async def test_an_assignment_does_not_wait_for_a_clock_that_was_set_back() -> None:
    client = ConsumerShard(MemoryLog(), GroupSettings(consumer_assignment_interval_ms=1_000))
    client.wall_ms = 3_600_000
    await client.shard.load()
    await client.beat("m")
    client.wall_ms = 5_000
    assert await client.beat("n") == ConsumerHeartbeatResponse("n", 3, frozenset()), "it waits for the other only"


async def test_a_member_lets_go_of_a_topic_that_it_left_before_the_next_assignment() -> None:
    client = ConsumerShard(MemoryLog(), GroupSettings(consumer_assignment_interval_ms=1_000))
    await client.shard.load()
    await client.beat("m")
    left = await client.beat("m", 2, topic_names=["other"], owned=parts(0, 1, 2, 3))
    assert left == ConsumerHeartbeatResponse("m", 2, frozenset())
    assert client.group().state is ConsumerGroupState.ASSIGNING


async def test_a_groups_own_session_timeout_is_kept_from_the_next_heartbeat_on() -> None:
    times = {"g": GroupTimes(3_600_000)}
    log = MemoryLog()
    shard = GroupShard(
        LogWriter(log), SETTINGS, now_ms=lambda: 0, topics=lambda: TOPICS, consumer_times=times.__getitem__
    )
    await shard.load()
    beat = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=60_000, topic_names=["t"], ticket=lambda _: None)
    shard.membership.handle("g", beat)
    group = shard.group("g")
    assert isinstance(group, ConsumerGroup)
    now_ms = asyncio.get_running_loop().time() * 1000
    assert group.wake_ms > now_ms + 3_000_000
    times["g"] = GroupTimes(10)
    shard.membership.handle("g", ConsumerHeartbeat("m", 2, ticket=lambda _: None))
    await until(lambda: group.state is ConsumerGroupState.EMPTY)
    shard.close()
