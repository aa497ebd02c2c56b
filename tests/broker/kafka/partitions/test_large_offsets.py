"""Offsets of more than 31 and 32 bits, as clients see them: from memory, after a crash, and from objects.

The log begins with one batch that covers all smaller offsets, as log compaction leaves it.
"""

import contextlib
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import AppendResult, Partition
from anabranch.protocol.batch import TRANSACTIONAL_MASK, iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.records import ControlType, Record, build_batch, decode_records
from anabranch.s3stream.model import StreamBatch
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

T = 1_700_000_000_000
COMMITTED, ABORTING, OPEN = 5, 6, 7
"""Producers: of two batches without a transaction, of an aborted transaction, and of an open one."""


class Crash(Exception):
    """Ends a node without a clean stop."""


async def begin_at(partition: Partition, offset: int) -> None:
    """Append the batch that is left of all offsets before `offset`: it has the last one."""
    payload = build_batch([Record(b"k", b"left", T)], base_offset=offset - 1, leader_epoch=partition.leader_epoch)
    await partition.stream.append(StreamBatch(partition.stream.stream_id, 0, offset, 1, T, memoryview(payload)))


def batch(producer_id: int, sequence: int, at_ms: int, *, transactional: bool = False) -> bytearray:
    return batch_of(
        b"a",
        b"b",
        timestamp_ms=T + at_ms,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_MASK if transactional else 0,
    )


async def produce(client: RawClient, data: bytearray) -> int:
    answer = (await client.produce("t", [data])).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NONE
    return answer.base_offset


async def fill(client: RawClient, partition: Partition) -> None:
    """Append, from the end on: two records, an aborted transaction of three, two records, an open one of two."""
    await produce(client, batch(COMMITTED, 0, 1000))
    _ = partition.append(memoryview(batch(ABORTING, 0, 2000, transactional=True)), verify=lambda *_: True)
    _ = partition.append_marker(ControlType.ABORT, producer_id=ABORTING, producer_epoch=0, coordinator_epoch=0)
    await produce(client, batch(COMMITTED, 2, 3000))
    appended = partition.append(memoryview(batch(OPEN, 0, 4000, transactional=True)), verify=lambda *_: True)
    assert isinstance(appended, AppendResult)
    assert appended.durable is not None
    await appended.durable


async def look_up(client: RawClient, timestamp: int, isolation_level: int = 0) -> int:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topics = [ListOffsetsTopic(name="t", partitions=[wanted])]
    answer = (await client.call(ListOffsetsRequest(isolation_level=isolation_level, topics=topics), 7)).topics[0]
    assert answer.partitions[0].error_code == ErrorCode.NONE
    offset: int = answer.partitions[0].offset
    return offset


async def expect_all(node: Node, client: RawClient, begin: int, *, start: int) -> None:
    """Check what clients see of a log that `fill` filled from `begin` on and that now starts at `start`."""
    end = begin + 9
    assert [await look_up(client, timestamp) for timestamp in (-2, -1)] == [start, end]
    assert await look_up(client, -1, isolation_level=1) == begin + 7
    assert await look_up(client, T + 1001) == begin + 1
    assert await look_up(client, T + 2001) == begin + 3
    wanted = FetchPartition(partition=0, fetch_offset=begin, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[wanted])]
    response = await client.call(FetchRequest(topics=topics, isolation_level=1, max_bytes=1 << 20), 12)
    data = response.responses[0].partitions[0]
    assert (data.log_start_offset, data.last_stable_offset, data.high_watermark) == (start, begin + 7, end)
    batches = list(iterate_batches(data.records))
    assert [header.base_offset for header, _ in batches] == [begin, begin + 2, begin + 4, begin + 5]
    assert [record.offset for _, payload in batches for record in decode_records(payload)] == list(
        range(begin, begin + 7)
    )
    assert [(each.producer_id, each.first_offset) for each in data.aborted_transactions] == [(ABORTING, begin + 2)]
    epoch = OffsetForLeaderPartition(partition=0, leader_epoch=batches[0][0].partition_leader_epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[epoch])])
    assert (await client.call(request, 4)).topics[0].partitions[0].end_offset == end
    assert await produce(client, batch(COMMITTED, 0, 1000)) == begin, "a retry"
    assert await produce(client, batch(COMMITTED, 2, 3000)) == begin + 5, "a retry"
    assert node.serving.topics.partition("t", 0).high_watermark == end


@pytest.mark.parametrize("begin", [2**31 - 4, 2**32 - 4], ids=["31 bits", "32 bits"])
@pytest.mark.parametrize("crash", [False, True], ids=["clean stop", "crash"])
async def test_clients_see_the_same_offsets_wherever_the_data_is(tmp_path: Path, crash: bool, begin: int) -> None:
    with contextlib.suppress(Crash):
        async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            partition = node.serving.topics.partition("t", 0)
            await begin_at(partition, begin)
            await fill(client, partition)
            await expect_all(node, client, begin, start=0)
            if crash:
                raise Crash
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert node.serving.storage.stats.recovered_records == (6 if crash else 0)
        await expect_all(node, client, begin, start=0)
        wanted = DeleteRecordsPartition(partition_index=0, offset=begin)
        request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=1000)
        assert (await client.call(request, 2)).topics[0].partitions[0].low_watermark == begin
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await expect_all(node, client, begin, start=begin)
        durable = node.serving.topics.partition("t", 0).append_marker(
            ControlType.COMMIT, producer_id=OPEN, producer_epoch=0, coordinator_epoch=0
        )
        assert durable is not None
        await durable
        assert await look_up(client, -1, isolation_level=1) == begin + 10
