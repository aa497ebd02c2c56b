"""Time for which clients wait while a partition moves to another living node, and what was lost or duplicated.

    python -m benchmarks.move [--quick] [--moves N] [--object-log] [--catalog-url URL] [--json FILE]

Three nodes on this machine, with device logs or, with `--object-log`, with logs in the object store (a directory). An
idempotent producer sends to every partition each 10 ms. Each round orders one partition to the next node, and ends when
that node has it and acknowledges. The time of a move, as clients see it, is the longest time from sending to
acknowledgement of the records that were sent to the partition in the round. At the end all records are read, and
compared with what was acknowledged. Nodes, clients and, with PostgreSQL, the catalog share the processors of the
machine.
"""

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import MoveReason, PartitionInfo
from benchmarks.failover import CLIENT, NODES, PARTITIONS, TIMEOUT_S, TOPIC, Load, Node, add_losses, read_all
from benchmarks.support import Report, middle, p99, parser

QUICK_MOVES, MOVES = 10, 50
CLUSTER = "anabranch"


class TimedLoad(Load):
    """Notes the longest time until an acknowledgement, by partition, since it was last set to 0."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self.longest_s = [0.0] * PARTITIONS

    def _note(self, error: KafkaError | None, message: Message) -> None:
        super()._note(error, message)
        partition = message.partition()
        if error is None and partition is not None:
            taken_s = self.last_acked_s[partition] - self.last_sent_s[partition]
            self.longest_s[partition] = max(self.longest_s[partition], taken_s)


async def partitions_of(catalog: Catalog) -> list[PartitionInfo]:
    """Return the partitions of the topic."""
    (topic,) = [topic for topic in await catalog.list_topics() if topic.name == TOPIC]
    return list(topic.partitions)


async def move(catalog: Catalog, index: int) -> float:
    """Move a partition to the next node; return how long it took from the order on."""
    info = (await partitions_of(catalog))[index]
    to_node = info.leader % NODES + 1
    began_s = time.monotonic()
    await catalog.request_moves({info.stream_id: to_node}, reason=MoveReason.OPERATOR, now_ms=int(time.time() * 1000))
    while (await partitions_of(catalog))[index].owner != to_node:
        if time.monotonic() > began_s + TIMEOUT_S:
            sys.exit(f"the partition was not moved: {await catalog.list_moves()}")
        await asyncio.sleep(0.01)
    return time.monotonic() - began_s


async def run_moves(url: str, load: TimedLoad, moves: int) -> tuple[list[float], list[float], list[float]]:
    """Return how long the moves took, how long their clients waited, and how long those of other partitions did."""
    catalog = Catalog(url)
    await catalog.open(cluster=CLUSTER)
    taken_s: list[float] = []
    waited_s: list[float] = []
    others_s: list[float] = []
    try:
        for round_ in range(moves):
            index = round_ % PARTITIONS
            await asyncio.to_thread(load.wait_all, time.monotonic())
            load.longest_s = [0.0] * PARTITIONS
            taken_s.append(await move(catalog, index))
            await asyncio.to_thread(load.wait_all, time.monotonic())
            waited_s.append(load.longest_s[index])
            others_s += [longest_s for other, longest_s in enumerate(load.longest_s) if other != index]
    finally:
        await catalog.close()
    return taken_s, waited_s, others_s


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds for which clients wait while a partition moves.")
    options_of.add_argument("--moves", type=int, help=f"number of moves  [default: {MOVES}; quick: {QUICK_MOVES}]")
    options_of.add_argument("--catalog-url", help="catalog of the cluster  [default: SQLite in a temporary folder]")
    options_of.add_argument("--object-log", action="store_true", help="logs in the object store")
    options = options_of.parse_args()
    moves = options.moves or (QUICK_MOVES if options.quick else MOVES)
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    url = options.catalog_url or f"sqlite:///{home}/catalog.db"
    nodes = [Node(home, 1 + at, url, machine=options.object_log) for at in range(NODES)]
    bootstrap = ",".join(node.address for node in nodes)
    try:
        for node in nodes:
            node.start()
        admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        load = TimedLoad(bootstrap)
        load.start()
        taken_s, waited_s, others_s = asyncio.run(run_moves(url, load, moves))
        load.stop()
        found = read_all(bootstrap)
    finally:
        for node in nodes:
            node.kill()
        shutil.rmtree(home)
    goal = "<= 1000" if options.object_log else "<= 250"
    report = Report(f"{moves} moves of a partition among {NODES} nodes")
    report.add("longest wait of a record while its partition moves, median", 1000 * middle(waited_s), "ms")
    report.add("longest wait of a record while its partition moves, p99", 1000 * p99(waited_s), "ms", goal)
    report.add("longest wait of a record of other partitions, median", 1000 * middle(others_s), "ms")
    report.add("longest wait of a record of other partitions, p99", 1000 * p99(others_s), "ms")
    report.add("from the order until another node has it, median", 1000 * middle(taken_s), "ms")
    report.add("from the order until another node has it, p99", 1000 * p99(taken_s), "ms")
    add_losses(report, load, found)
    report.finish(options)


if __name__ == "__main__":
    main()
