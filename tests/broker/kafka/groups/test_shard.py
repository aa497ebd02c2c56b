"""A shard over a log in memory: times of answers, contents of the log, recovery after a crash."""

import asyncio
from collections.abc import Sequence

import pytest

from anabranch.broker.kafka.coordination import log as log_module
from anabranch.broker.kafka.coordination.log import KeyValue, LogWriter
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.classic.state_table import ClassicGroupState
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.records import offset_record
from anabranch.broker.kafka.groups.requests import (
    NEVER_MS,
    ClassicHeartbeat,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    MemberProtocol,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import encode_versioned
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.embedded.consumer_protocol import ConsumerProtocolSubscription
from anabranch.s3stream.errors import StorageStopped
from anabranch.wal.interface import WalFailed
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

DAY_MS = 86_400_000
SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)


def loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


class ClassicShard:
    """One shard, its log, a wall clock."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.wall_ms = 10 * DAY_MS
        self.ahead_ms = 0
        """Time by which the clock of deadlines is ahead of the loop's."""
        self.shard = GroupShard(
            LogWriter(log), SETTINGS, now_ms=lambda: self.wall_ms, steady_ms=lambda: loop_ms() + self.ahead_ms
        )
        self.generation = -1
        self.member_id = ""

    async def crash(self) -> "ClassicShard":
        """Return the shard as a new process would load it."""
        other = ClassicShard(self.log.crash())
        other.wall_ms = self.wall_ms
        other.generation, other.member_id = self.generation, self.member_id
        await other.shard.load()
        self.shard.close()
        return other

    def join(
        self, *, topics: Sequence[str] = ("t",), session_ms: int = 10_000, new_member_id: str = "m"
    ) -> asyncio.Future[JoinResponse]:
        ticket: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
        metadata = encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)
        request = JoinRequest(
            ticket=respond_to(ticket),
            member_id=self.member_id,
            new_member_id=new_member_id,
            group_instance_id=None,
            client_id="c",
            client_host="/127.0.0.1",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[MemberProtocol("range", metadata)],
            member_id_required=False,
            can_skip_assignment=True,
        )
        self.shard.membership.handle("g", request)
        return ticket

    def sync(self, assignment: bytes = b"all") -> asyncio.Future[SyncResponse]:
        ticket: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        request = SyncRequest(
            respond_to(ticket), self.member_id, None, self.generation, None, None, {self.member_id: assignment}
        )
        self.shard.membership.handle("g", request)
        return ticket

    def heartbeat(self) -> ErrorCode:
        return self.shard.membership.handle("g", ClassicHeartbeat(self.member_id, None, self.generation))

    async def enter(self, *, session_ms: int = 10_000) -> None:
        """Become the only member."""
        joined = await self.join(session_ms=session_ms)
        self.member_id, self.generation = joined.member_id, joined.generation
        assert (await self.sync()).assignment == b"all"

    def commit(
        self, *keys: TopicPartition, offset: int = 1, member: bool = False, expires_ms: int = -1
    ) -> asyncio.Future[ErrorCode]:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        committed = CommittedOffset(offset, 3, "note", self.wall_ms, expires_ms)
        member_id, generation = (self.member_id, self.generation) if member else ("", -1)
        self.shard.offsets.commit("g", member_id, None, generation, [(key, committed) for key in keys], done.set_result)
        return done

    def offset(self, key: TopicPartition) -> CommittedOffset | None:
        offsets = self.shard.offsets.of("g")
        return None if offsets is None else offsets.get(*key)

    def state(self) -> str | None:
        group = self.shard.group("g")
        return None if group is None else group.state


@pytest.fixture
async def client() -> ClassicShard:
    client = ClassicShard(MemoryLog())
    await client.shard.load()
    return client


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


async def test_an_assignment_is_handed_out_when_it_is_durable(client: ClassicShard) -> None:
    joined = await client.join()
    client.member_id, client.generation = joined.member_id, joined.generation
    client.log.hold = True
    synced = client.sync()
    await asyncio.sleep(0)
    assert not synced.done()
    client.log.release()
    assert (await synced).assignment == b"all"
    assert client.state() is ClassicGroupState.STABLE


async def test_a_failed_write_of_an_assignment_is_told_and_the_group_rebalances(client: ClassicShard) -> None:
    joined = await client.join()
    client.member_id, client.generation = joined.member_id, joined.generation
    client.log.hold = True
    synced = client.sync()
    await asyncio.sleep(0)
    client.log.release(WalFailed("broken"))
    assert (await synced).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.state() is ClassicGroupState.PREPARING


async def test_members_and_offsets_survive_a_crash(client: ClassicShard) -> None:
    await client.enter()
    assert await client.commit(T0, T1, offset=7, member=True) is ErrorCode.NONE
    client = await client.crash()
    assert client.heartbeat() is ErrorCode.NONE
    assert (await client.sync()).assignment == b"all"
    assert client.offset(T1) == CommittedOffset(7, 3, "note", client.wall_ms)
    assert await client.commit(T0, offset=8, member=True) is ErrorCode.NONE
    client = await client.crash()
    assert client.offset(T0) == CommittedOffset(8, 3, "note", client.wall_ms)
    assert client.offset(T1) == CommittedOffset(7, 3, "note", client.wall_ms)


async def test_what_was_not_durable_is_gone_after_a_crash(client: ClassicShard) -> None:
    assert await client.commit(T0, offset=1) is ErrorCode.NONE
    client.log.hold = True
    pending = client.commit(T0, offset=2)
    await asyncio.sleep(0)
    assert client.offset(T0) == CommittedOffset(1, 3, "note", client.wall_ms), "a commit shows when it is durable"
    assert not pending.done()
    client = await client.crash()
    assert client.offset(T0) == CommittedOffset(1, 3, "note", client.wall_ms)


async def test_a_silent_member_is_dropped_by_the_timer(client: ClassicShard) -> None:
    await client.enter(session_ms=300)
    await until(lambda: client.state() is ClassicGroupState.EMPTY, pause_s=0.005)
    assert client.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_refused_log_refuses_commits(client: ClassicShard) -> None:
    client.log.refusal = StorageStopped("closing")
    assert await client.commit(T0) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert client.offset(T0) is None


async def test_commits_of_strangers_are_refused(client: ClassicShard) -> None:
    with pytest.raises(KafkaError) as refused:
        client.shard.offsets.commit("g", "m", None, 1, [], print)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(KafkaError) as refused:
        client.shard.offsets.commit("g", "m", None, 1, [], print, knows_member_epochs=False)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION
    await client.enter()
    with pytest.raises(KafkaError) as refused:
        await client.commit(T0)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


async def delete(client: ClassicShard) -> ErrorCode:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    client.shard.delete("g", done.set_result)
    return await done


async def test_a_deleted_group_stays_deleted_with_commits_that_were_on_their_way(client: ClassicShard) -> None:
    await client.enter()
    with pytest.raises(KafkaError) as refused:
        await delete(client)
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    await client.commit(T0, member=True)
    client.shard.membership.handle("g", LeaveRequest([LeavingMember(client.member_id, None)]))
    client.log.hold = True
    late = client.commit(T1)
    await asyncio.sleep(0)
    client.log.hold = False
    assert await delete(client) is ErrorCode.NONE
    assert await late is ErrorCode.NONE, "it was durable before it was deleted"
    assert client.state() is None
    client = await client.crash()
    assert client.state() is None
    assert client.offset(T1) is None
    with pytest.raises(KafkaError) as refused:
        await delete(client)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


async def delete_offsets(client: ClassicShard, *keys: TopicPartition) -> list[ErrorCode]:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    errors = client.shard.offsets.delete("g", keys, done.set_result)
    assert await done is ErrorCode.NONE
    return errors


async def test_offsets_of_topics_that_nobody_reads_can_be_deleted(client: ClassicShard) -> None:
    await client.enter()
    await client.commit(T0, U0, member=True)
    assert await delete_offsets(client, T0, U0, TopicPartition("x", 0)) == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert client.offset(U0) is None
    client = await client.crash()
    assert client.offset(U0) is None
    assert client.offset(T0) is not None


async def test_offsets_of_a_deleted_topic_are_forgotten(client: ClassicShard) -> None:
    await client.commit(T0, T1, U0)
    client.shard.forget_topics({"t"}, lambda _: None)
    await asyncio.sleep(0)
    assert client.offset(T0) is None
    assert client.offset(U0) is not None
    client = await client.crash()
    assert client.offset(T1) is None


async def test_offsets_are_deleted_however_many_they_are(client: ClassicShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "WRITE_BYTES_MAX", 100)
    for key in (T0, T1, U0):
        await client.commit(key)
    assert await delete_offsets(client, T0, T1, U0) == [ErrorCode.NONE] * 3
    assert client.offset(T1) is None
    for key in (T0, T1, U0):
        await client.commit(key)
    assert await delete(client) is ErrorCode.NONE
    client = await client.crash()
    assert client.state() is None


async def test_deadlines_come_with_a_clock_that_is_moved(client: ClassicShard) -> None:
    await client.enter(session_ms=600_000)
    assert loop_ms() < client.shard.wake_ms <= loop_ms() + 600_000
    client.ahead_ms = 500_000
    client.shard.reset_timers()
    await until(lambda: client.shard.is_settled)
    assert client.state() == "Stable"
    client.ahead_ms = 600_001
    assert not client.shard.is_settled
    client.shard.reset_timers()
    await until(lambda: client.shard.is_settled)
    assert client.state() == "Empty"
    assert client.shard.wake_ms == NEVER_MS


async def expire(client: ClassicShard) -> None:
    client.shard.expire("g", client.wall_ms)
    await asyncio.sleep(0)


async def test_offsets_without_a_group_expire_by_their_commit(client: ClassicShard) -> None:
    await client.commit(T0)
    client.wall_ms += 6 * DAY_MS
    await client.commit(U0)
    client.wall_ms += 1 * DAY_MS
    await expire(client)
    assert client.offset(T0) is None
    assert client.offset(U0) is not None
    client.wall_ms += 6 * DAY_MS
    await expire(client)
    assert client.state() is None
    client = await client.crash()
    assert client.state() is None


async def test_offsets_of_a_group_expire_when_it_is_empty_or_has_left_the_topic(client: ClassicShard) -> None:
    await client.enter()
    await client.commit(T0, U0, member=True)
    client.wall_ms += 8 * DAY_MS
    await expire(client)
    assert client.offset(T0) is not None, "somebody reads it"
    assert client.offset(U0) is None
    client.shard.membership.handle("g", LeaveRequest([LeavingMember(client.member_id, None)]))
    await asyncio.sleep(0)
    client.wall_ms += 6 * DAY_MS
    await expire(client)
    assert client.offset(T0) is not None, "the group is empty for six days"
    client = await client.crash()
    client.wall_ms += 1 * DAY_MS
    await expire(client)
    assert client.state() is None


async def test_an_expiry_time_of_its_own_comes_first(client: ClassicShard) -> None:
    await client.commit(T0, expires_ms=client.wall_ms + 5)
    await client.commit(U0)
    client.wall_ms += 5
    await expire(client)
    assert client.offset(T0) is None
    assert client.offset(U0) is not None


async def test_a_commit_on_its_way_does_not_expire(client: ClassicShard) -> None:
    await client.commit(T0, offset=1)
    client.wall_ms += 8 * DAY_MS
    client.log.hold = True
    late = client.commit(T0, offset=2)
    await asyncio.sleep(0)
    await expire(client)
    client.log.release()
    assert await late is ErrorCode.NONE
    assert client.offset(T0) == CommittedOffset(2, 3, "note", client.wall_ms)


async def test_a_rewritten_log_holds_the_same_state(client: ClassicShard) -> None:
    foreign = KeyValue(b"\x00\x18\x00\x01g", b"x")
    _ = client.log.append([foreign, KeyValue(b"\x00\x18\x00\x01h", b"x"), KeyValue(b"\x00\x18\x00\x01h", None)])
    client = await client.crash()
    await client.enter()
    for offset in range(20):
        await client.commit(T0, offset=offset, member=True)
    await client.shard.writer.rewrite(client.shard.live_records)
    assert len(client.log.records()) == 3
    assert foreign in client.log.records()
    client = await client.crash()
    assert client.heartbeat() is ErrorCode.NONE
    assert client.offset(T0) == CommittedOffset(19, 3, "note", client.wall_ms)


async def test_a_rewrite_during_a_rebalance_stores_what_was_durable(client: ClassicShard) -> None:
    """A generation whose assignment no member has received must not be restored as if it had one."""
    await client.enter()
    joined = await client.join(topics=["t", "u"])
    assert joined.generation == client.generation + 1
    await client.shard.writer.rewrite(client.shard.live_records)
    client = await client.crash()
    assert client.heartbeat() is ErrorCode.NONE
    assert (await client.sync()).assignment == b"all"


async def test_closing_tells_those_who_wait(client: ClassicShard) -> None:
    joined = await client.join()
    client.member_id, client.generation = joined.member_id, joined.generation
    client.log.hold = True
    synced = client.sync()
    client.shard.close()
    assert (await synced).error is ErrorCode.NOT_COORDINATOR
    client.log.release()


async def test_an_answer_to_a_lost_connection_is_dropped(client: ClassicShard) -> None:
    ticket = client.join()
    ticket.cancel()
    await until(lambda: client.state() is ClassicGroupState.COMPLETING)


async def test_a_damaged_log_is_an_error(client: ClassicShard) -> None:
    record = offset_record("g", T0, CommittedOffset(1, 1, "", 1))
    _ = client.log.append([KeyValue(record.key, b"\x00\x03\x00")])
    with pytest.raises(Exception, match="OffsetCommitValue"):
        await client.crash()
