"""Two nodes in this process that must do the same with Produce requests: one in Python alone, one with the native part.

Clock, topic ids and disk are the test's, so that answers, bytes of the log, log cache, partitions' state and counters
can be compared.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.connection import Connection
from anabranch.protocol.codec import encode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from anabranch.wal.format import RING_POSITION
from anabranch.wal.interface import Buffer
from anabranch.wal.requests import IoKind, IoRequest
from benchmarks.lab.in_process import NullDevice
from tests.support.clock import ManualClock
from tests.support.native import native_mode
from tests.support.node import settings_for
from tests.support.raw_client import API_OF, decode_response, request_frame
from tests.support.waiting import until

TOPICS: Final = {
    "plain": {},
    "other": {},
    "small": {"max.message.bytes": "400"},
    "lz4": {"compression.type": "lz4"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "measured": {"max.decompressed.message.bytes": "100"},
    "timely": {"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "100000"},
}
PARTITIONS: Final = 3


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
        self.answered: Callable[[], object] = lambda: None
        """Called with each write."""

    def writelines(self, parts: Any) -> None:
        self.answered()
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
            "traffic": {rack: dict(each.received) for rack, each in node.ports.clients.traffic.racks.items()},
            "answered": {key: (each.count, sum(each.buckets)) for key, each in node.ports.clients.latency.items()},
            "held": (
                node.ports.clients.bytes_held,
                node.ports.clients.budget.small_bytes,
                node.ports.clients.budget.large_bytes,
            ),
            "closed": node.ports.clients.stats.closed_bad_input,
            "cache": (cache.current.size_bytes, cache.current.wal_offset, list(cache.current.order)),
            "log": (wal.records, wal.record_bytes, wal.blocks, wal.block_bytes, wal.used_bytes, wal.over_capacity),
            "refused": [sorted(map(str, each.connection.refused_batches)) for each in self.clients],
            "reading": [each.transport.reading for each in self.clients if not each.transport.is_closed],
            "notified": list(self.notified),
            "written": list(self.device.records),
        }


@asynccontextmanager
async def side(folder: Path, mode: str, **settings: object) -> AsyncIterator[Side]:
    """A node whose clock, random numbers and disk are the test's."""
    clock, devices = ManualClock(), Devices()
    environment = Surroundings(now_ms=clock.now_ms, logs=devices)
    wanted = {"wal_capacity_bytes": 64 << 20, "admin_enabled": False, "topic_auto_create": False, **settings}
    with native_mode(mode):
        async with run_node(settings_for(folder, **wanted), environment=environment) as node:
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


@asynccontextmanager
async def produce_pair(folder: Path, **settings: object) -> AsyncIterator[Pair]:
    """Two nodes with the same topics, one without and one with the native part; compared at the end."""
    async with AsyncExitStack() as stack:
        sides = [await stack.enter_async_context(side(folder / mode, mode, **settings)) for mode in ("off", "require")]
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
