"""Streams groups in a shard over a log in memory: crashes, offsets, other kinds of groups, deletion."""

import asyncio
from typing import Any

import pytest

from anabranch.broker.kafka.configs.streams import StreamsConfigs
from anabranch.broker.kafka.coordination.log import LogWriter
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.requests import ClassicHeartbeat, JoinRequest, MemberProtocol
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.kafka.groups.streams.group import StreamsGroup, StreamsGroupState
from anabranch.broker.kafka.groups.streams.requests import StreamsHeartbeat, StreamsHeartbeatResponse
from anabranch.broker.kafka.groups.streams.tasks import Task, TaskAssignment
from anabranch.broker.kafka.groups.streams.topology import Subtopology, Topology
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.wal.interface import WalFailed
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

TOPICS = TopicImage.of(1, [TopicMetadata(b"t" * 16, "in", 2)])
CONFIGS = StreamsConfigs(initial_rebalance_delay_ms=0, assignment_interval_ms=0)
ALL = TaskAssignment(frozenset({Task("0", 0), Task("0", 1)}))


class StreamsShard:
    """A shard with one streams group."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.steady_ms = 1_000
        self.shard = GroupShard(
            LogWriter(log),
            GroupSettings(),
            now_ms=lambda: 5_000,
            steady_ms=lambda: self.steady_ms,
            topics=lambda: TOPICS,
            streams_configs=lambda _: CONFIGS,
        )

    async def beat(self, member_id: str, epoch: int = 0, **fields: Any) -> StreamsHeartbeatResponse:
        if epoch == 0:
            topology = Topology(1, (Subtopology("0", ("in",)),))
            fields = {"topology": topology, "process_id": member_id, "rebalance_timeout_ms": 300, **fields}
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.shard.membership.handle("g", StreamsHeartbeat(member_id, epoch, ticket=respond_to(done), **fields))
        response = await done
        assert isinstance(response, StreamsHeartbeatResponse)
        return response

    def group(self) -> StreamsGroup:
        group = self.shard.group("g")
        assert isinstance(group, StreamsGroup)
        return group

    async def crash(self) -> "StreamsShard":
        other = StreamsShard(self.log.crash())
        await other.shard.load()
        self.shard.close()
        return other


@pytest.fixture
async def client() -> StreamsShard:
    client = StreamsShard(MemoryLog())
    await client.shard.load()
    return client


async def test_a_group_survives_a_crash(client: StreamsShard) -> None:
    assert (await client.beat("a")).assignment == ALL
    after = await client.crash()
    assert after.group().state is StreamsGroupState.STABLE
    assert (await after.beat("a", 2)).assignment is None
    assert after.group().members["a"].assigned.assignment == ALL


async def test_a_heartbeat_whose_write_fails_changes_nothing(client: StreamsShard) -> None:
    await client.beat("a")
    client.log.hold = True
    beat = asyncio.create_task(client.beat("b"))
    await until(lambda: bool(client.log.held))
    client.log.release(WalFailed("gone"))
    with pytest.raises(KafkaError) as error:
        await beat
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.group().members.keys() == {"a"}


async def test_an_empty_group_is_deleted(client: StreamsShard) -> None:
    await client.beat("a")
    with pytest.raises(KafkaError) as error:
        client.shard.delete("g", lambda _: None)
    assert error.value.code is ErrorCode.NON_EMPTY_GROUP
    await client.beat("a", -1)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    client.shard.delete("g", done.set_result)
    assert await done is ErrorCode.NONE
    after = await client.crash()
    assert after.shard.group("g") is None


async def test_members_of_other_protocols_are_refused(client: StreamsShard) -> None:
    await client.beat("a")
    with pytest.raises(KafkaError) as error:
        client.shard.membership.handle("g", ConsumerHeartbeat("m", 0, rebalance_timeout_ms=1, topic_names=["in"]))
    assert error.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_streams_group_takes_no_other_group_over(client: StreamsShard) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    heartbeat = ConsumerHeartbeat("m", 0, rebalance_timeout_ms=1, topic_names=["in"], owned=frozenset())
    heartbeat.ticket = respond_to(done)
    client.shard.membership.handle("g", heartbeat)
    await done
    with pytest.raises(KafkaError, match="Group g is not a streams group"):
        await client.beat("a")


def join(done: "asyncio.Future[Any]") -> JoinRequest:
    return JoinRequest(
        respond_to(done), "", "new", None, "c", "/h", 10, 10, "consumer", [MemberProtocol("range", b"")], False, True
    )


async def test_an_empty_streams_group_becomes_a_classic_group(client: StreamsShard) -> None:
    await client.beat("a")
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with pytest.raises(KafkaError) as error:
        client.shard.membership.handle("g", join(done))
    assert error.value.code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.shard.membership.handle("g", ClassicHeartbeat("a", None, 2)) is ErrorCode.UNKNOWN_MEMBER_ID
    await client.beat("a", -1)
    client.shard.membership.handle("g", join(done))
    client.steady_ms += 5_000
    client.shard.reset_timers()
    assert (await done).error is ErrorCode.NONE
    after = await client.crash()
    group = after.shard.group("g")
    assert group is None or group.group_type == "classic"
    assert not any(key[:2] == b"\x00\x11" for key, _ in after.shard.live_records())


async def test_an_empty_classic_group_becomes_a_streams_group(client: StreamsShard) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    client.shard.membership.handle("g", join(done))
    client.steady_ms += 5_000
    client.shard.reset_timers()
    await done
    client.steady_ms += 20
    client.shard.reset_timers()
    await until(lambda: client.shard.is_settled)
    assert (await client.beat("a")).assignment == ALL
    assert client.group().group_type == "streams"
    after = await client.crash()
    assert after.group().members.keys() == {"a"}
