"""Nodes of one cluster on this machine, a load of numbered records, and what became of those that were acknowledged."""

import itertools
import shutil
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import MoveReason, PartitionInfo
from benchmarks.support import Report
from tests.support.node import NodeProcess

NODES, TOPIC, TIMEOUT_S = 3, "bench", 120.0
MIB = 1 << 20
CLIENT = {"log_level": 0, "topic.metadata.refresh.interval.ms": 1_000, "reconnect.backoff.max.ms": 200}


@contextmanager
def nodes_on(
    catalog_url: str | None, count: int, first_id: int = 1, /, **wanted: object
) -> Iterator[list[NodeProcess]]:
    """Run nodes of a cluster with consecutive ids; without a URL their catalog is SQLite in a temporary folder."""
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    shared = {
        "catalog_url": catalog_url or f"sqlite:///{home}/catalog.db",
        "objects_path": home / "objects",
        "cluster_internal_port": 0,
        "wal_capacity_bytes": 256 * MIB,
        **wanted,
    }
    nodes = [
        NodeProcess(home / str(node_id), node_id=node_id, **shared) for node_id in range(first_id, first_id + count)
    ]
    try:
        for node in nodes:
            node.spawn()
        for node in nodes:
            node.wait_ready()
        yield nodes
    finally:
        for node in nodes:
            if node.running:
                node.kill9()
        shutil.rmtree(home)


@contextmanager
def joining(first: NodeProcess, node_id: int, **wanted: object) -> Iterator[NodeProcess]:
    """Run one more node of a cluster that has begun with `nodes_on`."""
    shared = {name: first.settings[name] for name in ("objects_path", "wal_capacity_bytes", "cluster_balancer")}
    with nodes_on(catalog_of(first), 1, node_id, **shared, **wanted) as (node,):
        yield node


def catalog_of(node: NodeProcess) -> str:
    """Return the URL of a node's catalog."""
    return str(node.settings["catalog_url"])


@asynccontextmanager
async def open_catalog(url: str) -> AsyncIterator[Catalog]:
    """Open a catalog, past its nodes."""
    catalog = Catalog(url)
    await catalog.open(cluster="anabranch")
    try:
        yield catalog
    finally:
        await catalog.close()


async def partitions_of(catalog: Catalog, topic: str = TOPIC) -> Sequence[PartitionInfo]:
    """Return the partitions of a topic."""
    (found,) = [each for each in await catalog.list_topics() if each.name == topic]
    return found.partitions


async def order_moves(catalog: Catalog, partitions: Sequence[PartitionInfo], to_node: int) -> None:
    """Order partitions to a node, as an operator does."""
    wanted = {each.stream_id: to_node for each in partitions}
    await catalog.request_moves(wanted, reason=MoveReason.OPERATOR, now_ms=int(time.time() * 1000))


def bootstrap(nodes: Sequence[NodeProcess]) -> str:
    """Return the addresses of the nodes."""
    return ",".join(node.bootstrap for node in nodes)


def create(nodes: Sequence[NodeProcess], topic: str, partitions: int) -> list[int]:
    """Create a topic; returns the leader of each partition."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap(nodes)})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result()
    return leaders(nodes, topic)


def leaders(nodes: Sequence[NodeProcess], topic: str) -> list[int]:
    """Return the leader of each partition."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap(nodes)})
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return [found[index].leader for index in range(len(found))]


class Ack(NamedTuple):
    """An acknowledged record, and when it was sent and acknowledged."""

    partition: int
    number: int
    sent_s: float
    acked_s: float

    @property
    def waited_s(self) -> float:
        """Time from sending to acknowledgement."""
        return self.acked_s - self.sent_s


class NumberedLoad:
    """An idempotent producer that sends numbered records to the partitions in turn, `at_once` after each pause."""

    def __init__(self, servers: str, partitions: int, *, at_once: int, pause_s: float) -> None:
        self._producer = Producer(
            {
                **CLIENT,
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "retry.backoff.ms": 50,
            }
        )
        self._partitions, self._at_once, self._pause_s = partitions, at_once, pause_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acks: list[Ack] = []
        """All acknowledgements, in their order."""
        self.failed = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for all acknowledgements."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        numbers = itertools.count()
        while not self._stopping.is_set():
            for number in itertools.islice(numbers, self._at_once):
                partition, noted = number % self._partitions, partial(self._note, time.monotonic())
                self._producer.produce(TOPIC, str(number), partition=partition, on_delivery=noted)
            self._producer.poll(self._pause_s)
        self._producer.flush(TIMEOUT_S)

    def _note(self, sent_s: float, error: KafkaError | None, message: Message) -> None:
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        if error is None:
            self.acks.append(Ack(partition, int(value), sent_s, time.monotonic()))
        else:
            self.failed += 1

    def wait_all(self, since_s: float) -> list[float]:
        """Wait until each partition has acknowledged a record sent after `since_s`; return how long each took."""
        found: dict[int, float] = {}
        at = bisect_left(self.acks, since_s, key=lambda each: each.acked_s)
        while len(found) < self._partitions:
            if time.monotonic() > since_s + TIMEOUT_S:
                missing = set(range(self._partitions)) - found.keys()
                sys.exit(f"partitions {missing} were not acknowledged in {TIMEOUT_S} s")
            time.sleep(0.002)
            for each in self.acks[at:]:
                at += 1
                if each.sent_s > since_s:
                    found.setdefault(each.partition, each.acked_s - since_s)
        return [found[partition] for partition in range(self._partitions)]

    def add_losses(self, report: Report, servers: str) -> None:
        """Read all records, and report which of the acknowledged ones were lost, duplicated or reordered."""
        found = read_all(servers, self._partitions)
        acked: list[set[int]] = [set() for _ in found]
        for each in self.acks:
            acked[each.partition].add(each.number)
        report.add("records acknowledged", len(self.acks), "")
        report.add("records refused to the producer", self.failed, "", "<= 0")
        lost = sum(len(numbers.difference(read)) for numbers, read in zip(acked, found, strict=True))
        twice = sum(count - 1 for read in found for count in Counter(read).values())
        disordered = sum(later < earlier for read in found for earlier, later in pairwise(read))
        report.add("acknowledged records lost", lost, "", "<= 0")
        report.add("records twice", twice, "", "<= 0")
        report.add("records out of order", disordered, "", "<= 0")


def read_all(servers: str, partitions: int) -> list[list[int]]:
    """Return all numbers by partition, in the order of their offsets."""
    consumer = Consumer({**CLIENT, "bootstrap.servers": servers, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(partitions)])
    found: list[list[int]] = [[] for _ in range(partitions)]
    ended = 0
    while ended < partitions:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            sys.exit("the records cannot be read")
        error, value, partition = message.error(), message.value(), message.partition()
        if error is not None:
            ended += error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - a constant
        elif value is not None and partition is not None:
            found[partition].append(int(value))
    consumer.close()
    return found
