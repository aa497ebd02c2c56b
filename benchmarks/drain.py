"""Seconds in which a node with many partitions is drained under light load, and what clients noticed of it.

    python -m benchmarks.drain [--quick] [--partitions N] [--catalog-url URL] [--json FILE]

Two nodes on this machine, with device logs. One leads all partitions of a topic; an idempotent producer sends a record
to the next partition each millisecond. The node is drained, and the time is until it has none of the partitions. At the
end all records are read, and compared with what was acknowledged. Nodes, clients and, with PostgreSQL, the catalog
share the processors of the machine.
"""

import asyncio
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from anabranch.s3stream.catalog.catalog import Catalog
from benchmarks.failover import CLIENT, TIMEOUT_S, Node
from benchmarks.support import Report, middle, p99, parser

QUICK_PARTITIONS, PARTITIONS = 100, 1_000
TOPIC, CLUSTER = "drain", "anabranch"
SEND_S = 0.001
DRAINED = 1


class Load:
    """A producer that sends numbered records to the partitions in turn, and notes the acknowledgements."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self._producer = Producer({**CLIENT, "bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._sent_s: dict[int, float] = {}
        self.acked: list[list[int]] = [[] for _ in range(partitions)]
        """Numbers by partition, in the order of the acknowledgements."""
        self.waited_s: list[float] = []
        """Times from sending to acknowledgement, in the order of the acknowledgements."""
        self.failed = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for all acknowledgements."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            self._sent_s[number] = time.monotonic()
            partition = number % len(self.acked)
            self._producer.produce(TOPIC, str(number), partition=partition, on_delivery=self._note)
            number += 1
            self._producer.poll(SEND_S)
        self._producer.flush(TIMEOUT_S)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        value, partition = message.value(), message.partition()
        assert value is not None
        assert partition is not None
        if error is not None:
            self.failed += 1
            return
        self.acked[partition].append(int(value))
        self.waited_s.append(time.monotonic() - self._sent_s.pop(int(value)))


def read_all(bootstrap: str, load: Load) -> list[list[int]]:
    """Return all numbers by partition, in the order of their offsets."""
    consumer = Consumer({**CLIENT, "bootstrap.servers": bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(len(load.acked))])
    found: list[list[int]] = [[] for _ in load.acked]
    ended = 0
    while ended < len(found):
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


async def drain(url: str, load: Load) -> tuple[float, list[float]]:
    """Drain the node; return the seconds that it took, and how long records waited meanwhile."""
    catalog = Catalog(url)
    await catalog.open(cluster=CLUSTER)
    try:
        while len(load.waited_s) < 2 * len(load.acked):  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.1)
        before, began_s = len(load.waited_s), time.monotonic()
        await catalog.drain_node(DRAINED, draining=True)
        while await catalog.count_open_streams(DRAINED):
            if time.monotonic() > began_s + TIMEOUT_S:
                sys.exit(f"the node is not drained: {await catalog.list_moves()}")
            await asyncio.sleep(0.05)
        return time.monotonic() - began_s, load.waited_s[before:]
    finally:
        await catalog.close()


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds in which a node is drained, and client errors.")
    options_of.add_argument(
        "--partitions", type=int, help=f"number of partitions  [default: {PARTITIONS}; quick: {QUICK_PARTITIONS}]"
    )
    options_of.add_argument("--catalog-url", help="catalog of the cluster  [default: SQLite in a temporary folder]")
    options = options_of.parse_args()
    partitions = options.partitions or (QUICK_PARTITIONS if options.quick else PARTITIONS)
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    url = options.catalog_url or f"sqlite:///{home}/catalog.db"
    nodes = [Node(home, 1 + at, url, machine=False) for at in range(2)]
    bootstrap = ",".join(node.address for node in nodes)
    try:
        nodes[0].start()
        admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, partitions)])[TOPIC].result()
        nodes[1].start()
        load = Load(bootstrap, partitions)
        load.start()
        try:
            seconds, waited_s = asyncio.run(drain(url, load))
        finally:
            load.stop()
        found = read_all(bootstrap, load)
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(home)
    report = Report(f"drain of a node that leads {partitions} partitions")
    report.add("seconds until the node leads none", seconds, "s", "<= 30")
    report.add("records acknowledged", sum(map(len, load.acked)), "")
    report.add("records refused to the producer", load.failed, "", "<= 0")
    report.add("wait of a record during the drain, median", 1000 * middle(waited_s), "ms")
    report.add("wait of a record during the drain, p99", 1000 * p99(waited_s), "ms")
    lost = sum(len(set(acked) - set(read)) for acked, read in zip(load.acked, found, strict=True))
    report.add("acknowledged records lost", lost, "", "<= 0")
    report.add("records twice", sum(count - 1 for read in found for count in Counter(read).values()), "", "<= 0")
    report.add("records out of order", sum(b < a for read in found for a, b in pairwise(read)), "", "<= 0")
    report.finish(options)


if __name__ == "__main__":
    main()
