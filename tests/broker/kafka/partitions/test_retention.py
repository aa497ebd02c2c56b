"""Retention deletes old records from the start of the log, and nothing else."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.retention import PARTITIONS_IN_FLIGHT, enforce, enforce_all
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.records import ControlType, Record, build_batch
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

T = 1_700_000_000_000


async def create(client: RawClient, **configs: str) -> None:
    values = [CreatableTopicConfig(name=name.replace("_", "."), value=configs[name]) for name in configs]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=values)
    assert (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0].error_code == 0


async def fill(client: RawClient, *ages_ms: int) -> None:
    """One batch of two records each, the newer one so old at T."""
    for age_ms in ages_ms:
        response = await client.produce("t", [batch_of(b"a", b"b", timestamp_ms=T - age_ms - 1)])
        assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_batches_go_up_to_the_first_young_one(tmp_path: Path, flushed: bool) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms="1000")
        await fill(client, 5000, 1001, 1000, 3000, 0)
        if flushed:
            await node.serving.storage.flush()
        partition = node.serving.topics.partition("t", 0)
        assert await enforce(partition, T) == 4
        assert await enforce(partition, T) == 0
        assert partition.log_start_offset == 4, "the old one behind the young one waits"
        assert await enforce(partition, T + 1001) == 6
        assert (partition.log_start_offset, partition.high_watermark) == (10, 10)
        await fill(client, 0)
        assert partition.high_watermark == 12


@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "compact", "retention_ms": "1"}, {"retention_ms": "-1"}])
async def test_nothing_goes_unasked(tmp_path: Path, configs: dict[str, str]) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, **configs)
        keyed = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)])
        assert (await client.produce("t", [keyed])).responses[0].partition_responses[0].error_code == 0
        assert await enforce(node.serving.topics.partition("t", 0), T) == 0


async def test_it_happens_by_itself(tmp_path: Path) -> None:
    settings = {"topic_retention_ms": 1000, "topic_retention_check_interval_ms": 20}
    async with running_node(tmp_path, **settings) as node, raw_client(node.bootstrap) as client:
        await create(client)
        await fill(client, 0)
        partition = node.serving.topics.partition("t", 0)
        await until(lambda: partition.log_start_offset == 2, pause_s=0.01)


WEEK_MS = 7 * 24 * 3_600_000
OLD = 1
"""A timestamp of 1970: a producer may set it, and its records are old at once."""


async def send(client: RawClient, *timestamps_ms: int) -> None:
    """One batch whose records have these timestamps, or none where it is -1."""
    batch = build_batch([Record(key=b"k", value=b"v", timestamp_ms=timestamp) for timestamp in timestamps_ms])
    response = await client.produce("t", [batch])
    assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_records_without_a_timestamp_are_as_old_as_their_object(tmp_path: Path, flushed: bool) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms=str(WEEK_MS))
        await send(client, -1, -1)
        await send(client, -1)
        if flushed:
            await node.serving.storage.flush()
        partition = node.serving.topics.partition("t", 0)
        assert await enforce(partition, node.serving.now_ms()) == 0
        assert await partition.offset_for_time(0) is None, "a search by time does not find them"
        await node.serving.storage.flush()
        assert await enforce(partition, node.serving.now_ms() + WEEK_MS - 60_000) == 0
        assert await enforce(partition, node.serving.now_ms() + WEEK_MS + 1) == 3


@pytest.mark.parametrize("stored", ["log", "object", "joined", "restarted", "cloned"])
@pytest.mark.parametrize("timestamps", [(-1,), (-1, OLD)])
async def test_records_without_a_timestamp_stay_beside_old_ones(
    tmp_path: Path, stored: str, timestamps: tuple[int, ...]
) -> None:
    """The records before them are deleted, whether or not they have a separate batch, block or object."""
    name = "u" if stored == "cloned" else "t"
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms=str(WEEK_MS))
        await send(client, OLD, OLD)
        await send(client, *timestamps)
        await send(client, OLD)
        if stored != "log":
            await node.serving.storage.flush()
        if stored == "joined":
            await send(client, OLD)
            await node.serving.storage.flush()
            _ = await node.upkeep.compaction.run_once()
        if stored == "cloned":
            _ = await node.moves.clone("t", "u")
        if stored != "restarted":
            await expect_only_old_to_go(node, name)
    if stored == "restarted":
        async with running_node(tmp_path) as node:
            await expect_only_old_to_go(node, name)


async def expect_only_old_to_go(node: Node, name: str) -> None:
    partition, now_ms = node.serving.topics.partition(name, 0), node.serving.now_ms
    end = partition.high_watermark
    assert await enforce(partition, now_ms()) == 2
    assert await enforce(partition, now_ms()) == 0
    await node.serving.storage.flush()
    assert await enforce(partition, now_ms() + WEEK_MS - 60_000) == 0
    assert await enforce(partition, now_ms() + WEEK_MS + 1) == end - 2


@pytest.mark.parametrize("version", [0, 2])
async def test_what_a_snapshot_does_not_tell_is_looked_for(tmp_path: Path, version: int) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms=str(WEEK_MS))
        for timestamp in (OLD, -1, OLD):
            await send(client, timestamp)
        await node.serving.storage.flush()
        partition = node.serving.topics.partition("t", 0)
        stream, encode_snapshot = partition.stream, partition.stream.snapshot_source
        assert encode_snapshot is not None
        snapshot = encode_snapshot()
        stream.snapshot = bytes([version]) + snapshot[1:17] + snapshot[25:] if version else b""
        again = Partition("t", partition.topic_id, 0, stream, partition.config, partition.work, node.serving.now_ms)
        assert again.untimed_end == 3
        assert await enforce(again, node.serving.now_ms()) == 1


async def test_where_every_record_has_a_timestamp_no_data_is_read(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms=str(WEEK_MS))
        for timestamp in (OLD, 0, OLD):
            await send(client, timestamp)
        await node.serving.storage.flush()
        calls = next(iter(node.stores.values())).calls
        gets = calls.get
        assert await enforce(node.serving.topics.partition("t", 0), node.serving.now_ms()) == 3
        assert calls.get == gets


@pytest.mark.parametrize("stored", ["log", "object", "restarted"])
async def test_an_open_transaction_holds_nothing_up(tmp_path: Path, stored: str) -> None:
    """As in Kafka, whose retention ends at the high watermark, whether or not transactions are open before it."""
    open_fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_MASK}
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms="1000")
        batch = batch_of(b"open", timestamp_ms=T - 5000, **open_fields)
        _ = node.serving.topics.partition("t", 0).append(memoryview(batch), verify=lambda *_: True)
        await fill(client, 5000, 0)
        if stored != "log":
            await node.serving.storage.flush()
        if stored != "restarted":
            await expect_what_is_left_of_a_transaction(node)
    if stored == "restarted":
        async with running_node(tmp_path) as node:
            await expect_what_is_left_of_a_transaction(node)
    async with running_node(tmp_path) as node:
        partition = node.serving.topics.partition("t", 0)
        assert (partition.log_start_offset, partition.last_stable_offset, partition.high_watermark) == (3, 6, 6)


async def expect_what_is_left_of_a_transaction(node: Node) -> None:
    partition = node.serving.topics.partition("t", 0)
    assert await enforce(partition, T) == 3
    assert (partition.log_start_offset, partition.last_stable_offset, partition.high_watermark) == (3, 3, 5)
    durable = partition.append_marker(ControlType.ABORT, producer_id=7, producer_epoch=0, coordinator_epoch=0)
    assert durable is not None
    await durable
    assert partition.last_stable_offset == 6


BATCH_BYTES = 300_000
"""Two of them do not fit a block."""


async def fill_bytes(client: RawClient, batches: int) -> None:
    for number in range(batches):
        value = number.to_bytes(2) * (BATCH_BYTES // 2)
        response = await client.produce("t", [batch_of(value, timestamp_ms=T)])
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_the_oldest_go_by_size_and_never_below_it(tmp_path: Path) -> None:
    """Kafka's rule: a segment is deleted while the log without it is not smaller than the limit."""
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_bytes="700000")
        await fill_bytes(client, 6)
        partition = node.serving.topics.partition("t", 0)
        assert await enforce(partition, T) == 0, "what is only in the log stays, as Kafka's active segment does"
        await node.serving.storage.flush()
        assert await enforce(partition, T) == 3
        assert await enforce(partition, T) == 0
        assert (partition.log_start_offset, partition.high_watermark) == (3, 6)
        await fill_bytes(client, 2)
        assert await enforce(partition, T) == 2, "what is not in objects yet counts"
        await node.serving.topic_commands.alter("t", lambda own: own | {"retention.bytes": "0"})
        assert await enforce(partition, T) == 1
        assert (partition.log_start_offset, partition.high_watermark) == (6, 8)


async def test_the_stricter_of_age_and_size_counts(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_bytes="100000000", retention_ms="1000")
        await fill(client, 5000, 5000, 0)
        await node.serving.storage.flush()
        partition = node.serving.topics.partition("t", 0)
        assert await enforce(partition, T) == 4
        await node.serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "-1", "retention.bytes": "0"})
        assert await enforce(partition, T) == 2


class Slow:
    """Stub of a partition that shows how many partitions are checked concurrently."""

    def __init__(self, name: str, gate: asyncio.Event, seen: list[str]) -> None:
        self.name, self.gate, self.seen = name, gate, seen
        self.config, self.stream = self, self
        self.start_offset, self.confirmed_offset = 0, 1
        self.deletable, self.retention_ms, self.retention_bytes, self.untimed_end = True, 0, -1, -1

    async def offset_for_age(self, *_: object) -> None:
        self.seen.append(self.name)
        await self.gate.wait()
        raise CatalogUnavailable(f"no answer for {self.name}")


async def test_a_few_partitions_are_looked_over_at_a_time_and_one_that_fails_stops_no_other() -> None:
    gate, seen = asyncio.Event(), list[str]()
    partitions = [Slow(f"t-{number}", gate, seen) for number in range(3 * PARTITIONS_IN_FLIGHT)]
    async with asyncio.TaskGroup() as group:
        _ = group.create_task(enforce_all(cast("list[Partition]", partitions), lambda: T))
        await until(lambda: len(seen) == PARTITIONS_IN_FLIGHT, pause_s=0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(seen) == PARTITIONS_IN_FLIGHT
        gate.set()
    assert sorted(seen) == sorted(each.name for each in partitions)


async def test_a_limit_that_changes_while_records_are_uploaded_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are uploaded before they are deleted, which takes as long as the store is away."""
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms="1000")
        await fill(client, 5000)
        partition = node.serving.topics.partition("t", 0)
        upload = Stream.commit

        async def upload_slowly(stream: Stream, end_offset: int) -> None:
            await upload(stream, end_offset)
            await node.serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "-1"})

        with monkeypatch.context() as patch:
            patch.setattr(Stream, "commit", upload_slowly)
            assert await enforce(partition, T) == 0
        assert partition.log_start_offset == 0
