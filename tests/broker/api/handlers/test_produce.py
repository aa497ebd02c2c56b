"""Produce against a real node, batch by batch: accepted batches, refused ones with their errors, and retries."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from anabranch.broker.api.handlers.produce import _while_connected
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.partitions.record_work import TURN_BYTES_MAX
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.operator.admin.health import unready_reason
from anabranch.protocol.batch import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    check_crc,
    iterate_batches,
    parse_batch,
    patch,
    write_crc,
)
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import produce
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from anabranch.protocol.records import Record, build_batch, decode_records
from anabranch.s3stream.errors import StorageStopped
from anabranch.wal.log import DeltaWal
from anabranch.wal.requests import IoRequest
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, offset_commit, produce_request, raw_client
from tests.support.waiting import until

NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.usefixtures("native")


class Crash(Exception):
    """Ends a node without a clean stop."""


@pytest.fixture
async def node(tmp_path: Path, native: None) -> AsyncIterator[Node]:
    async with running_node(tmp_path, topic_max_message_bytes=10_000) as running:
        yield running


async def produce_one(
    client: RawClient, data: bytes | bytearray | None, *, version: int = 9, topic: str = "t", acks: int = -1
) -> PartitionProduceResponse:
    response = await client.produce(topic, [data], version=version, acks=acks)
    answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
    return answer


async def fetch_records(client: RawClient, topic: str = "t") -> bytes:
    partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    request = FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])])
    response = await client.call(request, 11)
    return bytes(response.responses[0].partitions[0].records)


async def create(client: RawClient, name: str, **configs: str) -> None:
    topic = CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )
    response = await client.call(CreateTopicsRequest(topics=[topic]), 7)
    assert response.topics[0].error_code == ErrorCode.NONE, response.topics[0].error_message


def changed(batch: bytearray, position: int, data: bytes, *, sealed: bool = True) -> bytearray:
    batch[position : position + len(data)] = data
    if sealed:
        write_crc(batch)
    return batch


@pytest.mark.parametrize("compression", list(Compression))
async def test_batches_come_back_as_sent_but_for_offset_and_epoch(client: RawClient, compression: Compression) -> None:
    sent = batch_of(b"a", b"b", compression=compression)
    assert (await produce_one(client, sent)).base_offset == 0
    assert (await produce_one(client, sent)).base_offset == 2
    found = list(iterate_batches(await fetch_records(client)))
    assert [header.base_offset for header, _ in found] == [0, 2]
    for _, data in found:
        same = bytearray(data)
        patch(same, 0, parse_batch(sent).partition_leader_epoch)
        assert same == sent


REFUSED: dict[str, tuple[Callable[[], bytes | bytearray | None], ErrorCode]] = {
    "null": (lambda: None, ErrorCode.INVALID_RECORD),
    "empty": (lambda: b"", ErrorCode.INVALID_RECORD),
    "cut in the header": (lambda: batch_of(b"a")[:40], ErrorCode.INVALID_RECORD),
    "cut in the records": (lambda: batch_of(b"a")[:-1], ErrorCode.INVALID_RECORD),
    "two batches": (lambda: batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD),
    "a length below the header's": (
        lambda: changed(batch_of(b"a"), 8, (10).to_bytes(4, "big"), sealed=False),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "a negative length": (
        lambda: changed(batch_of(b"a"), 8, b"\xff\xff\xff\xff", sealed=False),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "a flipped bit": (lambda: changed(batch_of(b"abc"), 65, b"\x55", sealed=False), ErrorCode.CORRUPT_MESSAGE),
    "magic 0": (lambda: changed(batch_of(b"a"), 16, b"\0", sealed=False), ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: changed(batch_of(b"a"), 16, b"\x01", sealed=False), ErrorCode.INVALID_RECORD),
    "a base offset": (lambda: batch_of(b"a", base_offset=5), ErrorCode.INVALID_RECORD),
    "too large": (lambda: batch_of(b"x" * 10_000), ErrorCode.MESSAGE_TOO_LARGE),
    "no records": (lambda: changed(batch_of(b"a"), 57, bytes(4)), ErrorCode.INVALID_RECORD),
    "more records than offsets": (
        lambda: changed(batch_of(b"a"), 57, (2).to_bytes(4, "big")),
        ErrorCode.INVALID_RECORD,
    ),
    "a control batch": (lambda: batch_of(b"a", attributes=CONTROL_MASK), ErrorCode.INVALID_RECORD),
    "a transaction": (
        lambda: batch_of(b"a", attributes=TRANSACTIONAL_MASK, producer_id=1, producer_epoch=0, base_sequence=0),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "a producer without sequence": (
        lambda: batch_of(b"a", producer_id=1, producer_epoch=0),
        ErrorCode.INVALID_RECORD,
    ),
    "a timestamp in the future": (lambda: batch_of(b"a", timestamp_ms=NOW_MS * 10), ErrorCode.INVALID_TIMESTAMP),
    "a broker's timestamp": (lambda: batch_of(b"a", attributes=8), ErrorCode.INVALID_TIMESTAMP),
}


async def test_a_refused_batch_says_why_and_leaves_nothing(client: RawClient) -> None:
    for number, (what, (make, code)) in enumerate(REFUSED.items()):
        answer = await produce_one(client, make())
        assert ErrorCode(answer.error_code) == code, what
        assert answer.base_offset == -1, what
        assert answer.error_message, what
        assert (await produce_one(client, batch_of(b"good"))).base_offset == number, what


async def test_zstd_needs_version_7(client: RawClient) -> None:
    batch = batch_of(b"a", compression=Compression.ZSTD)
    assert (await produce_one(client, batch, version=6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert (await produce_one(client, batch, version=7)).error_code == ErrorCode.NONE


async def test_one_bad_partition_does_not_touch_the_others(client: RawClient) -> None:
    request = ProduceRequest(
        acks=-1,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(batch_of(b"a")))]),
            TopicProduceData(
                name="t",
                partition_data=[
                    PartitionProduceData(index=7, records=bytes(batch_of(b"a"))),
                    PartitionProduceData(index=0, records=bytes(batch_of(b"a"))),
                ],
            ),
            TopicProduceData(name="none", partition_data=[PartitionProduceData(index=0, records=b"")]),
        ],
    )
    response = await client.call(request, 9)
    codes = [[each.error_code for each in topic.partition_responses] for topic in response.responses]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [[0, unknown], [unknown]]


async def test_topics_by_id_from_version_13(node: Node, client: RawClient) -> None:
    topic = node.serving.topics.get("t")
    assert topic is not None
    for topic_id, code in ((topic.topic_id, ErrorCode.NONE), (bytes(15) + b"\x01", ErrorCode.UNKNOWN_TOPIC_ID)):
        data = PartitionProduceData(index=0, records=bytes(batch_of(b"a")))
        request = ProduceRequest(acks=1, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])])
        response = await client.call(request, 13)
        assert response.responses[0].partition_responses[0].error_code == code


async def test_acks_0_gets_no_answer_and_an_error_closes(client: RawClient) -> None:
    client.send(produce_request("t", [batch_of(b"a")], acks=0), 9)
    assert (await produce_one(client, batch_of(b"b"))).base_offset == 1, "the next answer is the next request's"
    client.send(produce_request("t", [b"broken"], acks=0), 9)
    assert await client.closed()


async def test_other_acks_are_refused(client: RawClient) -> None:
    assert (await produce_one(client, batch_of(b"a"), acks=2)).error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_what_follows_a_refused_batch_is_refused_for_the_same_reason(client: RawClient, node: Node) -> None:
    """Out of order, librdkafka would begin a new epoch, and send again in it what is durable without its knowledge."""
    producer = await client.call(InitProducerIdRequest(transactional_id=None), 4)
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    assert (await produce_one(client, batch_of(b"0", base_sequence=0, **fields))).base_offset == 0
    node.serving.topics.partition("t", 0).stream.refuse(StorageStopped("the log failed"))
    codes = {(await produce_one(client, batch_of(b"x", base_sequence=at, **fields))).error_code for at in (1, 2, 3)}
    assert len(codes) == 1
    assert not codes & {ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}


async def test_a_retry_gets_the_offsets_of_the_first_try(client: RawClient) -> None:
    producer = await client.call(InitProducerIdRequest(transactional_id=None), 4)
    fields = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    batches = [batch_of(b"%d" % at, b"x", base_sequence=2 * at, **fields) for at in range(7)]
    for at, batch in enumerate(batches):
        assert (await produce_one(client, batch)).base_offset == 2 * at
    for at in range(2, 7):
        assert (await produce_one(client, batches[at])).base_offset == 2 * at, "the last five are remembered"
    assert (await produce_one(client, batches[1])).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    gap = batch_of(b"gap", base_sequence=16, **fields)
    assert (await produce_one(client, gap)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await produce_one(client, batch_of(b"go on", base_sequence=14, **fields))).base_offset == 14
    fields["producer_epoch"] += 1
    late = batch_of(b"late", base_sequence=3, **fields)
    assert (await produce_one(client, late)).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await produce_one(client, batch_of(b"new epoch", base_sequence=0, **fields))).base_offset == 15
    fields["producer_epoch"] -= 1
    old = batch_of(b"old", base_sequence=16, **fields)
    assert (await produce_one(client, old)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_retry_beside_a_new_batch_is_not_answered_before_both_are_durable(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="u")]), 9)
    first = batch_of(b"first", producer_id=5, producer_epoch=0, base_sequence=0)
    new = batch_of(b"new", producer_id=5, producer_epoch=0, base_sequence=0)
    retry = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch)])
            for name, batch in (("t", new), ("u", bytes(first)))
        ],
    )
    assert isinstance(node.wal, DeltaWal)
    device = node.wal.device
    submit = device.submit
    held: list[IoRequest] = []
    async with raw_client(node.bootstrap) as other:
        monkeypatch.setattr(device, "submit", held.append)
        other.send(produce_request("u", [first]), 9)
        await until(lambda: len(held) == 1)
        client.send(retry, 9)
        await until(lambda: len(held) == 2)
        submit(held[0])
        await other.receive(ProduceRequest, 9)
        answer = asyncio.create_task(client.receive(ProduceRequest, 9))
        for _ in range(2):  # the node processes completed writes before it answers these
            await other.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        assert not answer.done(), "one of its batches is not on the device yet"
        monkeypatch.setattr(device, "submit", submit)
        submit(held[1])
        _, response = await answer
    assert [topic.partition_responses[0].error_code for topic in response.responses] == [0, 0]


async def test_batches_in_two_blocks_of_the_log_are_answered_when_both_are_durable(
    tmp_path: Path, native: None
) -> None:
    async with (
        running_node(tmp_path) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("t", "u")]), 9)
        assert isinstance(node.wal, DeltaWal)
        submit = node.wal.device.submit
        async with held_writes(node) as held:
            client.send(two_topics(batch_of(bytes(200_000)), batch_of(bytes(200_000))), 9)
            await until(lambda: len(held) == 2)
            submit(held[0])
            answer = asyncio.create_task(client.receive(ProduceRequest, 9))
            await until(lambda: node.serving.topics.partition("t", 0).high_watermark == 1)
            for _ in range(2):  # an answer would be here before these
                await other.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            assert not answer.done(), "one of its batches is not on the device yet"
            submit(held[1])
            _, response = await answer
    assert outcomes(response)[::2] == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 0)]


@pytest.mark.parametrize("crash", [False, True])
async def test_sequences_are_remembered_over_a_restart(tmp_path: Path, crash: bool) -> None:
    first = batch_of(b"a", producer_id=5, producer_epoch=1, base_sequence=0)
    second = batch_of(b"b", producer_id=5, producer_epoch=1, base_sequence=1)

    with contextlib.suppress(Crash):
        async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            assert (await produce_one(client, first)).base_offset == 0
            await node.serving.storage.flush()
            assert (await produce_one(client, second)).base_offset == 1
            if crash:
                raise Crash
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert node.serving.storage.stats.recovered_records == (1 if crash else 0)
        assert (await produce_one(client, second)).base_offset == 1
        assert (await produce_one(client, first)).base_offset == 0
        third = batch_of(b"c", producer_id=5, producer_epoch=1, base_sequence=2)
        assert (await produce_one(client, third)).base_offset == 2


@pytest.mark.parametrize("crash", [False, True])
async def test_a_producers_epoch_is_remembered_over_a_restart(tmp_path: Path, crash: bool) -> None:
    fields = {"producer_id": 5, "base_sequence": 0}
    with contextlib.suppress(Crash):
        async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            assert (await produce_one(client, batch_of(b"a", producer_epoch=1, **fields))).base_offset == 0
            await node.serving.storage.flush()
            assert (await produce_one(client, batch_of(b"b", producer_epoch=2, **fields))).base_offset == 1
            if crash:
                raise Crash
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert node.serving.storage.stats.recovered_records == (1 if crash else 0)
        zombie = await produce_one(client, batch_of(b"zombie", producer_epoch=1, **fields))
        assert zombie.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        fields["base_sequence"] = 1
        assert (await produce_one(client, batch_of(b"c", producer_epoch=2, **fields))).base_offset == 2


async def test_log_append_time_is_written_into_the_batch(node: Node, client: RawClient) -> None:
    await create(client, "stamped", message_timestamp_type="LogAppendTime")
    answer = await produce_one(client, batch_of(b"a", b"b", timestamp_ms=12), topic="stamped")
    assert answer.log_append_time_ms > NOW_MS
    (found,) = iterate_batches(await fetch_records(client, "stamped"))
    assert [record.timestamp_ms for record in decode_records(found[1])] == [answer.log_append_time_ms] * 2
    partition = node.serving.topics.partition("stamped", 0)
    assert partition.max_timestamp.timestamp_ms == answer.log_append_time_ms


@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_kept_in_the_codec_the_topic_asks_for(client: RawClient, kept: str) -> None:
    await create(client, "packed", compression_type=kept)
    values = [b"%d" % at * 50 for at in range(20)]
    for codec in Compression:
        fields = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 20 * codec}
        assert (
            await produce_one(client, batch_of(*values, compression=codec, **fields), topic="packed")
        ).error_code == 0
    found = list(iterate_batches(await fetch_records(client, "packed")))
    expected = Compression.NONE if kept == "uncompressed" else Compression[kept.upper()]
    assert {header.compression for header, _ in found} == {expected}
    assert [header.base_sequence for header, _ in found] == [0, 20, 40, 60, 80]
    for header, data in found:
        check_crc(data, header)
        assert [record.value for record in decode_records(data)] == values


async def test_a_compacted_topic_wants_keys(client: RawClient) -> None:
    await create(client, "compacted", cleanup_policy="compact")
    answer = await produce_one(client, batch_of(b"a"), topic="compacted")
    assert answer.error_code == ErrorCode.INVALID_RECORD
    keyed = build_batch([Record(key=b"k", value=None, timestamp_ms=NOW_MS)])
    assert (await produce_one(client, keyed, topic="compacted")).base_offset == 0


async def test_full_storage_makes_clients_wait_and_loses_nothing(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, wal_capacity_bytes=8 << 20, storage_log_cache_bytes=4 << 20) as node,
        raw_client(node.bootstrap) as client,
    ):
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        batch = batch_of(b"x" * 500_000)
        for _ in range(60):
            client.send(produce_request("t", [batch]), 9)
        offsets = []
        for _ in range(60):
            _, response = await client.receive(ProduceRequest, 9)
            answer = response.responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NONE, answer.error_message
            offsets.append(answer.base_offset)
        assert offsets == list(range(60))
        assert node.serving.storage.stats.uploads > 1


@contextlib.asynccontextmanager
async def node_that_is_full(tmp_path: Path) -> AsyncIterator[tuple[Node, RawClient, asyncio.Event, list[None]]]:
    """A node whose object store takes nothing before the event is set, and the client that has filled its storage.

    The list has an element for each request that waits for room.
    """
    store_is_back = asyncio.Event()
    waiting: list[None] = []
    async with (
        running_node(tmp_path, wal_capacity_bytes=8 << 20, storage_log_cache_bytes=4 << 20) as node,
        raw_client(node.bootstrap) as client,
    ):
        store = node.stores["local"]
        put = store.put

        async def held_up(*arguments: Any, **named: Any) -> None:
            await store_is_back.wait()
            await put(*arguments, **named)

        wait_writable = node.serving.storage.wait_writable

        async def counted() -> None:
            waiting.append(None)
            try:
                await wait_writable()
            finally:
                waiting.pop()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "put", held_up)
            patch.setattr(node.serving.storage, "wait_writable", counted)
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
            for _ in range(60):
                client.send(produce_request("t", [batch_of(b"x" * 500_000)]), 9)
            await until(lambda: len(waiting) == 1)
            appended = node.serving.topics.partition("t", 0).stream.next_offset
            for _ in range(appended):
                await client.receive(ProduceRequest, 9)
            try:
                yield node, client, store_is_back, waiting
            finally:
                store_is_back.set()


async def test_a_client_that_goes_away_from_a_full_node_takes_its_requests_along(tmp_path: Path) -> None:
    async with node_that_is_full(tmp_path) as (node, client, store_is_back, _):
        appended = node.serving.topics.partition("t", 0).stream.next_offset
        await client.close()
        await until(lambda: not node.ports.clients.connections)
        assert node.ports.clients.bytes_held == 0
        store_is_back.set()
        async with raw_client(node.bootstrap) as again:
            assert (await produce_one(again, batch_of(b"next"))).base_offset == appended


async def test_acks_0_that_fails_after_waiting_for_room_closes_the_connection(tmp_path: Path) -> None:
    async with node_that_is_full(tmp_path) as (node, _, store_is_back, waiting), raw_client(node.bootstrap) as other:
        data = [
            PartitionProduceData(index=0, records=bytes(batch_of(b"x" * 500_000))),
            PartitionProduceData(index=7, records=bytes(batch_of(b"there is no such partition"))),
        ]
        other.send(ProduceRequest(acks=0, topic_data=[TopicProduceData(name="t", partition_data=data)]), 9)
        await until(lambda: len(waiting) == 2)
        store_is_back.set()
        assert await other.closed()


async def test_a_batch_no_log_can_take_is_too_large(tmp_path: Path) -> None:
    limits = {"wal_capacity_bytes": 8 << 20, "topic_max_message_bytes": 50 << 20}
    async with running_node(tmp_path, **limits) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        answer = await produce_one(client, batch_of(b"x" * (20 << 20)))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await produce_one(client, batch_of(b"small"))).base_offset == 0, "the node continues"


async def test_of_a_partition_that_a_request_has_twice_the_last_batch_counts(client: RawClient) -> None:
    response = await client.produce("t", [batch_of(b"first"), batch_of(b"last")])
    assert [each.base_offset for each in response.responses[0].partition_responses] == [0]
    batches = [list(decode_records(batch)) for _, batch in iterate_batches(await fetch_records(client))]
    assert [[record.value for record in records] for records in batches] == [[b"last"]]


async def test_nothing_waits_for_a_client_that_is_gone_already() -> None:
    gone = create_autospec(Exchange, instance=True, closed=True, on_close=None)
    async with asyncio.timeout(5), _while_connected(gone):
        await asyncio.Event().wait()
    assert gone.on_close is None


@contextlib.asynccontextmanager
async def held_writes(node: Node) -> AsyncIterator[list[IoRequest]]:
    """Hold all requests to the log's device, in the order of the list, until the end of the block."""
    assert isinstance(node.wal, DeltaWal)
    device = node.wal.device
    await until(lambda: not node.wal.snapshot().unwritten_bytes)  # else zeros would be among them
    held: list[IoRequest] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "submit", held.append)
        yield held


async def test_a_log_that_stands_still_refuses_what_is_new_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, wal_stall_ms=1_000) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        for name in (TRANSACTION_TOPIC, OFFSETS_TOPIC):
            await node.serving.internal_topics.ensure(name)
        begin = InitProducerIdRequest(transactional_id="id", transaction_timeout_ms=60_000)
        for coordinator in (node.serving.transactions, node.serving.groups):
            await until(lambda each=coordinator: each.is_open and not each.is_loading("id"))  # type: ignore[misc]
        assert (await other.call(begin, 4)).error_code == 0
        await other.commit_offset("id", "t", 0, 1)
        partition = node.serving.topics.partition("t", 0)
        batches = [batch_of(b"%d" % at, producer_id=5, producer_epoch=0, base_sequence=at) for at in range(4)]
        async with held_writes(node) as held:
            client.send(produce_request("t", batches[:1]), 9)
            await until(lambda: unready_reason(node) != "")
            assert "has not acknowledged an append for 1 s" in unready_reason(node)
            other.send(produce_request("t", batches[:1]), 9)  # its time is over: it is the one that waits
            other.send(produce_request("t", batches[1:2]), 9)
            assert (await client_of(node, begin)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            commit = offset_commit("id", "t", 0, 2)
            answer = (await client_of(node, commit)).topics[0].partitions[0]
            assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert isinstance(node.wal, DeltaWal)
        for request in held:
            node.wal.device.submit(request)
        for waiting in (client, other):
            assert outcomes((await waiting.receive(ProduceRequest, 9))[1]) == [(ErrorCode.NONE, 0)]
        assert outcomes((await other.receive(ProduceRequest, 9))[1]) == [(ErrorCode.NOT_ENOUGH_REPLICAS, -1)]
        assert partition.stream.next_offset == 1, "it was not queued"
        await until(lambda: not unready_reason(node))
        behind = [(await produce_one(other, batch)).error_code for batch in batches[2:]]
        assert behind == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2, "they may have been sent before the refusal was known"
        assert [(await produce_one(other, batch)).base_offset for batch in batches] == [0, 1, 2, 3]
        assert (await other.call(begin, 4)).error_code == 0
        await other.commit_offset("id", "t", 0, 2)


async def client_of(node: Node, request: object) -> Any:
    """Return the answer to a request on a connection of its own."""
    async with raw_client(node.bootstrap) as client:
        return await client.call(request, 4 if isinstance(request, InitProducerIdRequest) else 8)


def fail(request: IoRequest) -> None:
    """Complete a request as a broken disk does."""
    request.error = OSError(errno.EIO, "Input/output error")
    request.done(request)


def two_topics(first: bytearray, second: bytearray) -> ProduceRequest:
    """A request with a batch for each of the topics `t` and `u`, and one for a partition that does not exist."""
    bad = PartitionProduceData(index=7, records=bytes(first))
    return ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(first)), bad]),
            TopicProduceData(name="u", partition_data=[PartitionProduceData(index=0, records=bytes(second))]),
        ],
    )


def outcomes(response: ProduceResponse) -> list[tuple[int, int]]:
    return [(each.error_code, each.base_offset) for topic in response.responses for each in topic.partition_responses]


async def test_what_the_log_fails_to_write_is_answered_with_an_error_by_all_requests_that_wait(
    node: Node, client: RawClient
) -> None:
    await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="u")]), 9)
    lost, unknown = (ErrorCode.KAFKA_STORAGE_ERROR, -1), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    partition = node.serving.topics.partition("t", 0)
    async with held_writes(node) as held:
        client.send(two_topics(batch_of(b"a", **fields), batch_of(b"b")), 9)
        await until(lambda: len(held) == 1)
        client.send(two_topics(batch_of(b"a", **fields), batch_of(b"c")), 9)  # a retry, behind the first try
        client.send(produce_request("u", [batch_of(b"d")]), 9)
        await until(lambda: node.serving.topics.partition("u", 0).stream.next_offset == 3)
        fail(held[0])
        for _ in range(2):
            _, response = await client.receive(ProduceRequest, 9)
            assert outcomes(response) == [lost, unknown, lost]
            assert "Input/output error" in str(response.responses[0].partition_responses[0].error_message)
        _, response = await client.receive(ProduceRequest, 9)
        assert outcomes(response) == [lost]
        for request in held[1:]:
            request.done(request)  # written too late
        assert (partition.high_watermark, partition.stream.next_offset) == (0, 1)
        assert outcomes(await client.call(two_topics(batch_of(b"a", **fields), batch_of(b"e")), 9)) == [
            lost,
            unknown,
            lost,
        ]


async def test_what_was_inspected_in_the_thread_and_then_not_written_is_answered_with_an_error(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, "packed", compression_type="gzip")
        async with held_writes(node) as held:
            client.send(produce_request("packed", [batch_of(b"x" * TURN_BYTES_MAX)]), 9)
            await until(lambda: len(held) == 1)
            assert node.serving.topics.partition("packed", 0).work.batches_in_thread == 1
            fail(held[0])
            _, response = await client.receive(ProduceRequest, 9)
            assert outcomes(response) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]


async def test_a_batch_refused_in_the_thread_is_answered_though_its_topic_is_gone(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path) as node,
        raw_client(node.bootstrap) as client,
        raw_client(node.bootstrap) as other,
    ):
        await create(client, "keyed", cleanup_policy="compact")
        work = node.serving.topics.partition("keyed", 0).work
        thread_is_free = threading.Event()
        busy = asyncio.create_task(work.run_in_thread(thread_is_free.wait))
        client.send(produce_request("keyed", [batch_of(b"x" * TURN_BYTES_MAX)]), 9)
        await until(lambda: node.serving.requests.get(produce.KEY) == 1)
        await other.call(DeleteTopicsRequest(topic_names=["keyed"], timeout_ms=30_000), 5)
        thread_is_free.set()
        await busy
        _, response = await client.receive(ProduceRequest, 9)
        assert outcomes(response) == [(ErrorCode.INVALID_RECORD, -1)]


async def test_a_retry_of_what_is_not_durable_yet_waits_for_the_log(node: Node, client: RawClient) -> None:
    """The first try's client is gone. What the second is told depends on the log, as the first would have been."""
    batch = batch_of(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    async with raw_client(node.bootstrap) as first, held_writes(node) as held:
        first.send(produce_request("t", [batch]), 9)
        await until(lambda: len(held) == 1)
        await first.abort()
        client.send(produce_request("t", [batch]), 9)
        answer = asyncio.create_task(client.receive(ProduceRequest, 9))
        async with raw_client(node.bootstrap) as other:
            for _ in range(2):  # the node has read the retry before it answers these
                await other.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        assert not answer.done()
        fail(held[0])
        _, response = await answer
        assert outcomes(response) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)]
