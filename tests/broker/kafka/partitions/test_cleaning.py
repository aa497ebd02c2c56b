"""Log compaction in a real node: records that consumers read from the start and from the gaps of a topic."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from anabranch.broker.cluster.node import Node
from anabranch.protocol.batch import HEADER, HEADER_BYTES, iterate_batches, parse_batch, write_crc
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.records import Record, build_batch, decode_records
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

KEYS, ROUNDS = 5, 6
T_MS = 1_700_000_000_000


async def create(node: Node) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=node.bootstrap)
    await admin.start()
    try:
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
        await admin.create_topics([NewTopic("t", 1, 1, topic_configs=configs)])
    finally:
        await admin.close()


async def produce(node: Node, codec: str | None, rounds: range) -> None:
    """Send every key in every round: one batch per round, each in a separate object."""
    producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, compression_type=codec, linger_ms=50)
    await producer.start()
    try:
        for number in rounds:
            async with asyncio.TaskGroup() as group:
                for key in range(KEYS):
                    value = None if (number, key) == (1, 4) else b"%d" % number
                    group.create_task(producer.send_and_wait("t", value, key=b"k%d" % key, partition=0))
            await node.serving.storage.flush()
    finally:
        await producer.stop()


async def consume(node: Node, offset: int, end: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = AIOKafkaConsumer(bootstrap_servers=node.bootstrap, check_crcs=True)
    await consumer.start()
    try:
        partition = TopicPartition("t", 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        found: list[tuple[int, bytes | None, bytes | None]] = []
        async with asyncio.timeout(20):
            while not found or found[-1][0] < end - 1:
                record = await consumer.getone()
                found.append((record.offset, record.key, record.value))
        return found
    finally:
        await consumer.stop()


async def expect_newest(node: Node) -> None:
    """From any start offset, a consumer reads exactly the remaining records."""
    end = KEYS * ROUNDS
    newest = [(end - KEYS + at, b"k%d" % at, b"%d" % (ROUNDS - 1)) for at in range(KEYS)]
    for offset in (0, 1, KEYS, end - KEYS - 1, end - KEYS):
        assert await consume(node, offset, end) == newest
    assert await consume(node, end - 2, end) == newest[-2:]


async def test_consumers_find_the_newest_of_each_key(tmp_path: Path) -> None:
    end = KEYS * ROUNDS
    async with running_node(tmp_path) as node:
        await create(node)
        await produce(node, "gzip", range(ROUNDS))
        summary = await node.upkeep.compaction.run_once()
        assert summary.streams_cleaned == 1
        # All but the last round is superseded.
        assert summary.records_removed == end - KEYS
        await expect_newest(node)
    async with running_node(tmp_path) as node:
        await expect_newest(node)
        await produce(node, None, range(ROUNDS, ROUNDS + 1))
        assert [offset for offset, _, _ in await consume(node, 0, end + KEYS)] == list(range(end - KEYS, end + KEYS))


async def test_records_that_are_none_do_not_end_compaction(tmp_path: Path) -> None:
    garbage = batch_of(b"x" * 20)
    garbage[HEADER_BYTES:] = b"\xff" * (len(garbage) - HEADER_BYTES)
    write_crc(garbage)
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        # Produce refuses such a batch; a log written before it did may hold one.
        node.serving.topics.partition("t", 0).append_internal(garbage)
        for batch in (batch_of(b"a"), batch_of(b"b")):
            response = await client.produce("t", [batch])
            assert response.responses[0].partition_responses[0].error_code == 0
        await node.serving.storage.flush()
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        await node.serving.topic_commands.alter("t", lambda own: own | configs)
        summary = await node.upkeep.compaction.run_once()
        assert (summary.streams_cleaned, summary.errors) == (1, [])


def without_room() -> bytearray:
    """Two records of a key whose header looks well, and whose second record no batch without the first can hold."""
    batch = build_batch([Record(b"k", b"1", T_MS), Record(b"k", b"2", T_MS + 1)])
    HEADER.pack_into(batch, 0, *parse_batch(batch)._replace(base_timestamp=(1 << 63) - 1))
    write_crc(batch)
    return batch


def far_beyond() -> bytearray:
    """A record whose offset no header can tell of."""
    batch = build_batch([Record(b"k", b"1", T_MS), Record(b"k", b"2", T_MS, offset=1 << 30)])
    HEADER.pack_into(batch, 0, *parse_batch(batch)._replace(last_offset_delta=1))
    write_crc(batch)
    return batch


@pytest.mark.parametrize("make", [without_room, far_beyond])
async def test_records_that_cannot_be_written_anew_do_not_end_compaction(
    tmp_path: Path, make: Callable[[], bytearray]
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        good = [build_batch([Record(b"g", value, T_MS)]) for value in (b"1", b"2")]
        for batch in (make(), *good):
            response = await client.produce("t", [batch])
            assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        await node.serving.storage.flush()
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        await node.serving.topic_commands.alter("t", lambda own: own | configs)
        answer = (await client.produce("t", [make()])).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in answer.record_errors] == [0 if make is without_room else 1]
        summary = await node.upkeep.compaction.run_once()
        assert (summary.streams_cleaned, summary.records_removed, summary.errors) == (1, 1, [])
        stored = node.serving.topics.partition("t", 0).stream
        kept = await stored.read(0, 1 << 20)
        assert parse_batch(kept.batches[0].payload).record_count == 2, "it stays as it is"


async def look_up(client: RawClient, timestamp: int) -> tuple[int, int]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])])
    answer = (await client.call(request, 11)).topics[0].partitions[0]
    assert answer.error_code == 0
    return answer.offset, answer.timestamp


async def fetch_all(client: RawClient) -> dict[bytes | None, bytes | None]:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[wanted])], min_bytes=1, max_bytes=1 << 20)
    data = (await client.call(request, 12)).responses[0].partitions[0]
    return {each.key: each.value for header, batch in iterate_batches(data.records) for each in decode_records(batch)}


async def test_what_is_cleaned_is_gone_from_memory_and_from_look_ups_at_once(tmp_path: Path) -> None:
    """Overwritten values and tombstoned ones, and the largest timestamp that one of them had."""
    t = 1_700_000_000_000
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(node)
        for key, value, timestamp in ((b"a", b"1", t + 900), (b"b", b"1", t), (b"b", None, t + 1), (b"a", b"2", t + 2)):
            batch = build_batch([Record(key=key, value=value, timestamp_ms=timestamp)])
            assert (await client.produce("t", [batch])).responses[0].partition_responses[0].error_code == 0
        assert await look_up(client, -3) == (0, t + 900)
        await node.serving.storage.flush()
        assert (await node.upkeep.compaction.run_once()).records_removed == 2
        assert await fetch_all(client) == {b"b": None, b"a": b"2"}
        assert await look_up(client, -3) == (3, t + 2)
        assert await look_up(client, t + 3) == (-1, -1)
        assert await look_up(client, t) == (2, t + 1)
        batch = build_batch([Record(key=b"c", value=b"3", timestamp_ms=t + 3)])
        _ = await client.produce("t", [batch])
        await node.serving.storage.flush()
        assert (await node.upkeep.compaction.run_once()).records_removed == 1, "the tombstone, once its time is over"
        assert await fetch_all(client) == {b"a": b"2", b"c": b"3"}
