"""Work on records: a bounded part per turn on the event loop, the rest on a thread, bounded as well."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from weakref import WeakSet

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions import record_work
from anabranch.broker.kafka.partitions.record_work import (
    RECORD_COST_BYTES,
    TURN_BYTES_MAX,
    LoopBudgetExceeded,
    RecordWork,
    RecordWorkStopped,
)
from anabranch.protocol.batch import iterate_batches, parse_batch
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import DecompressedTooLarge, ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest
from anabranch.protocol.messages.produce import PartitionProduceResponse, ProduceRequest
from anabranch.protocol.record_scan import scan_records
from anabranch.protocol.records import Record, build_batch, decode_records
from tests.support.node import running_node
from tests.support.raw_client import RawClient, produce_request, raw_client
from tests.support.waiting import until

CODECS = list(Compression)[1:]
LIMIT_BYTES = 1 << 20
NOW_MS = 1_700_000_000_000
FUTURE_MS = 1 << 50


class Frame:
    """Stand-in for a frame that a client has sent."""

    def look(self) -> str:
        return "looked into"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, topic_decompressed_bytes_max=LIMIT_BYTES, wal_capacity_bytes=32 << 20) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


async def create(client: RawClient, **configs: str) -> None:
    given = [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=given)
    answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
    assert answer.topics[0].error_code == ErrorCode.NONE, answer.topics[0].error_message


def batch_of_size(
    size: int, codec: Compression, *, count: int = 1, key: bytes | None = b"k", **fields: int
) -> bytearray:
    """A batch whose records unfold to a little more than `size` bytes."""
    value = bytes(size // count)
    timestamp_ms = fields.pop("timestamp_ms", NOW_MS)
    return build_batch([Record(key, value, timestamp_ms)] * count, compression=codec, **fields)


async def produce(client: RawClient, batch: bytearray) -> PartitionProduceResponse:
    return (await client.produce("t", [batch])).responses[0].partition_responses[0]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("config", "value", "timestamp_ms"),
    [("cleanup_policy", "compact", NOW_MS), ("compression_type", "uncompressed", NOW_MS), ("", "", FUTURE_MS)],
)
async def test_a_bomb_is_refused_for_its_size(
    node: Node, client: RawClient, codec: Compression, config: str, value: str, timestamp_ms: int
) -> None:
    await create(client, **({config: value} if config else {}))
    bomb = batch_of_size(8 * LIMIT_BYTES, codec, timestamp_ms=timestamp_ms)
    answer = await produce(client, bomb)
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE, answer.error_message
    work = node.serving.topics.partition("t", 0).work
    assert work.batches_in_thread == 1
    assert work.bytes_on_loop <= TURN_BYTES_MAX, "the loop gave up where its share of the turn ended"
    fitting = batch_of_size(LIMIT_BYTES // 2, codec)
    assert (await produce(client, fitting)).base_offset == 0, "the connection and the partition go on"
    assert work.batches_in_thread == (2 if config else 1)


async def test_a_batch_of_too_many_records_is_refused_before_they_are_read(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_work, "RECORDS_MAX", 5000)
    await create(client, cleanup_policy="compact")
    answer = await produce(client, batch_of_size(5001, Compression.ZSTD, count=5001))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    work = node.serving.topics.partition("t", 0).work
    assert (work.batches_in_thread, work.bytes_on_loop) == (0, 0)
    assert (await produce(client, batch_of_size(5000, Compression.ZSTD, count=5000))).base_offset == 0
    assert work.batches_in_thread == 1


@pytest.mark.parametrize("codec", CODECS)
async def test_what_is_looked_into_beside_the_loop_is_checked_all_the_same(
    client: RawClient, codec: Compression
) -> None:
    await create(client, cleanup_policy="compact")
    answer = await produce(client, batch_of_size(LIMIT_BYTES // 2, codec, count=3, key=None))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0, 1, 2]
    answer = await produce(client, batch_of_size(LIMIT_BYTES // 2, codec, count=3, timestamp_ms=FUTURE_MS))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert len(answer.record_errors) == 3


async def test_no_more_records_are_named_than_an_answer_holds(client: RawClient) -> None:
    await create(client, cleanup_policy="compact")
    many = build_batch([Record(None, b"", NOW_MS)] * 20_000, compression=Compression.ZSTD)
    answer = await produce(client, many)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert len(answer.record_errors) == 1000


@pytest.mark.parametrize("codec", CODECS)
async def test_recompression_beside_the_loop_keeps_the_records(
    node: Node, client: RawClient, codec: Compression
) -> None:
    target = Compression.GZIP if codec is not Compression.GZIP else Compression.LZ4
    await create(client, compression_type=target.name.lower())
    batch = batch_of_size(LIMIT_BYTES // 2, codec, count=5)
    assert (await produce(client, batch)).error_code == ErrorCode.NONE
    partition = node.serving.topics.partition("t", 0)
    assert partition.work.batches_in_thread == 1
    cached = partition.stream.read_cached(0, 1)
    assert cached is not None
    ((header, stored),) = iterate_batches(cached.batches[0].payload)
    assert header.compression is target
    assert decode_records(stored) == decode_records(batch)


async def test_a_batch_that_its_topics_codec_makes_too_large_is_refused(client: RawClient) -> None:
    await create(client, compression_type="uncompressed", max_message_bytes="100000")
    answer = await produce(client, batch_of_size(LIMIT_BYTES // 2, Compression.ZSTD))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    answer = await produce(client, batch_of_size(101_000, Compression.ZSTD))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_the_order_of_a_connection_is_kept(node: Node, client: RawClient) -> None:
    await create(client, cleanup_policy="compact")
    large, small = LIMIT_BYTES // 2, 100
    sizes = [large, small, small, large, large, small]
    for at, size in enumerate(sizes):
        batch = batch_of_size(size, Compression.ZSTD, producer_id=7, producer_epoch=0, base_sequence=at)
        client.send(produce_request("t", [batch]), 9)
    for at in range(len(sizes)):
        _, response = await client.receive(ProduceRequest, 9)
        answer = response.responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, at)
    assert node.serving.topics.partition("t", 0).work.batches_in_thread == 3


async def test_others_are_served_while_a_batch_is_looked_into(node: Node, client: RawClient) -> None:
    await create(client, cleanup_policy="compact")
    partition = node.serving.topics.partition("t", 0)
    may_go_on = threading.Event()
    blocked = asyncio.ensure_future(partition.work.run_in_thread(may_go_on.wait))
    client.send(produce_request("t", [batch_of_size(LIMIT_BYTES // 2, Compression.ZSTD)]), 9)
    async with raw_client(node.bootstrap) as other:
        assert (await other.call(MetadataRequest(topics=()), 9)).brokers
        assert (await produce(other, batch_of_size(100, Compression.ZSTD))).base_offset == 0
    may_go_on.set()
    _, response = await client.receive(ProduceRequest, 9)
    assert response.responses[0].partition_responses[0].base_offset == 1
    assert await blocked


@pytest.mark.parametrize("codec", CODECS)
async def test_search_by_time_in_a_large_batch(node: Node, client: RawClient, codec: Compression) -> None:
    await create(client)
    records = [Record(b"k", bytes(LIMIT_BYTES // 20), NOW_MS + at) for at in range(10)]
    assert (await produce(client, build_batch(records, compression=codec))).error_code == ErrorCode.NONE
    assert (await produce(client, batch_of_size(8 * LIMIT_BYTES, codec, timestamp_ms=NOW_MS + 20))).base_offset == 10

    async def offset_at(timestamp_ms: int) -> int:
        wanted = ListOffsetsTopic(
            name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)]
        )
        answer = await client.call(ListOffsetsRequest(replica_id=-1, topics=[wanted]), 4)
        return int(answer.topics[0].partitions[0].offset)

    assert await offset_at(NOW_MS + 7) == 7
    assert await offset_at(NOW_MS + 20) == 10, "a batch that unfolds to too much is answered with its begin"
    work = node.serving.topics.partition("t", 0).work
    assert work.batches_in_thread == 2
    assert work.bytes_on_loop <= 2 * TURN_BYTES_MAX


async def test_all_batches_of_a_turn_share_its_bytes() -> None:
    work = RecordWork(LIMIT_BYTES)
    batch = batch_of_size(TURN_BYTES_MAX // 4, Compression.ZSTD)
    header = parse_batch(batch)
    for _ in range(3):
        assert work.inspect_on_loop(batch, header, len) > TURN_BYTES_MAX // 4
    with pytest.raises(LoopBudgetExceeded):
        work.inspect_on_loop(batch, header, len)
    assert work.bytes_on_loop <= TURN_BYTES_MAX
    await asyncio.sleep(0)
    assert work.inspect_on_loop(batch, header, len) > 0, "the next turn has its own"
    many = build_batch([Record(b"k", b"")] * (TURN_BYTES_MAX // RECORD_COST_BYTES), compression=Compression.ZSTD)
    with pytest.raises(LoopBudgetExceeded):
        work.inspect_on_loop(many, parse_batch(many), len)
    work.close()


async def test_a_batch_beside_the_loop_is_bounded() -> None:
    work = RecordWork(LIMIT_BYTES)
    bomb = batch_of_size(LIMIT_BYTES, Compression.ZSTD)
    with pytest.raises(DecompressedTooLarge):
        await work.inspect_in_thread(bomb, parse_batch(bomb), len)
    work.close()


async def test_who_waits_no_more_keeps_nothing() -> None:
    """After any cancellation, the running job included, only the data in the thread stays in memory."""
    work = RecordWork(LIMIT_BYTES)
    begun, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        may_go_on.wait()

    first = asyncio.create_task(work.run_in_thread(block))
    await until(begun.is_set)
    frames = [Frame() for _ in range(3)]
    alive = WeakSet(frames)
    others = [asyncio.create_task(work.run_in_thread(frame.look)) for frame in frames]
    del frames
    await asyncio.sleep(0)
    for task in (first, *others[:2]):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait(others[:2])
    waiting = others[2]
    del others, task
    gc.collect()
    try:
        assert len(alive) == 1
        assert work.batches_in_thread == 1
    finally:
        may_go_on.set()
    assert await waiting == "looked into"
    work.close()


async def test_who_waits_when_the_node_stops_is_told() -> None:
    work = RecordWork(LIMIT_BYTES)
    begun, may_go_on = threading.Event(), threading.Event()

    def block() -> bool:
        begun.set()
        return may_go_on.wait()

    first = asyncio.create_task(work.run_in_thread(block))
    await until(begun.is_set)
    waiting = asyncio.create_task(work.run_in_thread(lambda: None))
    await asyncio.sleep(0)
    work.close()
    may_go_on.set()
    assert await first
    with pytest.raises(RecordWorkStopped):
        await waiting


async def test_stopping_ends_what_is_under_way_and_begins_nothing() -> None:
    work = RecordWork(LIMIT_BYTES)
    batch = build_batch([Record(b"k", b"")] * 10)
    header = parse_batch(batch)
    work.close()
    with pytest.raises(RecordWorkStopped):
        work.inspect_on_loop(batch, header, lambda data: list(work.interruptible(scan_records(data, header))))
    with pytest.raises(RecordWorkStopped):
        await work.run_in_thread(lambda: None)
