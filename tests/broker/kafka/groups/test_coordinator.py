import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

import pytest

from anabranch.broker.kafka.coordination import shards
from anabranch.broker.kafka.coordination.log import KeyValue, ReplayedBatch
from anabranch.broker.kafka.coordination.shards import REMEMBERED_CHARACTERS_MAX, java_hash, partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.records import offset_record
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StoreError
from anabranch.wal.interface import WalFailed
from tests.support.memory_log import MemoryLog, MemoryTopic
from tests.support.waiting import until

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("abc", 96354), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("😀", 1772899), ("é", 233)],
)
def test_the_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_a_group_belongs_to_the_partition_its_id_hashes_to() -> None:
    assert partition_of("hello", 50) == 99162322 % 50
    assert partition_of("polygenelubricants", 50) == 0
    assert java_hash("my-group") == -1906497762
    assert partition_of("my-group", 50) == 12


@pytest.mark.parametrize("length", [8, REMEMBERED_CHARACTERS_MAX, REMEMBERED_CHARACTERS_MAX + 1, 10_000])
def test_ids_of_any_length_have_a_partition(length: int) -> None:
    name = "hello" + "\0" * (length - 5)
    expected = abs(java_hash(name)) % 50
    assert [partition_of(name, 50), partition_of(name, 50)] == [expected, expected]
    assert partition_of(name, 7) == abs(java_hash(name)) % 7, "nothing of another number of partitions is remembered"


@asynccontextmanager
async def running(
    topic: MemoryTopic, *, existing_topics: Collection[str] | None = None
) -> AsyncIterator[GroupCoordinator]:
    groups = GroupCoordinator(topic, GroupSettings(), now_ms=lambda: 1_000, new_id=lambda: "id")
    groups.start(existing_topics)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(groups.run())
        yield groups
        groups.close()
        task.cancel()


def code(groups: GroupCoordinator, group_id: str = "g") -> ErrorCode:
    try:
        groups.shard(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def settled(groups: GroupCoordinator) -> None:
    await until(lambda: code(groups) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def offset_topics(groups: GroupCoordinator) -> set[str]:
    """Return the topics that the group `g` has offsets of."""
    offsets = groups.shard("g").offsets.of("g")
    return set() if offsets is None else set(offsets.topics)


def committed(offset: int) -> Sequence[KeyValue]:
    return [offset_record("g", T0, CommittedOffset(offset, 1, "", 1))]


async def test_without_the_topic_there_is_no_coordinator_until_somebody_asks() -> None:
    topic = MemoryTopic([MemoryLog()], exists=False)
    async with running(topic) as groups:
        assert not groups.is_open
        assert code(groups) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert list(groups.groups()) == []
        topic.replace([MemoryLog()])
        assert groups.is_coordinator_of("g")
        assert code(groups) is ErrorCode.NONE, "a new topic has nothing to load"
    assert code(groups) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_groups_are_loaded_before_they_are_served() -> None:
    async with running(MemoryTopic([MemoryLog([committed(1), committed(2)])])) as groups:
        assert code(groups) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(KafkaError):
            list(groups.groups())
        await settled(groups)
        offsets = groups.shard("g").offsets.of("g")
        assert offsets is not None
        assert offsets.get("t", 0) == CommittedOffset(2, 1, "", 1)
        assert [group.group_id for group in groups.groups()] == ["g"]


async def test_groups_of_other_nodes_are_refused() -> None:
    async with running(MemoryTopic([MemoryLog(), None])) as groups:
        names = {index: next(name for name in "abcdef" if partition_of(name, 2) == index) for index in (0, 1)}
        assert code(groups, names[0]) is ErrorCode.NONE
        assert code(groups, names[1]) is ErrorCode.NOT_COORDINATOR
        assert groups.is_coordinator_of(names[0])
        assert not groups.is_coordinator_of(names[1])
        with pytest.raises(KafkaError) as refused:
            groups.shard_with_id("")
        assert refused.value.code is ErrorCode.INVALID_GROUP_ID


class FailingLog(MemoryLog):
    """Fails its first replay."""

    def __init__(self) -> None:
        super().__init__([committed(1)])
        self.replays = 0

    async def replay(self) -> AsyncIterator[ReplayedBatch]:
        self.replays += 1
        if self.replays == 1:
            raise StoreError("not now")
        async for batch in super().replay():
            yield batch


async def test_a_log_that_cannot_be_read_now_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "CHECK_S", 0.001)
    log = FailingLog()
    async with running(MemoryTopic([log])) as groups:
        await settled(groups)
        assert code(groups) is ErrorCode.NONE
        assert log.replays == 2


async def test_a_damaged_log_makes_its_groups_unavailable_and_no_others() -> None:
    damaged = MemoryLog([[KeyValue(committed(1)[0].key, b"\x00\x03")]])
    names = [next(name for name in "abcdef" if partition_of(name, 2) == index) for index in (0, 1)]
    async with running(MemoryTopic([damaged, MemoryLog()])) as groups:
        await until(lambda: code(groups, names[0]) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert code(groups, names[0]) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert code(groups, names[1]) is ErrorCode.NONE


async def test_a_log_that_grows_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "COMPACT_BYTES_MIN", 1)
    log = MemoryLog([committed(offset) for offset in range(10)])
    async with running(MemoryTopic([log])) as groups:
        await settled(groups)
        await groups.compact()
        assert log.records() == committed(9)
        await groups.compact()
        assert log.next_offset == 11, "nothing is left to compact"


async def test_a_rewrite_that_the_log_fails_under_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage reports the failure to the node, and the node stops in order."""
    monkeypatch.setattr(shards, "COMPACT_BYTES_MIN", 1)
    log = MemoryLog([committed(offset) for offset in range(10)])
    async with running(MemoryTopic([log])) as groups:
        await settled(groups)
        log.hold = True
        rewriting = asyncio.create_task(groups.compact())
        await until(lambda: bool(log.held))
        log.release(WalFailed("the device is gone"))
        await rewriting


async def test_old_offsets_are_dropped_everywhere() -> None:
    log = MemoryLog([committed(1)])
    topic = MemoryTopic([log])
    groups = GroupCoordinator(topic, GroupSettings(), now_ms=lambda: 10**12, new_id=lambda: "id")
    groups.start()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(groups.run())
        await settled(groups)
        await groups.expire()
        assert list(groups.groups()) == []
        task.cancel()


async def test_offsets_are_dropped_by_a_clock_of_their_own() -> None:
    """Expiry uses a clock that ignores jumps: a jump of the wall clock would drop the offsets of all idle groups."""
    log = MemoryLog([committed(1)])
    groups = GroupCoordinator(
        MemoryTopic([log]), GroupSettings(), now_ms=lambda: 10**12, expiry_now_ms=lambda: 1_000, new_id=lambda: "id"
    )
    groups.start()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(groups.run())
        await settled(groups)
        await groups.expire()
        assert [group.group_id for group in groups.groups()] == ["g"]
        task.cancel()


async def test_deleted_topics_are_forgotten() -> None:
    log = MemoryLog([committed(1)])
    async with running(MemoryTopic([log])) as groups:
        await settled(groups)
        (outcome,) = groups.forget_topics(["t"])
        assert offset_topics(groups) == {"t"}, "until that is durable"
        assert await outcome is ErrorCode.NONE
        assert not offset_topics(groups)


class SlowLog(MemoryLog):
    """Its replay waits for `allowed`."""

    def __init__(self) -> None:
        super().__init__([committed(1)])
        self.allowed = asyncio.Event()
        self.began = False

    async def replay(self) -> AsyncIterator[ReplayedBatch]:
        self.began = True
        await self.allowed.wait()
        async for batch in super().replay():
            yield batch


async def test_topics_deleted_while_their_groups_are_loaded_are_forgotten() -> None:
    log = SlowLog()
    async with running(MemoryTopic([log])) as groups:
        groups.forget_topics(["t"])
        log.allowed.set()
        await settled(groups)
        await until(lambda: not offset_topics(groups))
        assert log.records()[-1].value is None, "also after a restart"


@pytest.mark.parametrize("closed", ["before its load", "during its load"])
async def test_a_closed_coordinator_loads_nothing(closed: str) -> None:
    """At a stop it would take each topic that was created since the start for a deleted one, and delete its offsets."""
    log = SlowLog()
    groups = GroupCoordinator(MemoryTopic([log]), GroupSettings(), now_ms=lambda: 1_000, new_id=lambda: "id")
    groups.start(existing_topics=())
    async with asyncio.TaskGroup() as tasks:
        if closed == "before its load":
            groups.close()
        task = tasks.create_task(groups.run())
        if closed == "during its load":
            await until(lambda: log.began)
            groups.close()
        log.allowed.set()
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
    assert log.records() == committed(1)
    assert code(groups) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_offsets_of_topics_that_were_deleted_before_the_start_are_forgotten() -> None:
    """A crash has come between the deletion and the records about it."""
    u0 = TopicPartition("u", 0)
    log = MemoryLog([committed(1), [offset_record("g", u0, CommittedOffset(2, 1, "", 1))]])
    async with running(MemoryTopic([log]), existing_topics={"u", "v"}) as groups:
        await settled(groups)
        await until(lambda: offset_topics(groups) == {"u"})
        assert log.records()[-1] == offset_record("g", T0, None)


async def test_without_its_topic_the_coordinator_starts_over() -> None:
    topic = MemoryTopic([MemoryLog([committed(1)])])
    async with running(topic) as groups:
        await settled(groups)
        topic.replace(None)
        assert code(groups) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        topic.replace([MemoryLog()])
        assert code(groups) is ErrorCode.NONE
        assert list(groups.groups()) == []
