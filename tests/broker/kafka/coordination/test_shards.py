"""Shards that come and go with the partitions that the node leads, over logs in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from anabranch.broker.kafka.coordination import shards as shards_module
from anabranch.broker.kafka.coordination.log import KeyValue, LogWriter, ReplayedBatch
from anabranch.broker.kafka.coordination.shards import Shards, partition_of
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StoreError
from anabranch.wal.interface import WalFailed
from tests.support.memory_log import MemoryLog, MemoryTopic
from tests.support.waiting import until


class KeyedShard:
    """A shard whose state is the set of keys in its log."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer
        self.loaded = False
        self.unreadable = False
        self.damage = ""
        self.closed = False
        self.keys: set[bytes] = set()

    async def load(self) -> None:
        found = [record.key async for batch in self.writer.log.replay() for record in batch.records]
        assert not self.closed, "a load ends with its shard"
        self.keys.update(found)
        self.writer.written_bytes = len(found)
        self.loaded = True

    async def rewrite(self) -> None:
        await self.writer.rewrite(lambda: [KeyValue(key, b"") for key in sorted(self.keys)])

    def close(self) -> None:
        self.closed, self.loaded = True, False
        self.keys.clear()
        self.writer.close()


class SlowLog(MemoryLog):
    """Its replay waits for `allowed`."""

    def __init__(self, *keys: bytes) -> None:
        super().__init__([[KeyValue(key, b"")] for key in keys])
        self.allowed = asyncio.Event()
        self.replays = 0

    async def replay(self) -> AsyncIterator[ReplayedBatch]:
        self.replays += 1
        await self.allowed.wait()
        async for batch in super().replay():
            yield batch


def log_of(*keys: bytes) -> MemoryLog:
    return MemoryLog([[KeyValue(key, b"")] for key in keys])


@asynccontextmanager
async def running(partitions: Sequence[MemoryLog | None]) -> AsyncIterator[tuple[MemoryTopic, Shards[KeyedShard]]]:
    topic = MemoryTopic(partitions)
    shards = Shards(topic, "keys", KeyedShard)
    shards.start()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(shards.run())
        yield topic, shards
        shards.close()
        task.cancel()


def code(call: Callable[[], object]) -> ErrorCode:
    try:
        call()
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def loaded(shards: Shards[KeyedShard], index: int) -> KeyedShard:
    await until(lambda: code(lambda: shards.shard_at(index)) is ErrorCode.NONE)
    return shards.shard_at(index)


def name_in(partition: int, count: int) -> str:
    return next(name for name in "abcdefgh" if partition_of(name, count) == partition)


async def test_partitions_come_and_go_one_by_one() -> None:
    first, second = log_of(b"a"), log_of(b"b")
    async with running([first, None]) as (topic, shards):
        kept = await loaded(shards, 0)
        assert code(lambda: shards.shard_at(1)) is ErrorCode.NOT_COORDINATOR
        assert not shards.leads_shard_of(name_in(1, 2))
        topic.lead(1, second)
        assert shards.leads_shard_of(name_in(1, 2))
        assert code(lambda: shards.shard_of(name_in(1, 2))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await loaded(shards, 1)).keys == {b"b"}
        topic.lead(1, None)
        assert code(lambda: shards.shard_at(1)) is ErrorCode.NOT_COORDINATOR
        assert list(shards.led_shards()) == [kept], "the other goes on"
        shards.sync()
        assert list(shards.led_shards()) == [kept]


async def test_a_partition_that_was_opened_anew_has_a_new_shard() -> None:
    async with running([log_of(b"a")]) as (topic, shards):
        former = await loaded(shards, 0)
        topic.lead(0, log_of(b"a", b"b"))
        assert former.closed
        assert (await loaded(shards, 0)).keys == {b"a", b"b"}


async def test_a_load_under_way_ends_with_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other partitions get its place at once, however long the store takes."""
    monkeypatch.setattr(shards_module, "LOADS_AT_ONCE_MAX", 1)
    slow = SlowLog(b"a")
    async with running([slow, log_of(b"b")]) as (topic, shards):
        await until(lambda: slow.replays == 1)
        assert code(lambda: shards.shard_at(1)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        topic.lead(0, None)
        await loaded(shards, 1)
        slow.allowed.set()
        topic.lead(0, slow)
        assert (await loaded(shards, 0)).keys == {b"a"}
        assert slow.replays == 2


async def test_a_partition_may_go_and_come_before_its_load_has_begun() -> None:
    slow = SlowLog(b"a")
    async with running([None]) as (topic, shards):
        for log in (slow, None, slow, None, slow):
            topic.lead(0, log)
        await until(lambda: slow.replays == 1)
        for log in (None, slow):
            topic.lead(0, log)
        slow.allowed.set()
        assert (await loaded(shards, 0)).keys == {b"a"}
        assert slow.replays == 2


async def test_a_slow_load_delays_no_partition_that_comes_later() -> None:
    slow = SlowLog(b"a")
    async with running([slow, None]) as (topic, shards):
        await until(lambda: slow.replays == 1)
        topic.lead(1, log_of(b"b"))
        await loaded(shards, 1)
        slow.allowed.set()


class FailingLog(MemoryLog):
    """Its first replay fails."""

    def __init__(self, failure: Exception) -> None:
        super().__init__([[KeyValue(b"a", b"")]])
        self.failures = [failure]

    async def replay(self) -> AsyncIterator[ReplayedBatch]:
        if self.failures:
            raise self.failures.pop()
        async for batch in super().replay():
            yield batch


@pytest.mark.parametrize("failure", [StoreError("not now"), WalFailed("gone")], ids=str)
async def test_a_load_that_failed_is_repeated(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "CHECK_S", 0.001)
    async with running([FailingLog(failure)]) as (_, shards):
        await loaded(shards, 0)


@pytest.mark.parametrize("stage", ["before it begins", "while it becomes durable"])
async def test_a_rewrite_under_way_ends_with_its_partition(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "COMPACT_BYTES_MIN", 1)
    log = log_of(b"a", b"a")
    async with running([log]) as (topic, shards):
        shard = await loaded(shards, 0)
        log.hold = True
        if stage == "before it begins":
            shard.writer.write([KeyValue(b"b", b"")])
            await until(lambda: bool(log.held))
        compacting = asyncio.create_task(shards.compact())
        await until(lambda: bool(log.held))
        await asyncio.sleep(0)
        topic.lead(0, None)
        log.hold = False
        log.release()
        await compacting
        assert [record.key for record in log.records()][:2] == [b"a", b"a"], "nothing was deleted"
        topic.lead(0, log)
        found = (await loaded(shards, 0)).keys
        assert found == ({b"a", b"b"} if stage == "before it begins" else {b"a"})


async def test_an_unknown_topic_has_no_coordinator() -> None:
    async with running([log_of(b"a")]) as (topic, shards):
        former = await loaded(shards, 0)
        topic.replace(None)
        assert former.closed
        assert not shards.is_open
        for call in (lambda: shards.shard_at(0), lambda: shards.shard_of("a"), lambda: shards.count):
            assert code(call) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        topic.replace([None, MemoryLog(), MemoryLog()])
        assert (shards.count, len(shards.led_shards())) == (3, 2)
        assert code(lambda: shards.shard_at(3)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_ids_belong_to_other_partitions_when_the_topic_has_grown(capsys: pytest.CaptureFixture[str]) -> None:
    """As in Kafka, where that is not supported either. The shards that there are go on."""
    first, second = MemoryLog(), MemoryLog()
    async with running([first]) as (topic, shards):
        former = shards.shard_of("a")
        topic.replace([first, second, None])
        assert not former.closed
        assert shards.led_shards()[0] is former
        assert shards.shard_of(name_in(1, 3)) is not former
        assert code(lambda: shards.shard_of(name_in(2, 3))) is ErrorCode.NOT_COORDINATOR
    assert "the number of partitions has changed" in capsys.readouterr().out


async def test_a_node_that_stops_leads_no_more_partitions() -> None:
    async with running([MemoryLog(), None]) as (topic, shards):
        shards.close()
        topic.lead(1, log_of(b"b"))
        assert len(shards.led_shards()) == 1
        assert code(lambda: shards.shard_at(0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
