"""Figures of a cluster: an outage of PostgreSQL, changes, rest, acks of the object log, and the cost of a cluster.

    python -m benchmarks.cluster [--quick] [--part NAME]... [--json FILE]

Nodes, clients, PostgreSQL and the S3 server share the processors of this machine. benchmarks/failover.py has the times
of failovers.

- outage: three nodes, 20 MB/s from one producer; PostgreSQL is stopped for a minute, and a consumer reads the tail
- changes: from the answer to CreateTopics on one node until each node names a leader of the topic
- rest: statements that PostgreSQL logs while three nodes have nothing to do
- acks: single records to a log in the object store, and PUTs of the same size to the same server without a node
- alone: one producer to one node alone and to one of three, in turn; each pair gives a ratio
"""

import asyncio
import itertools
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.store.s3 import S3Store
from benchmarks.lab.cluster import CLIENT, MIB, NODES, TIMEOUT_S, TOPIC, bootstrap, create, nodes_on
from benchmarks.lab.processes import cpu_s_of
from benchmarks.support import Report, middle, p99, parser
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.raw_client import raw_client
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Bucket, s3_server

RECORD_BYTES = 10_000
STATEMENT = re.compile(rb"LOG:  (?:statement|execute [^:]*): (\w+)")
"""A statement in the log of PostgreSQL, and its first word."""
BATCH_MS = 100
"""`wal.batch_ms`: the object log may wait as long for more records."""


class SteadyLoad:
    """A producer of records at a steady rate to all partitions of a topic, and a consumer of their ends."""

    def __init__(self, servers: str, partitions: int, per_second: float) -> None:
        self._producer = Producer(
            {**CLIENT, "bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5, "batch.size": 256_000}
        )
        self._consumer = Consumer(
            {**CLIENT, "bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(partitions)])
        self._partitions, self._per_second = partitions, per_second
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._read)]
        self.acks: list[tuple[float, float]] = []
        """Time at which each record was acknowledged, and after how many seconds."""
        self.reads: list[tuple[float, float]] = []
        """Time at which each record was read, and how many seconds after it was sent."""
        self.failed = 0

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop when everything is acknowledged."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._consumer.close()

    def _send(self) -> None:
        payload = os.urandom(RECORD_BYTES - 20)
        began = time.monotonic()
        for number in itertools.count():
            if self._stopping.is_set():
                break
            now = time.monotonic()
            value = b"%020.6f" % now + payload
            while True:
                try:
                    self._producer.produce(
                        TOPIC, value, partition=number % self._partitions, on_delivery=self._noted(now)
                    )
                    break
                except BufferError:
                    self._producer.poll(0.05)
            self._producer.poll(max(0.0, began + number / self._per_second - time.monotonic()))
        self._producer.flush(TIMEOUT_S)

    def _noted(self, sent_s: float) -> Callable[[KafkaError | None, Message], None]:
        def noted(error: KafkaError | None, _message: Message) -> None:
            now = time.monotonic()
            if error is None:
                self.acks.append((now, now - sent_s))
            else:
                self.failed += 1

        return noted

    def _read(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                value = message.value()
                if message.error() is None and value is not None:
                    now = time.monotonic()
                    self.reads.append((now, now - float(value[:20])))


def between(samples: Sequence[tuple[float, float]], since_s: float, until_s: float) -> list[float]:
    """Return the values of the samples of a time."""
    return [value for at_s, value in samples if since_s <= at_s < until_s] or [float("nan")]


def outage(report: Report, postgres: PostgresServer, *, quick: bool) -> None:
    """PostgreSQL is away while clients work."""
    seconds, mb_per_second = (10.0, 5.0) if quick else (60.0, 20.0)
    capacity = MIB * (128 if quick else 1024)
    with nodes_on(postgres.new_database(), NODES, wal_capacity_bytes=capacity) as nodes:
        create(nodes, TOPIC, NODES)
        load = SteadyLoad(bootstrap(nodes), NODES, mb_per_second * 1e6 / RECORD_BYTES)
        load.start()
        time.sleep(5)
        before = time.monotonic()
        postgres.stop()
        time.sleep(seconds)
        after = time.monotonic()
        postgres.start()
        time.sleep(5)
        load.stop()
    what = f"PostgreSQL away {seconds:.0f} s"
    acked = between(load.acks, before, after)
    report.add(f"{what}: produced meanwhile", len(acked) * RECORD_BYTES / 1e6 / seconds, "MB/s")
    report.add(f"{what}: produces failed", load.failed, "", "<= 0")
    report.add(f"{what}: ack p99 (before)", p99(between(load.acks, 0, before)) * 1000, "ms")
    report.add(f"{what}: ack p99", p99(acked) * 1000, "ms")
    read = between(load.reads, before, after)
    report.add(f"{what}: tail read meanwhile", len(read) / len(acked), "of the acked", ">= 0.9")
    report.add(f"{what}: sent until read p99", p99(read) * 1000, "ms")


async def seen_s(node: NodeProcess, topic: str) -> float:
    """Return when the node first names a leader of the topic."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
    async with raw_client(node.bootstrap) as client:
        while True:
            response = await client.call(request)
            (found,) = response.topics
            if not found.error_code and all(not each.error_code for each in found.partitions):
                return time.monotonic()


def changes(report: Report, postgres: PostgresServer, *, quick: bool) -> None:
    """Topics that one node creates are seen by all."""
    with nodes_on(postgres.new_database(), NODES) as nodes:
        took: list[float] = []

        async def see_all(topic: str, answered_s: float) -> None:
            seen = await asyncio.gather(*(seen_s(node, topic) for node in nodes))
            took.append(max(seen) - answered_s)

        for number in range(20 if quick else 100):
            topic = f"{TOPIC}-{number}"
            admin = AdminClient({**CLIENT, "bootstrap.servers": nodes[number % NODES].bootstrap})
            admin.create_topics([NewTopic(topic, NODES)])[topic].result()
            asyncio.run(see_all(topic, time.monotonic()))
    report.add("a topic created, seen by all nodes, median", middle(took) * 1000, "ms", "<= 100")
    report.add("a topic created, seen by all nodes, p99", p99(took) * 1000, "ms", "<= 100")


def rest(report: Report, postgres: PostgresServer, *, quick: bool) -> None:
    """Statements of nodes that have nothing to do."""
    seconds = 10 if quick else 60
    with nodes_on(postgres.new_database(), NODES) as nodes:
        create(nodes, TOPIC, NODES)
        time.sleep(5)
        postgres.set("log_statement", "all")
        before = postgres.log.stat().st_size
        time.sleep(seconds)
        lines = postgres.log.read_bytes()[before:].splitlines()
        postgres.set("log_statement", "none")
    found = [told[1] for line in lines if (told := STATEMENT.search(line)) is not None]
    asked = [first for first in found if first not in {b"BEGIN", b"COMMIT", b"ROLLBACK"}]
    report.add("statements of a node at rest", len(asked) / seconds / NODES, "/s", "<= 5")
    report.add("the same with BEGIN and COMMIT", len(found) / seconds / NODES, "/s")


async def put_times(bucket: S3Bucket, count: int, pause_s: float) -> list[float]:
    """Return the seconds of small PUTs to the server."""
    store = S3Store("bench", bucket.settings(), rng=random.Random(1))
    await store.open()
    took = []
    try:
        for number in range(count):
            began = time.monotonic()
            await store.put(f"bench/{number:08}", [os.urandom(1_000)], writer_id="bench")
            took.append(time.monotonic() - began)
            await asyncio.sleep(pause_s)
    finally:
        await store.close()
    return took


def ack_times(node: NodeProcess, count: int, pause_s: float) -> list[float]:
    """Return the seconds until records are acknowledged, one of which is sent every `pause_s`."""
    producer = Producer({**CLIENT, "bootstrap.servers": node.bootstrap, "linger.ms": 0, "acks": "all"})
    took: list[float] = []

    def noted(began: float) -> Callable[[KafkaError | None, Message], None]:
        return lambda _error, _message: took.append(time.monotonic() - began)

    for _ in range(count):
        began = time.monotonic()
        producer.produce(TOPIC, bytes(800), partition=0, on_delivery=noted(began))
        end = began + pause_s
        while (left := end - time.monotonic()) > 0:
            producer.poll(left)
    producer.flush(TIMEOUT_S)
    return took[count // 10 :]


def acks(report: Report, postgres: PostgresServer, *, quick: bool) -> None:
    """Acknowledgements of a log in the object store beside the store's own PUTs."""
    count = 40 if quick else 200
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as home, s3_server(Path(home)) as server:
        bucket = server.new_bucket()
        wanted = {**bucket.node_settings(), "wal_kind": "object"}
        with nodes_on(postgres.new_database(), 1, **wanted) as (node,):
            create([node], TOPIC, 1)
            puts = asyncio.run(put_times(bucket, count, 0.1))
            idle = ack_times(node, count, 0.3)
            busy = ack_times(node, count * 20, 0.005)
            puts += asyncio.run(put_times(bucket, count, 0.1))
    for name, took in (("after a pause", idle), ("200 records/s", busy)):
        goal = BATCH_MS + 1.2 * middle(puts) * 1000
        report.add(f"ack on the object log, {name}, median", middle(took) * 1000, "ms", f"<= {goal:.0f}")
        goal = BATCH_MS + 2 * p99(puts) * 1000
        report.add(f"ack on the object log, {name}, p99", p99(took) * 1000, "ms", f"<= {goal:.0f}")
    report.add("PUT of the same store, median", middle(puts) * 1000, "ms")
    report.add("PUT of the same store, p99", p99(puts) * 1000, "ms")


def burst(node: NodeProcess, partition: int, seconds: float) -> tuple[float, float]:
    """Send as fast as possible; returns MB/s and the node's CPU seconds per GB."""
    producer = Producer(
        {**CLIENT, "bootstrap.servers": node.bootstrap, "acks": "all", "linger.ms": 5, "batch.size": 256_000}
    )
    acked = 0

    def noted(error: KafkaError | None, _message: Message) -> None:
        nonlocal acked
        acked += error is None

    value, cpu_s, began = os.urandom(RECORD_BYTES), cpu_s_of(node.pid), time.monotonic()
    while time.monotonic() < began + seconds:
        try:
            producer.produce(TOPIC, value, partition=partition, on_delivery=noted)
            producer.poll(0)
        except BufferError:
            producer.poll(0.01)
    producer.flush(TIMEOUT_S)
    size_gb = acked * RECORD_BYTES / 1e9
    return size_gb * 1000 / (time.monotonic() - began), (cpu_s_of(node.pid) - cpu_s) / size_gb


def alone(report: Report, postgres: PostgresServer, *, quick: bool) -> None:
    """A node alone, and the same node as one of three, in turn."""
    pairs, seconds = (4, 1.0) if quick else (12, 1.0)  # the records stay on the disk: half a gigabyte a second
    capacity = {"wal_capacity_bytes": 1024 * MIB}
    speeds, costs = [], []
    with ExitStack() as stack:
        (single,) = stack.enter_context(nodes_on(postgres.new_database(), 1, **capacity))
        several = stack.enter_context(nodes_on(postgres.new_database(), NODES, **capacity))
        create([single], TOPIC, NODES)
        partition = create(several, TOPIC, NODES).index(1)
        for each, index in ((single, partition), (several[0], partition)):
            burst(each, index, 1.0)
        for number in range(pairs):
            both = [(single, 0), (several[0], 1)]
            found: dict[int, tuple[float, float]] = {}
            for node, name in both if number % 2 else reversed(both):
                found[name] = burst(node, partition, seconds)
            speeds.append(found[1][0] / found[0][0])
            costs.append(found[1][1] / found[0][1])
    report.add("produce in a cluster over alone, median of pairs", middle(speeds), "x", ">= 0.97")
    report.add("CPU of the node in a cluster over alone, median of pairs", middle(costs), "x", "<= 1.03")


PARTS = {each.__name__: each for each in (outage, changes, rest, acks, alone)}


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Figures of a cluster: outages, changes, statements, acks of the object log.")
    options_of.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be repeated")
    options = options_of.parse_args()
    report = Report("A cluster of three nodes on PostgreSQL")
    with postgres_server() as postgres:
        for name in options.part or PARTS:
            PARTS[name](report, postgres, quick=options.quick)
    report.finish(options)


if __name__ == "__main__":
    main()
