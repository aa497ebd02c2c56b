"""READ_COMMITTED: nothing from the first open transaction on is shown, from memory or objects, by whatever request.

The log has a batch, the batch of an open transaction, and one more without a transaction.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.protocol.batch import TRANSACTIONAL_MASK, iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.records import ControlType
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

T = 1_700_000_000_000
PRODUCER = 7
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, MAX_TIMESTAMP = -1, -3


async def produce(client: RawClient, value: bytes, at_ms: int) -> None:
    response = await client.produce("t", [batch_of(value, timestamp_ms=T + at_ms)])
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def fill(client: RawClient, partition: Partition) -> None:
    await produce(client, b"before", 0)
    fields = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_MASK}
    _ = partition.append(memoryview(batch_of(b"open", timestamp_ms=T + 1000, **fields)), verify=lambda *_: True)
    await produce(client, b"behind", 2000)


@asynccontextmanager
async def filled(tmp_path: Path, source: str) -> AsyncIterator[tuple[Node, RawClient]]:
    """A node whose Fetch finds the log in the log cache, in the block cache, or in objects."""
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        await fill(client, node.serving.topics.partition("t", 0))
        if source == "log cache":
            yield node, client
            return
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert node.serving.topics.partition("t", 0).stream.read_cached(0, 1) is None
        if source == "block cache":
            assert await fetched(client, 0, READ_UNCOMMITTED) == [0, 1, 2]
        yield node, client


def request_for(offset: int, isolation_level: int, *, max_wait_ms: int = 0) -> FetchRequest:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        topics=[FetchTopic(topic="t", partitions=[wanted])],
        isolation_level=isolation_level,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
    )


def bases_of(response: FetchResponse) -> list[int]:
    data = response.responses[0].partitions[0]
    assert data.error_code == ErrorCode.NONE
    assert isinstance(data.records, bytes | memoryview), "decoded records are one buffer"
    return [header.base_offset for header, _ in iterate_batches(data.records)]


async def fetched(client: RawClient, offset: int, isolation_level: int) -> list[int]:
    return bases_of(await client.call(request_for(offset, isolation_level), 12))


async def look_up(client: RawClient, timestamp: int, isolation_level: int) -> int:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        isolation_level=isolation_level, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
    )
    answer = (await client.call(request, 7)).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE
    offset: int = answer.offset
    return offset


async def end(node: Node) -> None:
    """Abort the open transaction."""
    durable = node.serving.topics.partition("t", 0).append_marker(
        ControlType.ABORT, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0
    )
    assert durable is not None
    await durable


@pytest.mark.parametrize("source", ["log cache", "block cache", "objects"])
async def test_a_fetch_ends_at_the_last_stable_offset(tmp_path: Path, source: str) -> None:
    async with filled(tmp_path, source) as (node, client):
        cold_reads = node.serving.storage.stats.cold_reads
        assert await fetched(client, 0, READ_COMMITTED) == [0]
        assert node.serving.storage.stats.cold_reads - cold_reads == (0 if source == "log cache" else 1)
        assert [await fetched(client, offset, READ_COMMITTED) for offset in (1, 2, 3)] == [[], [], []]
        assert await fetched(client, 0, READ_UNCOMMITTED) == [0, 1, 2]
        await end(node)
        assert await fetched(client, 0, READ_COMMITTED) == [0, 1, 2, 3]


async def test_a_fetch_that_waits_is_not_answered_with_what_is_not_stable(tmp_path: Path) -> None:
    async with filled(tmp_path, "log cache") as (node, client), raw_client(node.bootstrap) as other:
        partition = node.serving.topics.partition("t", 0)
        client.send(request_for(1, READ_COMMITTED, max_wait_ms=20_000), 12)
        await until(lambda: partition.has_listeners)
        await produce(other, b"more", 3000)
        assert await fetched(other, 1, READ_UNCOMMITTED) == [1, 2, 3]
        assert partition.has_listeners, "nothing of it is stable"
        await end(node)
        _, response = await client.receive(FetchRequest, 12)
        assert bases_of(response) == [1, 2, 3, 4]
        aborted = response.responses[0].partitions[0].aborted_transactions
        assert [(each.producer_id, each.first_offset) for each in aborted] == [(PRODUCER, 1)]


async def test_a_fetch_that_waits_ends_empty_while_nothing_is_stable(tmp_path: Path) -> None:
    async with filled(tmp_path, "log cache") as (_, client):
        assert bases_of(await client.call(request_for(1, READ_COMMITTED, max_wait_ms=20), 12)) == []


@pytest.mark.parametrize("source", ["log cache", "objects"])
async def test_look_ups_end_at_the_last_stable_offset(tmp_path: Path, source: str) -> None:
    """As in Kafka, where the offset found for a time, the largest included, must lie below the last fetchable one."""
    wanted = (LATEST, T, T + 1000, T + 2000, MAX_TIMESTAMP)
    async with filled(tmp_path, source) as (node, client):
        assert [await look_up(client, each, READ_COMMITTED) for each in wanted] == [1, 0, -1, -1, -1]
        assert [await look_up(client, each, READ_UNCOMMITTED) for each in wanted] == [3, 0, 1, 2, 2]
        await end(node)
        assert [await look_up(client, each, READ_COMMITTED) for each in wanted] == [4, 0, 1, 2, 3]
