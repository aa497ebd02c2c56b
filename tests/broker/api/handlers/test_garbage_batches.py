"""Batches with a valid header and checksum whose records cannot be decoded: accepted as bytes, and nothing fails.

Produce checks only the first record, or the shape of the compressed frame (more would be work per record). So
everything that decodes the records later must tolerate such batches: search by time, cleaning, a restart.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.protocol.batch import HEADER_BYTES, iterate_batches, write_crc
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.records import Record, build_batch
from tests.support.frames import FAMILIES, as_batch
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

NOW_MS = 1_700_000_000_000


def keyed(*values: bytes) -> bytearray:
    return build_batch([Record(key=b"k", value=value, timestamp_ms=NOW_MS) for value in values])


def garbled(batch: bytearray, kept: int) -> bytearray:
    """The batch with other bytes for its records, but for the first few."""
    begin = HEADER_BYTES + kept
    batch[begin:] = b"\xff" * (len(batch) - begin)
    write_crc(batch)
    return batch


def damaged(name: str, number: int) -> bytearray:
    family = FAMILIES[name]
    return as_batch(family.codec, family.frames[number])


FIRST_RECORD_BYTES = 10
GARBAGE = {
    "uncompressed": lambda: garbled(batch_of(b"abc", b"def", b"ghi"), FIRST_RECORD_BYTES),
    "gzip": lambda: damaged("gzip: checksums wrong", 2),
    "snappy": lambda: damaged("snappy: raw, first tag", 0),
    "lz4": lambda: damaged("lz4: block checksum", 1),
    "zstd": lambda: damaged("zstd: checksum", 1),
}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


async def create(client: RawClient, **configs: str) -> None:
    given = [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=given)
    assert (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0].error_code == ErrorCode.NONE


async def produce(client: RawClient, batch: bytearray) -> int:
    answer = (await client.produce("t", [batch])).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return int(answer.base_offset)


async def offset_at(client: RawClient, timestamp: int) -> tuple[int, int]:
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp)])
    answer = (await client.call(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)).topics[0].partitions[0]
    return answer.error_code, answer.offset


async def fetched(client: RawClient, *, committed: bool = False) -> list[int]:
    """Base offsets of all batches."""
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=30_000,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    answer = (await client.call(request, 11)).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE
    return [header.base_offset for header, _ in iterate_batches(answer.records)]


@pytest.mark.parametrize("name", GARBAGE)
async def test_it_is_kept_found_by_time_and_read(tmp_path: Path, name: str) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client)
        assert await produce(client, GARBAGE[name]()) == 0
        assert await produce(client, batch_of(b"good", timestamp_ms=NOW_MS + 10)) == 3
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert await fetched(client) == await fetched(client, committed=True) == [0, 3]
        assert await offset_at(client, NOW_MS) == (ErrorCode.NONE, 0), "the batch is the best answer there is"
        assert await offset_at(client, NOW_MS + 5) == (ErrorCode.NONE, 3)
        assert await offset_at(client, -3) == (ErrorCode.NONE, 3)
        upto = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
        answer = await client.call(DeleteRecordsRequest(topics=[upto], timeout_ms=10_000), 2)
        assert answer.topics[0].partitions[0].low_watermark == 1
        assert await offset_at(client, NOW_MS) == (ErrorCode.NONE, 3)
        assert await produce(client, batch_of(b"more")) == 4


async def test_it_does_not_stop_the_cleaning_of_what_is_around_it(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await create(client, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        await produce(client, keyed(b"old"))
        await produce(client, keyed(b"newer"))
        # A compacted topic refuses such a batch, because its records are checked; an earlier policy accepted it.
        partition = node.serving.topics.partition("t", 0)
        garbage = GARBAGE["uncompressed"]()
        partition.config = replace(partition.config, cleaning=None)
        await produce(client, garbage)
        await produce(client, keyed(b"newest"))
        await node.serving.storage.flush()
        async with asyncio.timeout(30):
            await node.upkeep.compaction.run_once()
        bases = await fetched(client)
        assert 2 in bases, "what cannot be read stays"
        assert await produce(client, keyed(b"more")) == 6
