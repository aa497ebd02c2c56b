"""Nodes of one cluster on this machine, a load of numbered records, and what became of those that were acknowledged."""

import itertools
import shutil
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

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


def catalog_of(node: NodeProcess) -> str:
    """Return the URL of a node's catalog."""
    return str(node.settings["catalog_url"])


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
