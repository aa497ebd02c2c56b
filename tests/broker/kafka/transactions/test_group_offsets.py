"""Offsets that are part of transactions, in a group's shard over a log in memory."""

import asyncio
from collections.abc import Sequence

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue, LogWriter
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode
from anabranch.s3stream.errors import StorageFull
from anabranch.wal.interface import Durable
from tests.support.memory_log import MemoryLog

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
P, Q = Producer(7, 0), Producer(8, 0)


class Group:
    """One group's shard and its log."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.shard = GroupShard(LogWriter(log), GroupSettings(), now_ms=lambda: 1_000)

    async def crash(self) -> "Group":
        """The shard as a new process would load it."""
        other = Group(self.log.crash())
        await other.shard.load()
        self.shard.close()
        return other

    async def commit(self, key: TopicPartition, offset: int, producer: Producer | None = None) -> ErrorCode:
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        committed = CommittedOffset(offset, -1, "", 1_000)
        self.shard.offsets.commit("g", "", None, -1, [(key, committed)], done.set_result, producer)
        return await done

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """Append a marker and apply it, as the node does once the marker is durable."""
        _ = self.log.append_marker(producer, committed=committed)
        self.shard.offsets.end_transaction(producer.producer_id, committed=committed)

    def offset(self, key: TopicPartition) -> int | None:
        offsets = self.shard.offsets.of("g")
        found = None if offsets is None else offsets.get(*key)
        return None if found is None else found.offset

    def unstable(self, key: TopicPartition) -> bool:
        offsets = self.shard.offsets.of("g")
        return offsets is not None and offsets.is_unstable(*key)


@pytest.fixture
async def group() -> Group:
    made = Group(MemoryLog())
    await made.shard.load()
    return made


@pytest.mark.parametrize("crashes", [0, 1, 2])
@pytest.mark.parametrize("committed", [True, False])
async def test_a_marker_decides(group: Group, crashes: int, *, committed: bool) -> None:
    await group.commit(T0, 1)
    assert await group.commit(T0, 5, P) is ErrorCode.NONE
    assert await group.commit(T1, 6, Q) is ErrorCode.NONE
    if crashes:
        group = await group.crash()
    assert (group.offset(T0), group.unstable(T0), group.unstable(T1)) == (1, True, True)
    group.mark(P, committed=committed)
    if crashes > 1:
        group = await group.crash()
    assert (group.offset(T0), group.unstable(T0)) == (5 if committed else 1, False)
    assert (group.offset(T1), group.unstable(T1)) == (None, True)


async def test_a_later_commit_without_a_transaction_wins(group: Group) -> None:
    await group.commit(T0, 5, P)
    await group.commit(T0, 9)
    group.mark(P, committed=True)
    assert group.offset(T0) == 9
    assert (await group.crash()).offset(T0) == 9


async def test_an_earlier_commit_on_its_way_does_not(group: Group) -> None:
    group.log.hold = True
    plain = asyncio.ensure_future(group.commit(T0, 9))
    await asyncio.sleep(0)
    transactional = asyncio.ensure_future(group.commit(T0, 5, P))
    await asyncio.sleep(0)
    group.log.hold = False
    group.log.release()
    await asyncio.gather(plain, transactional)
    group.mark(P, committed=True)
    assert group.offset(T0) == 5
    assert (await group.crash()).offset(T0) == 5


async def test_a_rewrite_keeps_what_is_undecided(group: Group) -> None:
    await group.commit(T0, 1)
    await group.commit(T0, 5, P)
    await group.shard.writer.rewrite(group.shard.live_records, group.shard.offsets.open_transactions)
    group = await group.crash()
    assert (group.offset(T0), group.unstable(T0)) == (1, True)
    group.mark(P, committed=True)
    assert group.offset(T0) == 5


class FailingLog(MemoryLog):
    """A log that refuses the next append of a transaction's records if told so."""

    refuses_transactional = False

    def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        if producer is not None and self.refuses_transactional:
            self.refuses_transactional = False
            raise StorageFull("full")
        return super().append(records, producer)


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_rewrite_that_stops_half_way_changes_no_transaction(crashes: bool) -> None:
    """The live records are in the log a second time then, behind the open transaction's."""
    log = FailingLog()
    group = Group(log)
    await group.shard.load()
    await group.commit(T0, 1)
    await group.commit(T0, 5, P)
    log.refuses_transactional = True
    with pytest.raises(StorageFull):
        await group.shard.writer.rewrite(group.shard.live_records, group.shard.offsets.open_transactions)
    if crashes:
        group = await group.crash()
    assert (group.offset(T0), group.unstable(T0)) == (1, True)
    group.mark(P, committed=True)
    assert group.offset(T0) == 5
    assert (await group.crash()).offset(T0) == 5


@pytest.mark.parametrize("crashes", [False, True])
async def test_the_next_rewrite_after_one_that_stopped_half_way_keeps_what_is_undecided(crashes: bool) -> None:
    log = FailingLog()
    group = Group(log)
    await group.shard.load()
    await group.commit(T0, 1)
    await group.commit(T0, 5, P)
    log.refuses_transactional = True
    with pytest.raises(StorageFull):
        await group.shard.writer.rewrite(group.shard.live_records, group.shard.offsets.open_transactions)
    if crashes:
        group = await group.crash()
    await group.shard.writer.rewrite(group.shard.live_records, group.shard.offsets.open_transactions)
    group = await group.crash()
    group.mark(P, committed=True)
    assert group.offset(T0) == 5
    assert (await group.crash()).offset(T0) == 5


async def test_a_group_with_undecided_offsets_does_not_expire(group: Group) -> None:
    await group.commit(T0, 5, P)
    group.shard.expire("g", 1_000)
    await asyncio.sleep(0)
    group.mark(P, committed=True)
    assert group.offset(T0) == 5


async def test_a_deleted_group_takes_its_undecided_offsets_along(group: Group) -> None:
    await group.commit(T0, 5, P)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    group.shard.delete("g", done.set_result)
    assert await done is ErrorCode.NONE
    group.mark(P, committed=True)
    assert group.offset(T0) is None
    assert (await group.crash()).offset(T0) is None


async def test_a_full_log_makes_the_client_ask_again(group: Group) -> None:
    group.log.refusal = StorageFull("full")
    assert await group.commit(T0, 5, P) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert not group.unstable(T0)
