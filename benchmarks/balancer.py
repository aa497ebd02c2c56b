"""Effects of the balancer: how soon the load of nodes is even, and what clients notice of the moves.

    python -m benchmarks.balancer [--quick] [--part costs|joins|hot] [--partitions N] [--rate N] [--json FILE]

- `costs`: CPU of a node by requests and bytes, which `broker/cluster/balancer/costs.py` takes for the cost of
  partitions: batches that are appended, and answers to Fetch from memory. `benchmarks.replicas` measures those from
  objects.
- `joins`: a fourth node joins three, and is killed and started again, while an idempotent producer sends to all
  partitions in turn. The spread is the largest number of partitions that a node leads, over the mean.
- `hot`: of three nodes, one leads a partition with 40 % of all batches, among others.

The nodes have the defaults of `serve`. Nodes and clients share the processors of the machine.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from anabranch.broker.cluster.balancer.costs import RECEIVED_BYTE_S, REQUEST_S, SENT_BYTE_S
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from benchmarks.lab.cluster import (
    MIB,
    NODES,
    TOPIC,
    NumberedLoad,
    bootstrap,
    create,
    joining,
    leaders,
    nodes_on,
)
from benchmarks.lab.processes import cpu_s_of
from benchmarks.support import Report, p99, parser
from tests.support.node import NodeProcess
from tests.support.raw_client import RawClient, batch_of, raw_client

EVEN: Final = 1.15
LIMIT_S: Final = 180.0
"""Time after which an uneven cluster is reported as such."""
CONNECTIONS: Final = 8
SMALL_BYTES, LARGE_BYTES = 100, 100_000
HOT_PARTITIONS: Final = 31
HOT_BATCHES: Final = 20
"""Batches to the hot partition for each to another one: 40 % of all."""


# costs


async def on_connections(node: NodeProcess, work: Callable[[RawClient], Awaitable[None]], number: int) -> None:
    """Do `work` `number` times in total, one after the other on each of several connections."""

    async def repeat() -> None:
        async with raw_client(node.bootstrap) as client:
            for _ in range(number // CONNECTIONS):
                await work(client)

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(repeat())


def cpu_of(node: NodeProcess, work: Callable[[RawClient], Awaitable[None]], number: int) -> float:
    """Return the CPU seconds that the node needs for each piece of work, with the upload that follows."""
    node.wait_uploaded()
    before_s = cpu_s_of(node.pid)
    asyncio.run(on_connections(node, work, number))
    node.wait_uploaded()
    return (cpu_s_of(node.pid) - before_s) / (number // CONNECTIONS * CONNECTIONS)


def add_costs(report: Report, *, quick: bool) -> None:
    """Measure the table of costs."""
    number = 2_000 if quick else 20_000
    small, large = batch_of(b"x" * SMALL_BYTES), batch_of(b"x" * LARGE_BYTES)
    with nodes_on(None, 1, wal_capacity_bytes=256 * MIB, storage_upload_age_ms=1_000) as (node,):
        create([node], "small", 1)
        create([node], "large", 1)

        async def produce(client: RawClient, topic: str, batch: bytearray) -> None:
            await client.produce(topic, [batch])

        async def fetch(client: RawClient, topic: str, batch: bytearray) -> None:
            partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=len(batch))
            wanted = [FetchTopic(topic=topic, partitions=[partition])]
            answer = await client.call(FetchRequest(max_wait_ms=500, min_bytes=1, topics=wanted), 12)
            assert answer.responses[0].partitions[0].records

        cpu_of(node, lambda client: produce(client, "small", small), number // 4)  # so that nothing is new
        request_s = cpu_of(node, lambda client: produce(client, "small", small), number)
        large_s = cpu_of(node, lambda client: produce(client, "large", large), number // 10)
        fetch_s = cpu_of(node, lambda client: fetch(client, "small", small), number)
        large_fetch_s = cpu_of(node, lambda client: fetch(client, "large", large), number // 4)
    for name, found, known in (
        ("batch appended", request_s, REQUEST_S),
        ("response with records", fetch_s, REQUEST_S),
        ("KB appended", 1000 * (large_s - request_s) / len(large), 1000 * RECEIVED_BYTE_S),
        ("KB sent", 1000 * (large_fetch_s - fetch_s) / len(large), 1000 * SENT_BYTE_S),
    ):
        report.add(f"CPU for a {name}", found * 1e6, "us")
        report.add(f"CPU for a {name}, in costs.py", known * 1e6, "us")


# joins


def seconds_until(condition: Callable[[], bool]) -> float:
    """Return how long it takes until a condition holds; NaN if it does not."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() > began_s + LIMIT_S:
            return float("nan")
        time.sleep(0.2)
    return time.monotonic() - began_s


def add_joins(report: Report, partitions: int, *, quick: bool) -> None:
    """Let a node join, and die and return."""
    warm_s, new_id = 20.0 if quick else 60.0, NODES + 1
    with nodes_on(None, NODES, wal_capacity_bytes=128 * MIB, cluster_balancer=True) as nodes:
        create(nodes, TOPIC, partitions)
        load = NumberedLoad(bootstrap(nodes), partitions, at_once=5, pause_s=0.005)
        load.start()

        def is_even() -> bool:
            return max(Counter(leaders([nodes[0]], TOPIC)).values()) * new_id < EVEN * partitions

        def p99_ms(since_s: float, until_s: float) -> float:
            return 1000 * p99([each.waited_s for each in load.acks if since_s <= each.sent_s < until_s])

        time.sleep(warm_s)
        joining_s = time.monotonic()
        with joining(nodes[0], new_id) as joined:
            even_s = seconds_until(is_even)
            moved_s = time.monotonic()
            report.add(f"a node joins: spread below {EVEN} after", even_s, "s", "<= 60")
            before_ms = p99_ms(joining_s - warm_s / 2, joining_s)
            report.add("a node joins: p99 of acknowledgements before", before_ms, "ms")
            ratio = p99_ms(joining_s, moved_s) / before_ms
            report.add("a node joins: p99 of acknowledgements until even", ratio, "x that before", "<= 1.5")
            joined.kill9()
            seconds_until(lambda: new_id not in leaders([nodes[0]], TOPIC))
            joined.start()
            report.add(
                f"a node that was killed is back: spread below {EVEN} after", seconds_until(is_even), "s", "<= 60"
            )
            load.stop()
            load.add_losses(report, bootstrap([*nodes, joined]))


# hot


class BatchLoad:
    """Small batches at a steady rate to all partitions; the first one gets `HOT_BATCHES` times as many."""

    def __init__(self, nodes: Sequence[NodeProcess], rate: float) -> None:
        self._nodes = nodes
        self._round_s = (HOT_BATCHES + HOT_PARTITIONS - 1) / rate
        self._led = leaders([nodes[0]], TOPIC)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.sent: Counter[int] = Counter()
        """Batches acknowledged, by partition."""

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for all acknowledgements."""
        self._stopping.set()
        self._thread.join()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for node_id in range(1, len(self._nodes) + 1):
                group.create_task(self._send_to(node_id))

    async def _send_to(self, node_id: int) -> None:
        """Send what the node leads, a round after the other."""
        batch = bytes(batch_of(b"x" * SMALL_BYTES))
        due_s = time.monotonic()
        async with raw_client(self._nodes[node_id - 1].bootstrap) as client:
            while not self._stopping.is_set():
                led = [index for index, leader in enumerate(self._led) if leader == node_id]
                rounds = [led, *([[0]] * (HOT_BATCHES - 1) if 0 in led else [])]
                for indexes in rounds:
                    data = [PartitionProduceData(index=index, records=batch) for index in indexes]
                    topic = TopicProduceData(name=TOPIC, partition_data=data)
                    client.send(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic]), 9)
                failed = 0
                for _ in rounds:
                    _, answer = await client.receive(ProduceRequest, 9)
                    for each in (each for topic in answer.responses for each in topic.partition_responses):
                        self.sent[each.index] += not each.error_code
                        failed += bool(each.error_code)
                if failed:
                    self._led = await asyncio.to_thread(leaders, [self._nodes[0]], TOPIC)
                due_s = max(due_s + self._round_s, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())


def add_hot(report: Report, rate: float) -> None:
    """Let one partition have a large part of the load."""
    with nodes_on(None, NODES, wal_capacity_bytes=128 * MIB, cluster_balancer=True) as nodes:
        led = create(nodes, TOPIC, HOT_PARTITIONS)
        report.add("a hot partition: its neighbours at the start", led.count(led[0]) - 1, "")
        load = BatchLoad(nodes, rate)
        load.start()
        began_s = time.monotonic()

        def is_alone() -> bool:
            found = leaders([nodes[0]], TOPIC)
            return found.count(found[0]) == 1

        alone_s = seconds_until(is_alone)
        seconds = time.monotonic() - began_s
        load.stop()
        report.add("a hot partition: batches", load.sent.total() / seconds, "/s")
        report.add("a hot partition: its part of all batches", load.sent[0] / load.sent.total(), "")
        report.add("a hot partition: its neighbours are gone after", alone_s, "s", "<= 60")


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Seconds until the load of nodes is even.")
    options_of.add_argument("--part", choices=("costs", "joins", "hot"), help="[default: all of them]")
    options_of.add_argument("--partitions", type=int, default=300, help="partitions of `joins`  [default: 300]")
    options_of.add_argument("--rate", type=float, default=6000, help="batches a second of `hot`  [default: 6000]")
    options = options_of.parse_args()
    report = Report("balancer")
    if options.part in {None, "costs"}:
        add_costs(report, quick=options.quick)
    if options.part in {None, "joins"}:
        add_joins(report, options.partitions, quick=options.quick)
    if options.part in {None, "hot"}:
        add_hot(report, options.rate)
    report.finish(options)


if __name__ == "__main__":
    main()
