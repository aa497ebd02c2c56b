"""Nodes of one cluster without sockets and disks: real handlers, coordinators and partitions, over logs in memory.

A message to another node may be lost, late, or there twice, and its answer too. A call that was given up may still
arrive, as long as the process that it was sent to lives. Logs survive a crash as far as they were durable. A node
learns late that another one has opened a partition. Time is that of `run_virtual`.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, CoordinatorTopic
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.partitions.record_work import RecordWork
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.marker_router import MarkerRouter
from anabranch.broker.kafka.transactions.markers import MarkerWriter
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.broker.kafka.transactions.verifier import TransactionVerifier
from anabranch.broker.node.net.exchange import Peer
from anabranch.broker.node.net.traffic import RackTraffic
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.settings.client_areas import GroupSettings, TransactionSettings
from anabranch.protocol import codec
from anabranch.protocol.batch import TRANSACTIONAL_MASK, parse_batch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from anabranch.protocol.record_scan import RECORD_BYTES_MAX
from anabranch.protocol.records import ControlType, control_record, decode_records
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.catalog.values import DEFAULT_LISTENER, PartitionInfo, TopicInfo
from anabranch.s3stream.errors import StorageError, StreamFenced
from anabranch.s3stream.model import ReadResult, StreamBatch
from anabranch.wal.interface import Durable
from tests.support.raw_client import API_OF, batch_of
from tests.support.waiting import until

CONFIG = TopicConfig(
    max_message_bytes=1 << 20,
    log_append_time=False,
    timestamp_before_max_ms=1 << 62,
    timestamp_after_max_ms=1 << 62,
    compression=None,
    compression_level=None,
    cleaning=None,
    retention_ms=-1,
    retention_bytes=-1,
    deletable=True,
    store="local",
    record_bytes_max=RECORD_BYTES_MAX,
)
TOPICS: Mapping[str, int] = {"t": 4, TRANSACTION_TOPIC: 2, OFFSETS_TOPIC: 2}
"""Partitions of each topic. At first the one with index i is led by node i % nodes."""
COMPLETE = {TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
CALL_S = 1.0
"""Time after which a call to another node is given up."""


class NodeGone(Exception):
    """The node has crashed before it answered a client."""


@dataclass
class PartitionFiles:
    """State of a partition that no crash loses."""

    info: PartitionInfo
    batches: list[StreamBatch] = field(default_factory=list)
    """Durable batches."""
    stream: "LogStream | None" = None
    """The stream that may append."""

    def open(self, node_id: int, delay_s: Callable[[], float]) -> "LogStream":
        if self.stream is not None:
            self.stream.error = StreamFenced("another node has opened it")
        self.info = replace(self.info, leader=node_id, leader_epoch=self.info.leader_epoch + 1)
        self.stream = LogStream(self, delay_s)
        return self.stream


class LogStream:
    """As much of a stream as a partition depends on. Appends become durable in order, each `delay_s()` later."""

    def __init__(self, files: PartitionFiles, delay_s: Callable[[], float]) -> None:
        self._files = files
        self.delay_s = delay_s
        self._waiting: list[tuple[StreamBatch, Durable]] = []
        self.stream_id, self.leader_epoch, self.label = files.info.stream_id, files.info.leader_epoch, ""
        self.start_offset = self.committed_offset = 0
        self.snapshot, self.recovered = b"", tuple(files.batches)
        self.snapshot_source: Any = None
        self.next_offset = self.confirmed_offset = files.batches[-1].end_offset if files.batches else 0
        self.last_durable: Durable | None = None
        self.error: StorageError | None = None

    def check_accepts(self) -> None:
        """Raise the stream's error."""
        if self.error is not None:
            raise self.error

    def append(self, batch: StreamBatch) -> Durable:
        self.check_accepts()
        assert batch.base_offset == self.next_offset
        self.next_offset = batch.end_offset
        if not self._waiting:
            asyncio.get_running_loop().call_later(self.delay_s(), self.flush)
        self.last_durable = Durable()
        self._waiting.append((batch._replace(payload=bytes(batch.payload)), self.last_durable))
        return self.last_durable

    def flush(self) -> None:
        """Make everything durable."""
        waiting, self._waiting = self._waiting, []
        if self.error is None:
            for batch, durable in waiting:
                self._files.batches.append(batch)
                self.confirmed_offset = batch.end_offset
                durable.complete()

    async def read(self, offset: int, _bytes_max: int, *, end_offset: int | None = None) -> ReadResult:
        end = self.confirmed_offset if end_offset is None else end_offset
        await asyncio.sleep(self.delay_s())
        return ReadResult([each for each in self._files.batches if offset <= each.base_offset < end], end)


class NodeTopics(TopicMap):
    """The topics as one node sees them."""

    def is_being_removed(self, _name: str) -> bool:
        return False

    def add(self, topic: Topic) -> None:
        self._insert(topic)


class ClusterNode:
    """One process of a node. `node` is what handlers get."""

    def __init__(self, cluster: "Cluster", node_id: int, epoch: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.epoch = epoch
        self.tasks: set[asyncio.Task[Any]] = set()
        self.topics = NodeTopics()
        for name in TOPICS:
            infos = tuple(cluster.files[TopicPartition(name, index)].info for index in range(TOPICS[name]))
            info = TopicInfo(name, name.encode().ljust(16), {}, infos, internal=name != "t")
            self.topics.add(Topic(info, CONFIG, [None] * len(infos)))
        for where, files in cluster.files.items():
            if files.info.leader == node_id:
                self.open(where)
        topics = cast("TopicManager", self.topics)
        groups = GroupCoordinator(
            CoordinatorTopic(topics, OFFSETS_TOPIC, cluster.now_ms),
            GroupSettings(),
            now_ms=cluster.now_ms,
            new_id=lambda: "member",
        )
        markers = MarkerWriter(topics, groups)
        self.router = MarkerRouter(markers, self.topics, self, node_id=node_id, node_epoch=epoch, spawn=self.spawn)
        transactions = TransactionCoordinator(
            CoordinatorTopic(topics, TRANSACTION_TOPIC, cluster.now_ms),
            self.router,
            TransactionSettings(abort_interval_ms=1_000),
            now_ms=cluster.now_ms,
            next_producer_id=cluster.next_producer_id,
        )
        self.serving: Any = SimpleNamespace(
            topics=self.topics,
            internal_topics=SimpleNamespace(ensure=AsyncMock()),  # they exist
            groups=groups,
            transactions=transactions,
            markers=markers,
            verifier=TransactionVerifier(transactions, self.topics, self, node_id=node_id),
            settings=SimpleNamespace(group=GroupSettings()),
            storage=SimpleNamespace(writable=True),
            now_ms=cluster.now_ms,
        )

    async def start(self) -> None:
        """Begin to load and to serve."""
        self.serving.groups.start()
        self.serving.transactions.start()
        for work in (self.serving.groups.run(), self.serving.transactions.run()):
            _ = self.spawn(work)

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine until the process ends."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def kill(self) -> None:
        """End the process."""
        for task in self.tasks:
            task.cancel()
        self.serving.groups.close()
        self.serving.transactions.close()
        for files in self.cluster.files.values():
            if files.info.leader == self.node_id and files.stream is not None:
                files.stream.error = StreamFenced("the process has ended")

    def open(self, where: TopicPartition) -> None:
        """Lead a partition."""
        files = self.cluster.files[where]
        stream = cast("Stream", files.open(self.node_id, self.cluster.flush_s))
        topic = self.topics.get(where.topic)
        assert topic is not None
        topic.partitions[where.partition] = Partition(
            where.topic, topic.topic_id, where.partition, stream, CONFIG, self.cluster.work, self.cluster.now_ms
        )
        self.see(where)

    def see(self, where: TopicPartition) -> None:
        """Learn who leads a partition."""
        topic = self.topics.get(where.topic)
        assert topic is not None
        infos = list(topic.info.partitions)
        infos[where.partition] = self.cluster.files[where].info
        topic.info = replace(topic.info, partitions=tuple(infos))
        if infos[where.partition].leader != self.node_id:
            topic.partitions[where.partition] = None

    async def handle(self, request: Any, version: int, peer: Peer | None = None) -> Any:
        """Answer a request that has arrived from a client or another node, by its handler."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        exchange: Any = SimpleNamespace(
            connection=SimpleNamespace(refused_batches={}, listener=DEFAULT_LISTENER, traffic=RackTraffic("")),
            listener=DEFAULT_LISTENER,
            api_version=version,
            closed=False,
            on_close=None,
            client_id="",
            complete=answered.set_result,
            peer=peer,
        )
        response = HANDLERS[API_OF[type(request)].key].function(self.serving, request, exchange)
        if asyncio.iscoroutine(response):
            return await response
        return await answered if response is None else response

    async def call(self, node_id: int, request: Any, version: int) -> Any:
        """Send a request to another node: `Peers`."""
        return await self.cluster.network.call(self, node_id, request, version)


class Network:
    """The ways between the nodes. `fate` decides about each message; by default all arrive at once."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster
        self.fate: Callable[[Any], tuple[list[float], float | None]] = lambda _: ([0.0], 0.0)
        """Returns after how many seconds copies of a request arrive, and when the answer does, if it does."""
        self.sent: list[tuple[int, Any]] = []
        """Requests with the ids of the nodes that they were sent to."""

    async def call(self, source: ClusterNode, node_id: int, request: Any, version: int) -> Any:
        target = self._cluster.nodes.get(node_id)
        self.sent.append((node_id, request))
        if target is None:
            await asyncio.sleep(0.001)
            raise PeerUnavailable("connection refused")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()
        copies, answer_s = self.fate(request)
        frame = codec.encode(request, version)

        async def arrive(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            received = codec.decode_exact(type(request), frame, version)
            response = await target.handle(received, version, Peer(source.node_id, source.epoch))
            if answer_s is not None:
                await asyncio.sleep(answer_s)
                data = codec.encode(response, version)
                if not answered.done():
                    answered.set_result(codec.decode_exact(type(response), data, version))

        for delay_s in copies:
            _ = target.spawn(arrive(delay_s))  # a process that ends loses what it has not received
        try:
            async with asyncio.timeout(CALL_S):
                return await answered
        except TimeoutError:
            raise PeerUnavailable(f"node {node_id} does not answer node {source.node_id}") from None


class Cluster:
    """All nodes, and what survives them. `nodes` holds the processes that live."""

    def __init__(self, dice: random.Random, node_ids: int = 2) -> None:
        self.dice = dice
        self.work = RecordWork(1 << 20)
        self.node_ids = range(node_ids)
        places = [TopicPartition(name, index) for name, count in TOPICS.items() for index in range(count)]
        self.files = {
            where: PartitionFiles(
                PartitionInfo(
                    index=where.partition, stream_id=stream_id, leader=where.partition % node_ids, leader_epoch=0
                )
            )
            for stream_id, where in enumerate(places)
        }
        self.network = Network(self)
        self.nodes: dict[int, ClusterNode] = {}
        self._epochs = dict.fromkeys(self.node_ids, 0)
        self._last_producer_id = 100

    def flush_s(self) -> float:
        """Time until what was appended is durable."""
        return self.dice.uniform(0.001, 0.01)

    @staticmethod
    def now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    async def next_producer_id(self) -> int:
        await asyncio.sleep(0)
        self._last_producer_id += 1
        return self._last_producer_id

    async def start(self) -> "Cluster":
        for node_id in self.node_ids:
            await self.start_node(node_id)
        for node in self.nodes.values():
            for where in self.files:
                node.see(where)
        return self

    async def start_node(self, node_id: int) -> ClusterNode:
        """Start a process; the others learn later, by `announce`, that it has opened its partitions."""
        self._epochs[node_id] += 1
        node = ClusterNode(self, node_id, self._epochs[node_id])
        self.nodes[node_id] = node
        await node.start()
        return node

    def kill(self, node_id: int) -> None:
        self.nodes.pop(node_id).kill()

    def move(self, where: TopicPartition, node_id: int) -> None:
        """Let another living node lead a partition without a coordinator, once everything in it is durable."""
        if node_id not in self.nodes or self.leader(where) not in self.nodes or self.leader(where) == node_id:
            return
        stream = self.files[where].stream
        assert stream is not None
        stream.flush()
        self.nodes[node_id].open(where)
        for node in self.nodes.values():
            partition = node.topics.get(where.topic)
            assert partition is not None
            if node.node_id != node_id:
                partition.partitions[where.partition] = None

    def announce(self, lag_s: Callable[[], float]) -> None:
        """Tell all nodes, each after a while, who leads what."""
        loop = asyncio.get_running_loop()
        for node in self.nodes.values():
            for where in self.files:
                loop.call_later(lag_s(), node.see, where)

    async def stop(self) -> None:
        for node_id in list(self.nodes):
            node = self.nodes.pop(node_id)
            tasks = list(node.tasks)
            node.kill()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
        self.work.close()

    # -- For clients -------------------------------------------------------------------------------------------------

    def leader(self, where: TopicPartition) -> int:
        return self.files[where].info.leader

    def coordinator(self, transactional_id: str) -> int:
        return self.leader(TopicPartition(TRANSACTION_TOPIC, partition_of(transactional_id, TOPICS[TRANSACTION_TOPIC])))

    def group_coordinator(self, group_id: str) -> int:
        return self.leader(TopicPartition(OFFSETS_TOPIC, partition_of(group_id, TOPICS[OFFSETS_TOPIC])))

    def partition(self, where: TopicPartition) -> Partition:
        """Return a partition from the node that leads it."""
        return self.nodes[self.leader(where)].topics.partition(*where)

    async def ask(self, node_id: int, request: Any, version: int) -> Any:
        """Send a client's request to a node. Raises NodeGone."""
        node = self.nodes.get(node_id)
        if node is None:
            await asyncio.sleep(0.01)
            raise NodeGone
        task = node.spawn(node.handle(request, version))
        await asyncio.wait([task])
        if task.cancelled():
            raise NodeGone
        return task.result()


class Client:
    """A transactional producer, which sends each request to the node that it is for."""

    def __init__(self, cluster: Cluster, name: str, *, group: str = "", adds: bool) -> None:
        """`adds`: transaction.version 1, whose clients add partitions; otherwise partitions are added by writing."""
        self.cluster = cluster
        self.name = name
        self.group = group
        self.adds = adds
        self.producer = Producer(-1, -1)
        self.sequences: dict[int, int] = {}

    async def coordinate(self, request: Any, version: int) -> Any:
        """Send a request to the coordinator of the transactional id."""
        return await self.cluster.ask(self.cluster.coordinator(self.name), request, version)

    async def init(self) -> ErrorCode:
        got = await self.coordinate(InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=10_000), 4)
        if not got.error_code:
            self._begin(Producer(got.producer_id, got.producer_epoch))
        return ErrorCode(got.error_code)

    async def opened(self) -> "Client":
        """Initialize until it succeeds."""
        while error := await self.init():
            assert error.retriable, error
            await asyncio.sleep(0.02)
        return self

    def _begin(self, producer: Producer) -> None:
        if producer != self.producer:
            self.sequences.clear()
        self.producer = producer

    async def add(self, *partitions: int) -> ErrorCode:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer.producer_id,
            v3_and_below_producer_epoch=self.producer.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(partitions))],
        )
        (result,) = (await self.coordinate(request, 3)).results_by_topic_v3_and_below
        return ErrorCode(max(each.partition_error_code for each in result.results_by_partition))

    async def write(self, partition: int, value: bytes, *, version: int | None = None) -> ErrorCode:
        """Produce, after adding the partition if the client has to."""
        if self.adds and (error := await self.add(partition)):
            return error
        return await self.produce(partition, value, version=version)

    async def produce(self, partition: int, value: bytes, *, version: int | None = None) -> ErrorCode:
        producer, sequence = self.producer, self.sequences.get(partition, 0)
        batch = batch_of(
            value,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_MASK,
        )
        data = TopicProduceData(
            name="t", partition_data=[PartitionProduceData(index=partition, records=memoryview(bytearray(batch)))]
        )
        request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=1000, topic_data=[data])
        version = version or (11 if self.adds else 12)
        response = await self.cluster.ask(self.cluster.leader(TopicPartition("t", partition)), request, version)
        error = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if not error and self.producer == producer:
            self.sequences[partition] = sequence + 1
        return error

    async def commit_offset(self, offset: int, *, version: int | None = None) -> ErrorCode:
        """Commit an offset of the partition t-0 for the client's group, as part of the transaction."""
        if self.adds:
            added = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer.producer_id,
                producer_epoch=self.producer.epoch,
                group_id=self.group,
            )
            if error := (await self.coordinate(added, 3)).error_code:
                return ErrorCode(error)
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        node_id = self.cluster.group_coordinator(self.group)
        response = await self.cluster.ask(node_id, request, version or (4 if self.adds else 5))
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def committed_offset(self) -> int | None:
        """Return the group's offset, as its coordinator has it."""
        offsets = (
            self.cluster.nodes[self.cluster.group_coordinator(self.group)].serving.groups.shard(self.group).offsets
        )
        found = offsets.of(self.group)
        committed = None if found is None else found.get("t", 0)
        return None if committed is None else committed.offset

    async def end(self, *, commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            committed=commit,
        )
        got = await self.coordinate(request, 3 if self.adds else 5)
        if not got.error_code and not self.adds:
            self._begin(Producer(got.producer_id, got.producer_epoch))
        return ErrorCode(got.error_code)

    def status(self) -> TransactionStatus:
        """Return the state of the transactional id. Raises KafkaError."""
        coordinator = self.cluster.nodes[self.cluster.coordinator(self.name)].serving.transactions
        status: TransactionStatus = coordinator.describe(self.name).status
        return status

    async def settled(self) -> None:
        """Wait until all markers are written."""
        await until(lambda: self.status() in COMPLETE, timeout_s=60, pause_s=0.01)


@dataclass
class Segment:
    """Values of a producer in one partition up to a marker."""

    values: list[bytes]
    committed: bool | None
    """None: there is no marker."""


def segments(files: PartitionFiles) -> list[Segment]:
    """Return the transactions of a partition, in the order of their first values."""
    found: list[Segment] = []
    open_: dict[int, Segment] = {}
    for batch in files.batches:
        header = parse_batch(batch.payload)
        if header.is_control:
            kind, _ = control_record(batch.payload)
            if header.producer_id in open_:
                open_.pop(header.producer_id).committed = kind == ControlType.COMMIT
            continue
        if header.producer_id not in open_:
            found.append(Segment([], None))
            open_[header.producer_id] = found[-1]
        open_[header.producer_id].values += [record.value or b"" for record in decode_records(batch.payload)]
    return found
