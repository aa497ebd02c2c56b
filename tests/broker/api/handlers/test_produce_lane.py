"""The native lane of Produce beside Python: the same frames on two nodes, one with and one without the native part.

Answers, bytes of the log, log cache, partitions' state and counters must be the same.
"""

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, Final

import pytest

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.connection import Connection
from anabranch.protocol.batch import write_crc
from anabranch.protocol.codec import encode
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import CorruptBatch, ErrorCode
from anabranch.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.errors import StorageStopped
from anabranch.wal.format import RING_POSITION
from anabranch.wal.interface import Buffer
from anabranch.wal.requests import IoKind, IoRequest
from benchmarks.lab.in_process import NullDevice
from tests.support.clock import ManualClock
from tests.support.frames import FAMILIES
from tests.support.native import native_mode, require_native
from tests.support.node import settings_for
from tests.support.raw_client import API_OF, batch_of, decode_response, request_frame
from tests.support.waiting import until

TOPICS: Final = {
    "plain": {},
    "other": {},
    "small": {"max.message.bytes": "400"},
    "lz4": {"compression.type": "lz4"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "timely": {"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "100000"},
}
PARTITIONS: Final = 3
SOAK: Final = bool(os.environ.get("ANABRANCH_SOAK"))
SEEDS: Final = 200 if SOAK else 3
SMALL_BYTES: Final = 10_000
STEPS: Final = 120


@pytest.fixture(autouse=True)
def _native() -> None:
    require_native()


class Device(NullDevice):
    """Remembers what was written to the log."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.records: list[tuple[int, bytes]] = []
        self.failing: OSError | None = None

    def submit(self, request: IoRequest) -> None:
        if request.kind is IoKind.WRITE:
            self.records += [(at, bytes(data)) for at, data in request.segments if at >= RING_POSITION]
            if self.records and self.failing is not None:
                request.error = self.failing
        super().submit(request)


class Devices:
    """Place of the log."""

    def __init__(self) -> None:
        self.device: Device | None = None

    def exists(self, _path: Path) -> bool:
        return False

    def open(self, _path: Path, settings: Any, *, create: bool, exclusive: bool = True) -> Device:
        self.device = Device(settings.capacity_bytes)
        return self.device


@dataclass(frozen=True)
class Surroundings(Environment):
    """Gives each topic an id that can be foretold."""

    topic_ids: Iterator[int] = field(default_factory=partial(count, 1))

    def new_topic_id(self) -> bytes:
        return next(self.topic_ids).to_bytes(16, "big")


class Transport(asyncio.Transport):
    """The client's end: keeps what the node sends."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.connection: Connection
        self.received = b""
        self.reading = True
        self.is_closed = False

    def writelines(self, parts: Any) -> None:
        self.received += b"".join(parts)

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.connection_lost(None)

    close = abort


class Client:
    """A connection."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.connection = Connection(node.ports.clients, 0)
        self.transport = Transport()
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        """Let the connection receive bytes, as many at a time as it asks for."""
        at = 0
        while at < len(data) and not self.transport.is_closed and not self.connection.closed:
            space = self.connection.get_buffer(-1)
            count = min(len(space), len(data) - at)
            space[:count] = data[at : at + count]
            at += count
            self.connection.buffer_updated(count)

    async def settle(self) -> None:
        """Return when all requests are answered, and all that they appended is durable."""
        connection = self.connection
        await until(lambda: self.transport.is_closed or (connection.idle and not connection._outgoing))  # noqa: SLF001
        await until(lambda: not self.node.serving.storage.journal.is_writing)

    async def exchange(self, data: bytes) -> tuple[bytes, bool]:
        """Send bytes; return what comes back, and whether the node has closed the connection."""
        self.send(data)
        await self.settle()
        received, self.transport.received = self.transport.received, b""
        return received, self.transport.is_closed or self.connection.closed


class Side:
    """A node, its clients, and its disk."""

    def __init__(self, node: Node, device: Device, clock: ManualClock) -> None:
        self.node, self.device, self.clock = node, device, clock
        self.clients = [Client(node) for _ in range(3)]
        self.taken = 0
        """Frames that the lane has taken."""
        self.notified: list[str] = []
        take = node.ports.clients.take
        if take is not None:

            def counting(connection: Connection, frame: Buffer) -> bool:
                taken = take(connection, frame)
                self.taken += taken
                return taken

            node.ports.clients.take = counting

    def notify(self, partition: Partition) -> None:
        self.notified.append(f"{partition} {partition.high_watermark}")

    async def exchange(self, at: int, data: bytes) -> tuple[bytes, bool]:
        if self.clients[at].transport.is_closed or self.clients[at].connection.closed:
            self.clients[at] = Client(self.node)
        return await self.clients[at].exchange(data)

    async def call(self, request: Any, version: int) -> Any:
        received, closed = await self.exchange(0, frame_of(request, version))
        assert not closed
        return decode_response(type(request), version, received[4:])[1]

    def state(self) -> dict[str, Any]:
        """Everything that a Produce request changes."""
        node = self.node
        wal = node.wal.snapshot()
        partitions = {
            str(partition): {
                "snapshot": partition._encode_snapshot(),  # noqa: SLF001
                "offsets": (partition.stream.next_offset, partition.high_watermark, partition.stream.start_offset),
                "appended_bytes": partition.appended_bytes,
                "untimed_end": partition.untimed_end,
                "last_stable_offset": partition.last_stable_offset,
                "producers": {key: repr(entry) for key, entry in partition.producers.entries.items()},
                "runs": partition.stream.cached_runs(),
                "batches": [
                    (type(batch), *batch[:5], bytes(batch.payload))
                    for run in node.serving.storage.journal.cache.runs_of(partition.stream.stream_id).runs
                    for batch in run.batches
                ],
            }
            for partition in node.serving.topics.led_partitions()
        }
        cache = node.serving.storage.journal.cache
        return {
            "partitions": partitions,
            "requests": dict(node.serving.requests),
            "failures": node.serving.request_failures,
            "answered": {key: latency.count for key, latency in node.ports.clients.latency.items()},
            "held": (
                node.ports.clients.bytes_held,
                node.ports.clients.budget.small_bytes,
                node.ports.clients.budget.large_bytes,
            ),
            "closed": node.ports.clients.stats.closed_bad_input,
            "cache": (cache.current.size_bytes, cache.current.wal_offset, list(cache.current.order)),
            "log": (wal.records, wal.record_bytes, wal.blocks, wal.block_bytes, wal.used_bytes, wal.over_capacity),
            "refused": [sorted(map(str, each.connection.refused_batches)) for each in self.clients],
            "reading": [each.transport.reading for each in self.clients],
            "notified": list(self.notified),
            "written": list(self.device.records),
        }


@asynccontextmanager
async def side(folder: Path, mode: str) -> AsyncIterator[Side]:
    """A node whose clock, random numbers and disk are the test's."""
    clock, devices = ManualClock(), Devices()
    environment = Surroundings(now_ms=clock.now_ms, logs=devices)
    settings = settings_for(folder, wal_capacity_bytes=64 << 20, admin_enabled=False, topic_auto_create=False)
    with native_mode(mode):
        async with run_node(settings, environment=environment) as node:
            assert (node.ports.clients.take is not None) == (mode == "require")
            assert devices.device is not None
            yield Side(node, devices.device, clock)


class Pair:
    """Two nodes that must do the same."""

    def __init__(self, python: Side, native: Side) -> None:
        self.python, self.native = python, native

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.python, self.native

    async def exchange(self, at: int, data: bytes) -> bytes:
        python, native = [await each.exchange(at, data) for each in self.sides]
        assert native == python
        return native[0]

    async def produce(
        self, *batches: Buffer, version: int = 9, acks: int = -1, topic: str = "plain"
    ) -> ProduceResponse:
        """Send a batch to each partition from 0 on; return the answer."""
        request = produce_of({topic: list(enumerate(batches))}, acks=acks, ids=self.ids)
        received = await self.exchange(0, frame_of(request, version))
        response: ProduceResponse = decode_response(ProduceRequest, version, received[4:])[1]
        return response

    @property
    def ids(self) -> dict[str, bytes]:
        return {topic.name: topic.topic_id for topic in self.native.node.serving.topics}

    def compare(self) -> None:
        python, native = self.python.state(), self.native.state()
        for name, value in python.items():
            assert native[name] == value, name


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(side(tmp_path / mode, mode)) for mode in ("off", "require")]
        topics = [
            CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            for name, configs in TOPICS.items()
        ]
        for each in sides:
            answer = await each.call(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 7)
            assert not any(topic.error_code for topic in answer.topics), answer
        found = Pair(*sides)
        assert {topic.name: topic.topic_id for topic in found.python.node.serving.topics} == found.ids
        yield found
        found.compare()


def produce_of(
    wanted: dict[str, Any], *, acks: int = -1, ids: dict[str, bytes], transactional_id: str | None = None
) -> ProduceRequest:
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name=name,
                topic_id=ids.get(name, bytes(15) + b"x"),
                partition_data=[PartitionProduceData(index=index, records=batch) for index, batch in batches],
            )
            for name, batches in wanted.items()
        ],
    )


def frame_of(request: Any, version: int, *, number: int = 1, client_id: str = "raw") -> bytes:
    body = encode(request, version)
    return request_frame(API_OF[type(request)].key, version, body, correlation_id=number, client_id=client_id)


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


# anything


class Producers:
    """Sequence numbers of producers, as clients would choose them: mostly right."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next: dict[tuple[int, str, int], int] = {}
        self.epochs: dict[int, int] = {}

    def fields(self, place: tuple[str, int], count: int) -> dict[str, int]:
        rng = self.rng
        if rng.random() < 0.6:
            return {}
        producer = rng.randrange(3)
        epoch = self.epochs.get(producer, 0)
        key = (producer, *place)
        sequence = self.next.get(key, 0)
        roll = rng.random()
        if roll < 0.12:
            epoch = self.epochs[producer] = epoch + 1
            sequence = 0
        elif roll < 0.16:
            sequence = max(0, sequence - rng.randrange(8))
        elif roll < 0.18:
            sequence += rng.randrange(1, 4)
        self.next[key] = sequence + count
        return {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}


def usual_batch(rng: random.Random, place: tuple[str, int], producers: Producers, now_ms: int) -> Buffer:
    records = [Record(None, rng.randbytes(rng.choice([0, 5, 100, 5000])), now_ms)] * rng.choice([1, 1, 2, 5])
    compression = rng.choice([Compression.NONE] * 6 + list(Compression))
    return build_batch(records, compression=compression, **producers.fields(place, len(records)))


def random_batch(rng: random.Random, place: tuple[str, int], producers: Producers, now_ms: int) -> Buffer | None:
    if rng.random() < 0.02:
        return None
    count = rng.choice([1, 1, 2, 5])
    time_ms = now_ms + rng.choice([0, 0, 0, -1000, -200_000, 5000, -now_ms - 1])
    records = [Record(b"key" if rng.random() < 0.8 else None, rng.randbytes(rng.choice([0, 5, 100, 300])), time_ms)]
    compression = rng.choice([Compression.NONE] * 6 + list(Compression))
    batch = build_batch(records * count, compression=compression, **producers.fields(place, count))
    roll = rng.random()
    if roll < 0.08:
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.6 and batch[16] == 2:
            with suppress(CorruptBatch):  # its length was changed
                write_crc(batch)
    elif roll < 0.1:
        return batch[: rng.randrange(len(batch))]
    elif roll < 0.12:
        return batch + rng.randbytes(rng.randrange(1, 20))
    elif roll < 0.14:
        return batch + batch
    elif roll < 0.18:
        batch[22] |= rng.choice([0x08, 0x10, 0x20, 0x40, 0x80])
        write_crc(batch)
    return batch


def random_frame(rng: random.Random, producers: Producers, ids: dict[str, bytes], now_ms: int, number: int) -> bytes:
    wanted: dict[str, list[tuple[int, Buffer | None]]] = {}
    is_usual = rng.random() < 0.7
    names = ["plain"] * 6 + ["other"] * 3 + ([] if is_usual else [*TOPICS, "missing", "__consumer_offsets"])
    for name in rng.choices(names, k=rng.choice([1, 1, 1, 2, 3])):
        for _ in range(rng.choice([1, 1, 2, 3])):
            index = rng.choice([0, 0, 1, 2, PARTITIONS, -1]) if rng.random() < 0.05 else rng.randrange(PARTITIONS)
            taken = [at for at, _ in wanted.get(name, [])]
            if index not in taken or rng.random() < 0.1:
                make = usual_batch if is_usual else random_batch
                wanted.setdefault(name, []).append((index, make(rng, (name, index), producers, now_ms)))
    request = produce_of(
        wanted,
        acks=rng.choice([-1, -1, -1, 1, 1, 0, 2 if rng.random() < 0.1 else -1]),
        ids=ids,
        transactional_id="t" if rng.random() < 0.03 else None,
    )
    frame = frame_of(request, rng.randrange(3, 14), number=number, client_id=rng.choice(["", "raw", "a" * 300]))
    roll = rng.random()
    if is_usual:
        return frame
    if roll < 0.06:
        damaged = bytearray(frame)
        damaged[rng.randrange(4, min(len(frame), 90))] = rng.randrange(256)
        return bytes(damaged)
    if roll < 0.08:
        cut = frame[4 : rng.randrange(12, len(frame))]
        return len(cut).to_bytes(4, "big") + cut
    if roll < 0.1:
        longer = frame[4:] + rng.randbytes(rng.randrange(1, 9))
        return len(longer).to_bytes(4, "big") + longer
    return frame


def random_steps(rng: random.Random) -> Iterator[int]:
    for _ in range(STEPS):
        yield rng.choice([1, 1, 1, 2, 4])


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_frames(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    producers, ids = Producers(rng), pair.ids
    for number, together in enumerate(random_steps(rng)):
        now_ms = pair.native.clock.ms
        frames = [random_frame(rng, producers, ids, now_ms, number * 10 + at) for at in range(together)]
        await pair.exchange(rng.randrange(3), b"".join(frames))
        if number % 10 == 0:
            pair.compare()
        moved = rng.choice([0, 1, 500])
        for each in pair.sides:
            each.clock.ms += moved
    assert pair.native.taken > STEPS // 8
