"""ListOffsets and OffsetForLeaderEpoch against a real node."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.model import StreamBatch
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

T = 1_700_000_000_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


async def look_up(client: RawClient, timestamp: int, *, version: int = 11, epoch: int = -1) -> tuple[int, int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])])
    response = await client.call(request, version)
    answer = response.topics[0].partitions[0]
    return answer.error_code, answer.offset, answer.timestamp


async def fill(client: RawClient) -> None:
    """Offsets 0 to 8 in three batches at T, T+1000, T+500, a record a millisecond."""
    for at, compression in ((0, Compression.NONE), (1000, Compression.ZSTD), (500, Compression.LZ4)):
        batch = batch_of(b"a", b"b", b"c", timestamp_ms=T + at, compression=compression)
        assert (await client.produce("t", [batch])).responses[0].partition_responses[0].error_code == 0


EXPECTED = {
    -1: (0, 9, -1),
    -2: (0, 0, -1),
    -3: (0, 5, T + 1002),
    -4: (0, 0, -1),
    -5: (0, -1, -1),
    -6: (0, -1, -1),
    0: (0, 0, T),
    T: (0, 0, T),
    T + 1: (0, 1, T + 1),
    T + 3: (0, 3, T + 1000),
    T + 1001: (0, 4, T + 1001),
    T + 1003: (0, -1, -1),
}


@pytest.mark.parametrize("flushed", [False, True])
async def test_every_kind_of_look_up(node: Node, client: RawClient, flushed: bool) -> None:
    await fill(client)
    if flushed:
        await node.serving.storage.flush()
    found = {timestamp: await look_up(client, timestamp) for timestamp in EXPECTED}
    assert found == EXPECTED


async def test_look_ups_work_from_objects_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        await fill(client)
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        found = {timestamp: await look_up(client, timestamp) for timestamp in EXPECTED}
        assert found == EXPECTED


async def test_an_empty_partition(client: RawClient) -> None:
    assert await look_up(client, -1) == (0, 0, -1)
    assert await look_up(client, -2) == (0, 0, -1)
    assert await look_up(client, -3) == (0, -1, -1)
    assert await look_up(client, 0) == (0, -1, -1)


async def test_special_offsets_need_their_versions(client: RawClient) -> None:
    for timestamp, version in ((-3, 7), (-4, 8), (-5, 9), (-6, 11)):
        assert (await look_up(client, timestamp, version=version - 1))[0] == ErrorCode.UNSUPPORTED_VERSION
        assert (await look_up(client, timestamp, version=version))[0] == ErrorCode.NONE


async def test_every_version_encodes(client: RawClient) -> None:
    await fill(client)
    for version in range(1, 12):
        assert await look_up(client, -1, version=version) == (0, 9, -1)
        assert await look_up(client, T + 1, version=version) == (0, 1, T + 1)


async def test_a_trimmed_log(client: RawClient) -> None:
    await fill(client)
    partition = DeleteRecordsPartition(partition_index=0, offset=6)
    response = await client.call(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[partition])]), 2)
    assert response.topics[0].partitions[0].low_watermark == 6
    assert await look_up(client, -2) == (0, 6, -1)
    assert await look_up(client, 0) == (0, 6, T + 500)
    assert await look_up(client, -3) == (0, 8, T + 502), "the largest timestamp is gone with its batch"


async def test_leader_epochs_are_checked_and_remembered_over_restarts(tmp_path: Path) -> None:
    ends: list[tuple[int, int]] = []
    for _ in range(3):
        async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            epoch = node.serving.topics.partition("t", 0).leader_epoch
            assert (await look_up(client, -1, epoch=epoch))[0] == ErrorCode.NONE
            assert (await look_up(client, -1, epoch=epoch + 1))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
            assert (await look_up(client, -1, epoch=epoch - 1))[0] == ErrorCode.FENCED_LEADER_EPOCH
            await client.produce("t", [batch_of(b"a", b"b")])
            ends.append((epoch, 2 + 2 * len(ends)))
            for known, end in ends:
                assert await end_of_epoch(client, known) == (0, known, end)
            assert await end_of_epoch(client, epoch + 1) == (0, -1, -1)
            assert await end_of_epoch(client, ends[0][0] - 1) == (0, ends[0][0] - 1, 0)


async def end_of_epoch(client: RawClient, epoch: int) -> tuple[int, int, int]:
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[partition])])
    answer = (await client.call(request, 4)).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


async def test_a_start_inside_a_batch_hides_only_what_is_before_it(client: RawClient) -> None:
    await fill(client)
    trim = DeleteRecordsPartition(partition_index=0, offset=1)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[trim])], timeout_ms=1000)
    await client.call(request, 2)
    assert await look_up(client, T) == (0, 1, T + 1), "the first of the batch is gone, the others are not"


async def test_a_start_that_moves_during_a_look_up_hides_what_it_passes(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client)
    await node.serving.storage.flush()
    starts, search = [1, 4, 8], Stream.offset_for_time

    async def search_and_trim(stream: Stream, timestamp_ms: int, from_offset: int = 0) -> StreamBatch | None:
        found = await search(stream, timestamp_ms, from_offset)
        if starts:
            await stream.trim(starts.pop(0))
        return found

    monkeypatch.setattr(Stream, "offset_for_time", search_and_trim)
    assert await look_up(client, T) == (0, 1, T + 1)
    assert await look_up(client, T) == (0, 8, T + 502), "1 to 7 were deleted before the answer"


async def test_a_start_that_moves_while_a_batch_is_looked_into_hides_no_more_of_it(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(client)
    await node.serving.storage.flush()
    first_at = Partition.first_record_at

    async def look_and_trim(partition: Partition, batch: StreamBatch, timestamp_ms: int) -> tuple[int, int]:
        found = await first_at(partition, batch, timestamp_ms)
        await partition.stream.trim(4)
        return found

    monkeypatch.setattr(Partition, "first_record_at", look_and_trim)
    assert await look_up(client, T + 1000) == (0, 4, T + 1001)


async def test_a_partition_named_twice_is_refused(client: RawClient) -> None:
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=special) for special in (-1, -2)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)])
    (answer,) = (await client.call(request, 11)).topics[0].partitions
    assert (answer.partition_index, answer.error_code) == (0, ErrorCode.INVALID_REQUEST)
