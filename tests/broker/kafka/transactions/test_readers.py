"""Readers of committed data while the log's start moves and the list of aborted transactions shrinks behind it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.retention import enforce
from anabranch.protocol.batch import TRANSACTIONAL_MASK, iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from anabranch.protocol.records import ControlType, Record, build_batch
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

PRODUCER = 7
T = 1_700_000_000_000
READ_COMMITTED = 1
Mover = Callable[[Node, RawClient, Partition, int], Awaitable[None]]


class Held:
    """Holds reads of a partition's first object until the test releases them."""

    def __init__(self) -> None:
        self.waiting = 0
        self.gate = asyncio.Event()

    async def begin(self, node: Node, partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
        store = next(iter(node.stores.values()))
        (first, *_) = await node.serving.catalog.find_ranges(partition.stream.stream_id, 0, 1, limit=1)
        held = node.upkeep.compaction_context.key(first.object.object_id)
        get = store.get

        async def hold(key: str, start: int, end: int) -> memoryview:
            if key == held:
                self.waiting += 1
                await self.gate.wait()
            return await get(key, start, end)

        monkeypatch.setattr(store, "get", hold)


async def create(client: RawClient, **configs: str) -> None:
    values = [CreatableTopicConfig(name=name.replace("_", "."), value=configs[name]) for name in configs]
    topic = CreatableTopic(name="t", num_partitions=2, replication_factor=1, configs=values)
    assert (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0].error_code == 0


async def abort_one(partition: Partition) -> None:
    """Append an aborted transaction: one batch and its marker."""
    record = Record(key=b"k", value=b"aborted", timestamp_ms=T)
    batch = build_batch(
        [record], producer_id=PRODUCER, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL_MASK
    )
    _ = partition.append(memoryview(batch), verify=lambda *_: True)
    durable = partition.append_marker(ControlType.ABORT, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0)
    assert durable is not None
    await durable


async def snapshot(node: Node, client: RawClient, partition: Partition) -> None:
    """Take a snapshot of the partition, which drops entries before the start."""
    record = build_batch([Record(key=b"later", value=b"committed", timestamp_ms=T + 10_000)])
    response = await client.produce("t", [record], partition=partition.index)
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    await node.serving.storage.flush()


async def by_delete_records(_node: Node, client: RawClient, partition: Partition, end: int) -> None:
    wanted = DeleteRecordsPartition(partition_index=partition.index, offset=end)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=1000)
    assert (await client.call(request, 2)).topics[0].partitions[0].low_watermark == end


async def by_retention(node: Node, _client: RawClient, partition: Partition, end: int) -> None:
    await node.serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "1000"})
    # The marker bears the time of its append, which is long after the records'.
    assert await enforce(partition, 2 * T) == end
    assert partition.log_start_offset == end


def request_for(*partitions: int) -> FetchRequest:
    wanted = [FetchPartition(partition=at, fetch_offset=0, partition_max_bytes=1 << 20) for at in partitions]
    return FetchRequest(
        topics=[FetchTopic(topic="t", partitions=wanted)],
        max_wait_ms=20_000,
        min_bytes=1,
        max_bytes=4 << 20,
        isolation_level=READ_COMMITTED,
    )


def partitions_of(response: FetchResponse) -> dict[int, PartitionData]:
    return {each.partition_index: each for topic in response.responses for each in topic.partitions}


def bases_of(data: PartitionData) -> list[int]:
    records = data.records or b""
    assert isinstance(records, bytes | memoryview), "decoded records are one buffer"
    return [header.base_offset for header, _ in iterate_batches(records)]


def expect_fitting_offsets(data: PartitionData) -> None:
    assert data.log_start_offset <= data.last_stable_offset <= data.high_watermark


@pytest.mark.parametrize("move", [by_delete_records, by_retention])
@pytest.mark.parametrize("source", ["memory", "objects"])
async def test_no_answer_shows_aborted_records_that_the_start_has_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, move: Mover
) -> None:
    """One partition was read, the other is still loaded: when the answer leaves, the list of the first is gone."""
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client)
        _ = await client.produce("t", [batch_of(b"x")], partition=1)
        await node.serving.storage.flush()
        if source == "objects":
            await abort_one(node.serving.topics.partition("t", 0))
    async with (
        running_node(tmp_path) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        partition = node.serving.topics.partition("t", 0)
        if source == "memory":
            await abort_one(partition)
        held, storage = Held(), node.serving.storage
        await held.begin(node, node.serving.topics.partition("t", 1), monkeypatch)
        client.send(request_for(0, 1), 12)
        await until(lambda: held.waiting > 0 and (source == "memory" or storage.block_cache_bytes > 0))
        await storage.flush()
        await move(node, other, partition, partition.high_watermark)
        await snapshot(node, other, partition)
        assert partition.transactions.aborted_count == 0
        held.gate.set()
        _, response = await client.receive(FetchRequest, 12)
        data = partitions_of(response)
        assert (data[0].error_code, bases_of(data[0])) == (ErrorCode.OFFSET_OUT_OF_RANGE, [])
        assert (data[1].error_code, bases_of(data[1])) == (ErrorCode.NONE, [0])
        expect_fitting_offsets(data[1])


@pytest.mark.parametrize("move", [by_delete_records, by_retention])
async def test_a_load_that_the_start_passes_shows_nothing_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, move: Mover
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client)
        await abort_one(node.serving.topics.partition("t", 0))
    async with (
        running_node(tmp_path) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        partition, held = node.serving.topics.partition("t", 0), Held()
        await held.begin(node, partition, monkeypatch)
        client.send(request_for(0), 12)
        await until(lambda: held.waiting > 0)
        await move(node, other, partition, partition.high_watermark)
        await snapshot(node, other, partition)
        assert partition.transactions.aborted_count == 0
        held.gate.set()
        _, response = await client.receive(FetchRequest, 12)
        data = partitions_of(response)[0]
        assert (data.error_code, bases_of(data)) == (ErrorCode.OFFSET_OUT_OF_RANGE, [])


async def test_what_compaction_vacates_during_a_load_is_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client)
        await abort_one(node.serving.topics.partition("t", 0))
    async with (
        running_node(tmp_path) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        partition = node.serving.topics.partition("t", 0)
        (entry,) = partition.transactions.aborted
        held = Held()
        await held.begin(node, partition, monkeypatch)
        client.send(request_for(0), 12)
        await until(lambda: held.waiting > 0)
        partition.vacate([entry[:3]])
        await snapshot(node, other, partition)
        held.gate.set()
        _, response = await client.receive(FetchRequest, 12)
        data = partitions_of(response)[0]
        assert bases_of(data)[:2] == [0, 1]
        assert [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()] == [(PRODUCER, 0)]
        expect_fitting_offsets(data)
