"""The native lane of Produce beside Python: the same frames on two nodes, one with and one without the native part.

Answers, bytes of the log, log cache, partitions' state and counters must be the same.
"""

import random
import sys
from collections.abc import AsyncIterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from anabranch.broker.app import run_node
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import ProduceRequest
from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.errors import StorageStopped
from tests.support.frames import FAMILIES
from tests.support.native import native_mode, require_native
from tests.support.node import running_node, settings_for
from tests.support.produce_pair import PARTITIONS, Pair, Side, frame_of, produce_of, produce_pair, side
from tests.support.raw_client import batch_of, decode_response, raw_client
from tests.support.soak import SOAK
from tests.support.waiting import until

SMALL_BYTES: Final = 10_000


@pytest.fixture(autouse=True)
def _native() -> None:
    require_native()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with produce_pair(tmp_path) as found:
        yield found


# one thing at a time


async def test_every_version_takes_the_lane(pair: Pair) -> None:
    for taken, (version, acks) in enumerate(product(range(3, 14), (-1, 0, 1))):
        request = produce_of(
            {"plain": [(0, batch_of(b"a", b"b")), (2, batch_of(b"c"))], "other": [(1, batch_of(b"d"))]},
            acks=acks,
            ids=pair.ids,
        )
        frames = [frame_of(request, version, number=number, client_id="ä" * 100) for number in (1, -2)]
        received = await pair.exchange(0, b"".join(frames))
        assert pair.native.taken == 2 * (taken + 1)
        assert bool(received) == bool(acks)
        assert pair.native.node.serving.topics.partition("plain", 0).high_watermark == 4 * (taken + 1)


async def test_producers_with_sequences(pair: Pair) -> None:
    def batch(sequence: int, *, epoch: int = 0, count: int = 1) -> bytearray:
        return batch_of(*[b"v"] * count, producer_id=7, producer_epoch=epoch, base_sequence=sequence)

    sent = [batch(5), batch(6, count=3), batch(9), batch(9), batch(6, count=3), batch(11), batch(10, epoch=1)]
    sent += [batch(0, epoch=1), batch(1, epoch=1), batch(10, epoch=0), *[batch(at, epoch=1) for at in range(2, 12)]]
    codes = [(await pair.produce(each)).responses[0].partition_responses[0].error_code for each in sent]
    assert codes[:5] == [0] * 5
    assert codes[5:7] == [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2
    assert codes[9] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert pair.native.taken == 2 + 1 + 10, (
        "not the first of a producer or epoch, and nothing that was refused or known"
    )


async def test_sequences_wrap(pair: Pair) -> None:
    for sequence, records in ((2**31 - 3, 2), (2**31 - 1, 3), (2, 1)):
        batch = batch_of(*[b"v"] * records, producer_id=7, producer_epoch=0, base_sequence=sequence)
        assert not (await pair.produce(batch)).responses[0].partition_responses[0].error_code
    assert pair.native.taken == 2


async def test_compressed_frames_of_every_kind(pair: Pair) -> None:
    small = [batch for family in FAMILIES.values() if len(family.like) < SMALL_BYTES for batch in family.batches()]
    for batch in small[:: 1 if SOAK else 11]:
        await pair.produce(batch)
    assert pair.native.taken > 10, "the frames of clients"


async def test_a_limit_of_records_is_left_to_python(pair: Pair) -> None:
    found = []
    for size, codec in product((93, 94), (Compression.NONE, Compression.ZSTD)):
        answer = await pair.produce(batch_of(b"x" * size, compression=codec), topic="measured")
        found.append(answer.responses[0].partition_responses[0].error_code)
    assert found == [0, 0, 0, ErrorCode.INVALID_RECORD]
    assert pair.native.taken == 0


async def test_records_without_a_timestamp(pair: Pair) -> None:
    now_ms = pair.native.clock.ms
    for number, times in enumerate([(now_ms, now_ms), (-1, now_ms), (-1, -1), (now_ms, -1)], start=1):
        await pair.produce(build_batch([Record(None, b"v", time_ms) for time_ms in times]))
        assert pair.native.taken == number
        pair.compare()


async def test_a_waiting_reader_is_told(pair: Pair) -> None:
    for each in pair.sides:
        partition = each.node.serving.topics.partition("plain", 0)
        partition.add_listener(each.notify)
    await pair.produce(batch_of(b"a"))
    await pair.produce(batch_of(b"b"))
    assert pair.native.notified == ["plain-0 1", "plain-0 2"]


async def test_connections_are_answered_in_the_order_of_their_appends(pair: Pair) -> None:
    """Also if Python handles a request between two others, here one that it compresses."""
    frames = [
        frame_of(produce_of({topic: [(0, batch_of(b"a"))]}, ids=pair.ids), 9) for topic in ("plain", "lz4", "other")
    ]
    for each in pair.sides:
        answered: list[int] = []
        for number, client in enumerate(each.clients):
            client.transport.answered = partial(answered.append, number)
        for client, frame in zip(each.clients, frames, strict=True):
            client.send(frame)
        for client in each.clients:
            await client.settle()
        assert answered == [0, 1, 2]
    assert pair.native.taken == 2


async def test_a_refused_partition_is_left_to_python(pair: Pair) -> None:
    """Seals, fences, failures and topics that leave refuse appends of a stream."""
    for each in pair.sides:
        each.node.serving.topics.partition("plain", 0).stream.refuse(StorageStopped("it is closed"))
    await pair.produce(batch_of(b"a"))
    await pair.produce(batch_of(b"a"), topic="other")
    assert pair.native.taken == 1


async def test_a_stalled_log_refuses(pair: Pair) -> None:
    for each in pair.sides:
        each.node.serving.storage.journal.admission.begin_stall("it hangs")
    answer = await pair.produce(batch_of(b"a"))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    await pair.produce(batch_of(b"a"))
    for each in pair.sides:
        each.node.serving.storage.journal.admission.end_stall()
    await pair.produce(batch_of(b"a"))
    assert pair.native.taken == 0, "the connection has a refused batch to be sent again"
    await pair.produce(batch_of(b"a"))
    assert pair.native.taken == 1


async def test_a_failed_log_is_an_error_for_every_batch(pair: Pair) -> None:
    for each in pair.sides:
        each.device.failing = OSError(5, "Input/output error")
    answer = await pair.produce(batch_of(b"a"), batch_of(b"b"), version=13)
    assert pair.native.taken == 1
    codes = {each.error_code for each in answer.responses[0].partition_responses}
    assert codes == {ErrorCode.KAFKA_STORAGE_ERROR}
    await pair.produce(batch_of(b"a"))
    assert pair.native.taken == 1


async def test_a_full_block_of_the_log_ends_where_python_ends_it(pair: Pair) -> None:
    rng = random.Random(3)
    for _ in range(12):
        batches = [batch_of(rng.randbytes(rng.choice([10, 4000, 100_000, 200_000]))) for _ in range(PARTITIONS)]
        await pair.produce(*batches)
    assert pair.native.taken == 12
    assert pair.native.node.wal.snapshot().blocks > 12


async def test_a_full_log_cache_is_left_to_python(pair: Pair) -> None:
    for each in pair.sides:
        each.node.serving.storage.journal.current_bytes_max = 2000
        each.node.serving.storage.journal.threshold_bytes = 2**62
    for _ in range(3):
        await pair.produce(batch_of(bytes(400)))
    assert pair.native.taken == 3
    pair.compare()
    for each in pair.sides:
        each.clients[1].send(frame_of(produce_of({"plain": [(0, batch_of(b"a"))]}, ids=pair.ids), 9))
    assert pair.native.taken == 3
    for each in pair.sides:
        each.clients[1].transport.abort()


def has_quotas(node: Node, wanted: bool) -> bool:
    return node.ports.client_quotas.is_active == wanted


def has_other_config(node: Node, before: TopicConfig) -> bool:
    return node.serving.topics.partition("plain", 0).config != before


async def test_quotas_end_the_lane_as_long_as_there_are_any(pair: Pair) -> None:
    """They count requests, so they must be seen."""
    for rate in (1e9, None):
        quota = OpData(key="producer_byte_rate", value=rate or 0.0, remove=rate is None)
        entry = EntryData(entity=[EntityData(entity_type="client-id", entity_name=None)], ops=[quota])
        for each in pair.sides:
            await each.call(AlterClientQuotasRequest(entries=[entry], validate_only=False), 1)
            await until(partial(has_quotas, each.node, rate is not None))
        await pair.produce(batch_of(b"a"))
        assert (pair.native.node.ports.clients.take is None) == (rate is not None)


@pytest.mark.parametrize(
    "wanted",
    [
        {"authorizer_enabled": True, "authorizer_super_users": "User:ANONYMOUS"},
        {"tracing_enabled": True, "tracing_endpoint": "http://127.0.0.1:1", "tracing_sample_ratio": 0.0},
        {"wal_kind": "object"},
    ],
    ids=lambda wanted: next(iter(wanted)),
)
async def test_a_node_with_something_in_between_has_no_lane(tmp_path: Path, wanted: dict[str, Any]) -> None:
    with native_mode("require"):
        async with run_node(settings_for(tmp_path, **wanted)) as node:
            assert node.ports.clients.take is None


async def test_versions_that_a_release_does_not_have_are_not_taken(tmp_path: Path) -> None:
    with native_mode("require"):
        async with running_node(tmp_path, compatibility_kafka="3.6") as node, raw_client(node.bootstrap) as client:
            await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
            assert not (await client.produce("t", [batch_of(b"a")])).responses[0].partition_responses[0].error_code
            ids = {topic.name: topic.topic_id for topic in node.serving.topics}
            client.send(produce_of({"t": [(0, batch_of(b"b"))]}, ids=ids), 13)
            assert await client.closed()
            assert node.serving.topics.partition("t", 0).high_watermark == 1


async def test_a_changed_config_counts_from_the_next_request_on(pair: Pair) -> None:
    changes = [
        ("max.message.bytes", "100"),
        ("max.message.bytes", "1000000"),
        ("message.timestamp.type", "LogAppendTime"),
    ]
    for change, taken in zip(changes, (0, 1, 1), strict=True):
        config = AlterableConfig(name=change[0], config_operation=0, value=change[1])
        resource = AlterConfigsResource(resource_type=2, resource_name="plain", configs=[config])
        for each in pair.sides:
            before = each.node.serving.topics.partition("plain", 0).config
            answer = await each.call(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
            assert not answer.responses[0].error_code
            await until(partial(has_other_config, each.node, before))
        await pair.produce(batch_of(bytes(200)))
        assert pair.native.taken == taken


async def test_a_producer_with_an_open_transaction_is_left_to_python(pair: Pair) -> None:
    for each in pair.sides:
        each.node.serving.topics.partition("plain", 0).transactions.write(9, 0, each.clock.ms)
    for sequence in range(3):
        for producer in (7, 9):
            await pair.produce(batch_of(b"a", producer_id=producer, producer_epoch=0, base_sequence=sequence))
    assert pair.native.taken == 0
    await pair.produce(batch_of(b"a"))
    assert pair.native.taken == 1


async def test_a_muted_client_waits(pair: Pair) -> None:
    frame = frame_of(produce_of({"plain": [(0, batch_of(b"a"))]}, ids=pair.ids), 9)
    for each in pair.sides:
        each.clients[0].connection.mute(0.01)
        each.clients[0].send(frame)
        assert each.clients[0].connection.is_muted
        assert not each.taken
        await each.clients[0].settle()
    assert pair.native.taken == 1
    assert pair.native.clients[0].transport.received == pair.python.clients[0].transport.received != b""


async def test_a_draining_client_is_not_served(pair: Pair) -> None:
    frame = frame_of(produce_of({"plain": [(0, batch_of(b"a"))]}, ids=pair.ids), 9)
    for each in pair.sides:
        each.clients[0].send(frame)
        each.clients[0].connection.drain()
        each.clients[0].send(frame)
        await each.clients[0].settle()
    assert pair.native.taken == 1
    assert pair.native.clients[0].transport.received == pair.python.clients[0].transport.received != b""
    assert pair.native.clients[0].transport.is_closed


async def test_memory_that_is_crowded_is_given_back(pair: Pair) -> None:
    """Other connections wait for it."""
    sent = frame_of(produce_of({"plain": [(0, batch_of(bytes(3000)))]}, ids=pair.ids), 9)
    for each in pair.sides:
        budget = each.node.ports.clients.budget
        budget._small_limit = 5000  # noqa: SLF001
        each.clients[0].send(sent)
        each.clients[1].send(sent)
        assert budget.crowded
        for client in each.clients[:2]:
            await client.settle()
        assert not budget.crowded
    assert pair.native.taken == 2


async def test_a_stream_without_offsets_left_takes_nothing(pair: Pair) -> None:
    for each in pair.sides:
        each.node.serving.topics.partition("plain", 0).stream.next_offset = 2**63 - 2
    received = await pair.exchange(1, frame_of(produce_of({"plain": [(0, batch_of(b"a", b"b"))]}, ids=pair.ids), 9))
    assert received == b""
    for each in pair.sides:
        assert each.clients[1].transport.is_closed
        assert each.node.serving.storage.writable
        each.node.serving.topics.partition("plain", 0).stream.next_offset = 0
    assert pair.native.taken == 0


# bugs


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Side]:
    """A node with the native part."""
    async with side(tmp_path, "require") as found:
        topic = CreatableTopic(name="plain", num_partitions=PARTITIONS, replication_factor=1)
        await found.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 7)
        yield found


def plain_frame(at: int = 0) -> bytes:
    return frame_of(produce_of({"plain": [(at, batch_of(b"a"))]}, ids={}), 9)


def fail(*_: Any) -> Any:
    raise RuntimeError("a bug")


async def test_numbers_that_overflow(alone: Side) -> None:
    """The number would be another one: it is a panic, and the storage stops because the log has the batch."""
    alone.node.serving.topics.partition("plain", 0).appended_bytes = 2**63 - 1
    alone.clients[1].send(plain_frame())
    assert alone.clients[1].connection.closed
    assert "appended in part: panic: attempt to add with overflow" in str(alone.node.serving.storage.error)


async def test_a_batch_in_the_log_that_its_stream_does_not_know_stops_the_storage(
    alone: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch would get its offsets."""
    journal = alone.node.serving.storage.journal
    monkeypatch.setattr(journal, "start_run", fail)
    alone.clients[1].send(plain_frame())
    assert alone.taken == 1
    assert alone.clients[1].connection.closed
    assert not alone.node.serving.storage.writable
    monkeypatch.undo()
    answer, _ = await alone.exchange(2, plain_frame())
    result = decode_response(ProduceRequest, 9, answer[4:])[1].responses[0].partition_responses[0]
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert alone.taken == 1


async def test_an_error_before_anything_is_changed_leaves_the_request_to_python(
    alone: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    monkeypatch.setattr(alone.node.wal, "has_room", fail)
    answer, closed = await alone.exchange(1, plain_frame())
    assert answer
    assert not closed
    assert alone.taken == 0
    assert [str(each.exc_value) for each in seen] == ["a bug"]


async def test_a_bug_in_an_answer_aborts_its_connection_only(alone: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic is no exception that anything between here and the event loop would catch."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    for client in alone.clients:
        client.send(plain_frame())
    alone.clients[1].connection._bytes_held = -(2**63)  # noqa: SLF001
    for client in alone.clients:
        await client.settle()
    assert [client.transport.is_closed for client in alone.clients] == [False, True, False]
    assert [bool(client.transport.received) for client in alone.clients] == [True, False, True]
    assert [str(each.exc_value) for each in seen] == ["panic: attempt to subtract with overflow"]
    assert alone.node.serving.storage.writable
