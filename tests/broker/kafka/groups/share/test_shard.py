"""Share groups in a shard over a log in memory: heartbeats, states of partitions, offsets, crashes and deletion."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from anabranch.broker.kafka.coordination.log import LogWriter
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.requests import GroupRequest, JoinRequest
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.kafka.groups.share import records
from anabranch.broker.kafka.groups.share.group import ShareGroup, ShareGroupState
from anabranch.broker.kafka.groups.share.requests import (
    AlterOffsets,
    DeleteOffsets,
    DeleteStates,
    ShareHeartbeat,
    ShareHeartbeatResponse,
    StatesCreated,
    StatesDeleted,
    StatesToCreate,
)
from anabranch.broker.kafka.share.interface import InitialState, ShareKey
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.wal.interface import WalFailed
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

T, U = b"t" * 16, b"u" * 16
SETTINGS = GroupSettings(share_members_max=3)


def image(version: int, *topics: tuple[bytes, str, int]) -> TopicImage:
    return TopicImage.of(version, [TopicMetadata(*topic) for topic in topics])


def parts(*numbers: int, topic_id: bytes = T) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, number) for number in numbers)


class ShareShard:
    """A shard whose share coordinator is the test."""

    def __init__(self, log: MemoryLog, settings: GroupSettings = SETTINGS) -> None:
        self.log = log
        self.settings = settings
        self.wall_ms = 5_000
        self.steady_ms = 1_000
        self.topics = image(1, (T, "t", 2))
        self.asked: list[StatesToCreate] = []
        self.shard = GroupShard(
            LogWriter(log),
            settings,
            now_ms=lambda: self.wall_ms,
            steady_ms=lambda: self.steady_ms,
            topics=lambda: self.topics,
            create_states=self._ask,
        )

    def _ask(self, asked: StatesToCreate | KafkaError) -> None:
        if isinstance(asked, StatesToCreate):
            self.asked.append(asked)

    async def ask(self, request_type: type[GroupRequest[Any]], *fields: object, group: str = "g") -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.shard.membership.handle(group, request_type(*fields, ticket=respond_to(done)))  # type: ignore[call-arg]
        return await done

    async def beat(self, member_id: str, epoch: int = 0, *topics: str) -> ShareHeartbeatResponse:
        names = topics or (("t",) if epoch == 0 else None)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = ShareHeartbeat(member_id, epoch, None, names, "c", "/h", respond_to(done))
        self.shard.membership.handle("g", request)
        response = await done
        assert isinstance(response, ShareHeartbeatResponse)
        return response

    async def create(self, *failed: int) -> Mapping[ShareKey, InitialState]:
        """Create what was asked for last, but these partitions."""
        asked = self.asked.pop()
        created = [TopicIdPartition(key.topic_id, key.partition) for key in asked.states if key.partition not in failed]
        await self.ask(StatesCreated, created, [TopicIdPartition(T, index) for index in failed], group=asked.group_id)
        return asked.states

    async def joined(self) -> ShareHeartbeatResponse:
        await self.beat("m")
        await self.create()
        return await self.beat("m", 2)

    def group(self) -> ShareGroup:
        group = self.shard.group("g")
        assert isinstance(group, ShareGroup)
        return group

    async def crash(self) -> "ShareShard":
        other = ShareShard(self.log.crash(), self.settings)
        other.topics = self.topics
        await other.shard.load()
        self.shard.close()
        return other


@pytest.fixture
async def client() -> ShareShard:
    client = ShareShard(MemoryLog())
    await client.shard.load()
    return client


async def refused(work: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await work
    return error.value.code


async def test_a_partition_is_assigned_when_it_has_a_state(client: ShareShard) -> None:
    assert await client.beat("m") == ShareHeartbeatResponse("m", 2, frozenset())
    assert await client.beat("m", 2) == ShareHeartbeatResponse("m", 2, None)
    [asked] = client.asked
    assert asked.states == {ShareKey("g", T, 0): InitialState(2, -1), ShareKey("g", T, 1): InitialState(2, -1)}
    await client.create()
    assert await client.beat("m", 2) == ShareHeartbeatResponse("m", 3, parts(0, 1))
    assert await client.beat("m", 3) == ShareHeartbeatResponse("m", 3, None)
    assert await client.beat("m", 2) == ShareHeartbeatResponse("m", 3, None), "the response was lost"
    assert client.group().state is ShareGroupState.STABLE


async def test_the_group_records_what_it_asks_for_before_it_asks(client: ShareShard) -> None:
    client.log.hold = True
    beat = asyncio.create_task(client.beat("m"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not client.asked
    client.log.release()
    await beat
    assert client.asked


async def test_a_state_that_was_not_created_is_asked_for_again(client: ShareShard) -> None:
    await client.beat("m")
    await client.create(1)
    assert (await client.beat("m", 2)).assignment == parts(0)
    assert list(await client.create()) == [ShareKey("g", T, 1)]
    assert (await client.beat("m", 3)).assignment == parts(0, 1)


async def test_an_answer_that_does_not_come_is_asked_for_again_in_a_higher_epoch(client: ShareShard) -> None:
    await client.beat("m")
    client.steady_ms += SETTINGS.share_initialize_retry_interval_ms - 1
    await client.beat("m", 2)
    assert [asked.states[ShareKey("g", T, 0)].state_epoch for asked in client.asked] == [2]
    client.steady_ms += 1
    await client.beat("m", 2)
    assert [asked.states[ShareKey("g", T, 0)].state_epoch for asked in client.asked] == [2, 3]


async def test_a_later_coordinator_asks_in_a_higher_epoch_and_keeps_the_members(client: ShareShard) -> None:
    await client.beat("m")
    client = await client.crash()
    assert (await client.beat("m", 2)).epoch == 3
    [asked] = client.asked
    assert asked.states[ShareKey("g", T, 0)] == InitialState(3, -1)
    await client.create()
    await client.beat("m", 3)
    client = await client.crash()
    assert await client.beat("m", 4) == ShareHeartbeatResponse("m", 4, None)
    assert not client.asked
    assert client.group().members["m"].assigned == parts(0, 1)


async def test_new_partitions_get_a_state_and_are_assigned(client: ShareShard) -> None:
    await client.joined()
    client.topics = image(2, (T, "t", 3))
    assert (await client.beat("m", 3)).epoch == 4
    assert list(await client.create()) == [ShareKey("g", T, 2)]
    assert (await client.beat("m", 4)).assignment == parts(0, 1, 2)


async def test_members_share_partitions_and_those_of_a_silent_one_go_to_others(client: ShareShard) -> None:
    await client.joined()
    second = await client.beat("n")
    assert (second.epoch, len(second.assignment or ())) == (4, 1)
    first = await client.beat("m", 3)
    assert (first.assignment or frozenset()) | (second.assignment or frozenset()) == parts(0, 1)
    third = await client.beat("o")
    assert len(third.assignment or ()) >= 1
    with pytest.raises(KafkaError, match="maximum capacity of 3 members"):
        await client.beat("p")
    client.steady_ms += SETTINGS.share_session_timeout_ms - 1
    await client.beat("m", 4)
    client.steady_ms += 1
    client.shard.reset_timers()
    await until(lambda: list(client.group().members) == ["m"])
    await client.beat("m", 5)
    assert client.group().members["m"].assigned == parts(0, 1)


async def test_an_assignment_waits_for_the_interval_since_the_last_one() -> None:
    client = ShareShard(MemoryLog(), GroupSettings(share_assignment_interval_ms=1_000))
    await client.shard.load()
    assert await client.beat("m") == ShareHeartbeatResponse("m", 2, frozenset())
    await client.create()
    assert await client.beat("m", 2) == ShareHeartbeatResponse("m", 2, None)
    client.wall_ms += 1_000
    assert await client.beat("m", 2) == ShareHeartbeatResponse("m", 3, parts(0, 1))


async def test_requests_that_are_wrong_change_nothing(client: ShareShard) -> None:
    assert await refused(client.beat("m", 1)) == ErrorCode.GROUP_ID_NOT_FOUND
    await client.joined()
    before = client.log.records()
    assert await refused(client.beat("m", 9)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert await refused(client.beat("m", 1)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert await refused(client.beat("n", 3)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await refused(client.beat("n", -1)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert await refused(client.ask(AlterOffsets, {TopicIdPartition(T, 0): 1})) == ErrorCode.NON_EMPTY_GROUP
    assert await refused(client.ask(DeleteOffsets, [T])) == ErrorCode.NON_EMPTY_GROUP
    assert await refused(client.ask(DeleteStates)) == ErrorCode.NON_EMPTY_GROUP
    assert await refused(client.ask(DeleteStates, group="h")) == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.log.records() == before


async def test_offsets_are_set_in_a_new_epoch_and_a_group_begins_with_them(client: ShareShard) -> None:
    asked: StatesToCreate = await client.ask(AlterOffsets, {TopicIdPartition(T, 1): 7})
    assert asked.states == {ShareKey("g", T, 1): InitialState(2, 7)}
    await client.ask(StatesCreated, parts(1))
    assert client.group().state is ShareGroupState.EMPTY
    await client.beat("m")
    assert list(await client.create()) == [ShareKey("g", T, 0)]
    await client.beat("m", -1)
    again: StatesToCreate = await client.ask(AlterOffsets, {TopicIdPartition(T, 1): 9})
    assert again.states[ShareKey("g", T, 1)].state_epoch > asked.states[ShareKey("g", T, 1)].state_epoch


async def test_offsets_are_deleted_topic_by_topic(client: ShareShard) -> None:
    await client.joined()
    await client.beat("m", -1)
    found = await client.ask(DeleteOffsets, [T, U])
    assert found == {T: [ShareKey("g", T, 0), ShareKey("g", T, 1)]}
    client = await client.crash()
    assert await client.ask(DeleteOffsets, [T]) == found, "the first attempt was lost half-way"
    await client.ask(StatesDeleted, [T])
    assert await client.ask(DeleteOffsets, [T]) == {}
    await client.beat("m")
    assert len(client.asked[-1].states) == 2


async def test_a_group_is_deleted_after_its_states(client: ShareShard) -> None:
    await client.joined()
    await client.beat("m", -1)
    assert len(await client.ask(DeleteStates)) == 2
    assert len(await client.ask(DeleteStates)) == 2, "the first attempt was lost half-way"
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    client.shard.delete("g", done.set_result)
    assert await done == ErrorCode.NONE
    assert client.shard.group("g") is None
    client = await client.crash()
    assert client.shard.group("g") is None


async def test_deleted_topics_are_forgotten_but_not_those_created_again(client: ShareShard) -> None:
    client.topics = image(1, (T, "t", 1), (U, "u", 1))
    await client.beat("m", 0, "t", "u")
    await client.create()
    client.topics = image(2, (b"v" * 16, "t", 1), (U, "u", 1))
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    client.shard.forget_topics(["t", "u"], done.set_result)
    assert await done == ErrorCode.NONE
    assert set(client.group().states.initialized) == {U}, "u is there again, or was not deleted at all"
    client = await client.crash()
    assert set(client.group().states.initialized) == {U}
    await client.beat("m", 2)
    assert list(client.asked[-1].states) == [ShareKey("g", b"v" * 16, 0)]


async def test_groups_of_other_kinds_keep_their_name(client: ShareShard) -> None:
    await client.joined()
    join = JoinRequest(
        print,
        "",
        "new",
        None,
        "c",
        "/h",
        10_000,
        10_000,
        "consumer",
        [],
        member_id_required=False,
        can_skip_assignment=False,
    )
    with pytest.raises(KafkaError) as error:
        client.shard.membership.handle("g", join)
    assert error.value.code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    with pytest.raises(KafkaError) as error:
        client.shard.offsets.commit("g", "m", None, 3, [], lambda _: None)
    assert error.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    client.shard.offsets.commit("other", "", None, -1, [], lambda _: None)
    with pytest.raises(KafkaError, match="Group other is not a share group"):
        await client.ask(AlterOffsets, {TopicIdPartition(T, 0): 1}, group="other")


async def test_a_share_group_does_not_expire(client: ShareShard) -> None:
    await client.joined()
    await client.beat("m", -1)
    client.shard.expire("g", 1 << 60)
    assert client.group().state is ShareGroupState.EMPTY


async def test_a_write_that_fails_is_undone(client: ShareShard) -> None:
    await client.joined()
    client.log.hold = True
    beat = asyncio.create_task(client.beat("n"))
    await until(lambda: bool(client.log.held))
    client.log.release(WalFailed("gone"))
    assert await refused(beat) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(client.group().members) == ["m"]


async def test_records_are_written_in_apache_kafkas_order(client: ShareShard) -> None:
    await client.joined()
    written = [records.KINDS.parse_key(key) for key, _ in client.log.records()]
    kinds = [key.kind for key in written if key is not None]
    first = [records.MEMBER, records.EPOCH, records.TARGET, records.TARGET_EPOCH, records.CURRENT, records.STATES]
    assert kinds[:6] == first
    await client.beat("m", -1)
    assert client.group().assignment_epoch == client.group().epoch, "nothing is left to assign"
    before = len(client.log.records())
    client.shard.delete("g", lambda _: None)
    await asyncio.sleep(0)
    gone = [records.KINDS.parse_key(key) for key, _ in client.log.records()[before:]]
    assert [key.kind for key in gone if key is not None] == [records.TARGET_EPOCH, records.STATES, records.EPOCH]


async def test_a_thousand_members_share_a_hundred_partitions() -> None:
    client = ShareShard(MemoryLog(), GroupSettings(share_members_max=1000))
    await client.shard.load()
    client.topics = image(1, (T, "t", 100))
    for number in range(1000):
        await client.beat(f"{number:03}")
    await client.create()
    epochs = {f"{number:03}": (await client.beat(f"{number:03}", 2 + number)).epoch for number in range(1000)}
    with pytest.raises(KafkaError) as refused:
        await client.beat("late")
    assert refused.value.code == ErrorCode.GROUP_MAX_SIZE_REACHED
    for member_id in [*epochs][::2]:
        await client.beat(member_id, -1)
    heir = await client.crash()
    for member_id, epoch in [*epochs.items()][1::2]:
        await heir.beat(member_id, epoch)
    members = heir.group().members.values()
    assert len(members) == 500
    assert Counter(index for each in members for _, index in each.assigned) == dict.fromkeys(range(100), 5)
