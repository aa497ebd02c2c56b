"""Effects of replicas: what they take off the leader of a partition, and off the network between racks.

    python -m benchmarks.replicas [--quick] [--part catchup|fanout] [--rate MB] [--json FILE]

- `catchup`: of two nodes in racks of their own, one leads all. A producer sends 16 KiB batches to it at a steady rate,
  alone, then beside a consumer that reads the history of another topic again and again at full speed: from the replica,
  since it has its rack, and from the leader, since it has none. The phases follow each other in each round, and each
  round gives ratios. Nothing of the history is in memory at the beginning. Leader and producer have one processor,
  replica and consumer another one, if there are two: as on machines of their own, but for the memory, its caches and
  the disk. What those cost shows beside the same consumer at a node of another cluster.
- `fanout`: ten consumers (librdkafka) in three racks, with a node in each, read all that is sent to a topic of three
  partitions, one led in each rack. Bytes from rack to rack are those that the consumers have received from each node
  (`rxbytes` of their statistics), and those on the connections between the nodes (`ss`).
"""

import asyncio
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from anabranch.broker.cluster.balancer.costs import LOADED_BYTE_S, REQUEST_S, SENT_BYTE_S
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.produce import ProduceRequest
from benchmarks.lab.cluster import (
    CLIENT,
    MIB,
    TIMEOUT_S,
    bootstrap,
    catalog_of,
    joining,
    leaders,
    nodes_on,
    open_catalog,
    order_moves,
    partitions_of,
)
from benchmarks.lab.processes import cpu_s_of
from benchmarks.support import Report, middle, p99, parser
from tests.support.node import NodeProcess
from tests.support.raw_client import RawClient, batch_of, connect, produce_request, raw_client

HISTORY, LIVE = "history", "live"
SPAWN: Final = multiprocessing.get_context("spawn")
BATCH_BYTES: Final = 16 << 10
FETCH_BYTES: Final = 1 << 20
FETCH_VERSION, PRODUCE_VERSION = 12, 9
IN_FLIGHT: Final = 32
"""Batches that are not acknowledged when the history is written."""

RACKS: Final = ("a", "b", "c")
CONSUMERS: Final = 10
RECORD_BYTES: Final = 1024
STATISTICS_S: Final = 0.5
INTERNAL: Final = re.compile(r"(\S+)\s+users:.*?pid=(\d+).*?bytes_acked:(\d+)(?:.*?bytes_received:(\d+))?")
"""Of a line of `ss`: the address of the peer, the process of this end, and the bytes that it has sent and received."""


@contextmanager
def racked(racks: Sequence[str], **wanted: object) -> Iterator[list[NodeProcess]]:
    """Run a cluster with a node in each rack; their ids begin with 1."""
    with ExitStack() as stack:
        (first,) = nodes = stack.enter_context(nodes_on(None, 1, 1, rack=racks[0], **wanted))
        for node_id, rack in enumerate(racks[1:], 2):
            nodes.append(stack.enter_context(joining(first, node_id, rack=rack)))
        yield nodes


def create(nodes: Sequence[NodeProcess], topic: str, *replicas: Sequence[int]) -> None:
    """Create a topic whose partitions have these replicas, and are led by the first of each."""
    admin = AdminClient({**CLIENT, "bootstrap.servers": bootstrap(nodes)})
    wanted = NewTopic(topic, len(replicas), replica_assignment=[list(each) for each in replicas])
    admin.create_topics([wanted])[topic].result()


# catchup


class Phase(NamedTuple):
    """Figures of some time in which the producer ran."""

    acks_s: Sequence[float]
    """Time from when each batch was due until it was acknowledged."""
    read_mb_s: float
    cores: Sequence[float]
    """CPU seconds a second of each node, and of the consumer."""


async def write_history(node: NodeProcess, size_bytes: int) -> None:
    """Fill the first partition of the history with batches."""
    request = produce_request(HISTORY, [batch_of(os.urandom(BATCH_BYTES))])
    async with raw_client(node.bootstrap) as client:
        unanswered = 0
        for left in range(size_bytes // BATCH_BYTES, 0, -1):
            client.send(request, PRODUCE_VERSION)
            unanswered += 1
            while unanswered >= min(IN_FLIGHT, left):
                await _acknowledged(client)
                unanswered -= 1


async def _acknowledged(client: RawClient) -> None:
    _, answer = await client.receive(ProduceRequest, PRODUCE_VERSION)
    code = answer.responses[0].partition_responses[0].error_code
    if code:
        sys.exit(f"a batch was refused with error {code}")


async def move(url: str, topic: str, to_node: int) -> None:
    """Let another node lead the partition of a topic. It has nothing in memory of what is in objects."""
    async with open_catalog(url) as catalog:
        await order_moves(catalog, await partitions_of(catalog, topic), to_node)
        until_s = time.monotonic() + TIMEOUT_S
        while await catalog.list_moves():
            if time.monotonic() > until_s:
                sys.exit(f"the history was not moved: {await catalog.list_moves()}")
            await asyncio.sleep(0.05)


async def produce_steadily(node: NodeProcess, rate_bytes: float, seconds: float) -> Sequence[float]:
    """Send batches when they are due, whether or not earlier ones are acknowledged; return how long each waited."""
    request = produce_request(LIVE, [batch_of(os.urandom(BATCH_BYTES))])
    step_s = BATCH_BYTES / rate_bytes
    due: deque[float] = deque()
    waited_s: list[float] = []
    async with raw_client(node.bootstrap) as client:

        async def receive() -> None:
            while len(waited_s) < number:
                await _acknowledged(client)
                waited_s.append(time.monotonic() - due.popleft())

        began_s, number = time.monotonic(), int(seconds / step_s)
        receiving = asyncio.create_task(receive())
        for count in range(number):
            due.append(began_s + count * step_s)
            await asyncio.sleep(max(due[-1] - time.monotonic(), 0))
            client.send(request, PRODUCE_VERSION)
        await receiving
    return waited_s


def read_again_and_again(addresses: Mapping[int, str], leader: int, rack: str, total: Any) -> None:
    """Read the history from its beginning to its end, as often as there is time, as a consumer of the rack does."""
    asyncio.run(_read_again_and_again(addresses, leader, rack, total))


async def _read_again_and_again(addresses: Mapping[int, str], leader: int, rack: str, total: Any) -> None:
    for number in itertools.count():  # a name of its own each time: a leader serves who comes back for the same offset
        clients = {
            node_id: await connect(address, f"reader-{os.getpid()}-{number}") for node_id, address in addresses.items()
        }
        at, offset, end = leader, 0, 1
        while offset < end:
            answer = await clients[at].call(_fetch(offset, rack), FETCH_VERSION)
            part = answer.responses[0].partitions[0]
            if part.preferred_read_replica >= 0:
                at = part.preferred_read_replica
            elif part.error_code:
                at = leader
            elif part.records:
                *_, (last, _) = iterate_batches(memoryview(part.records))
                offset, end = last.next_offset, part.high_watermark
                total.value += len(part.records)
        for client in clients.values():
            await client.close()


def _fetch(offset: int, rack: str) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    topics = [FetchTopic(topic=HISTORY, partitions=[part])]
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=50 << 20, topics=topics, rack_id=rack)


def processors() -> Sequence[int]:
    """Return the processors that this process may use, first the one that devices interrupt most.

    The kernel ends the writes of a log there, in a worker that waits for its turn like other processes.
    """
    counts: Counter[int] = Counter(dict.fromkeys(os.sched_getaffinity(0), 0))
    lines = Path("/proc/interrupts").read_text().splitlines()
    for line in lines[1:]:
        name, *numbers = line.split()[: 1 + len(lines[0].split())]
        if name[:-1].isdigit():
            counts.update({at: int(number) for at, number in enumerate(numbers) if at in counts})
    return [at for at, _ in counts.most_common()]


PROCESSORS: Final = processors()
MINE, ELSEWHERE = PROCESSORS[0], PROCESSORS[-1]


def pin(pid: int, processor: int) -> None:
    """Let a process, with all its threads, run on one processor only."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), [processor])


class Reading(NamedTuple):
    """Reader of the history: at which nodes, and of which rack."""

    nodes: Sequence[NodeProcess]
    """In the order of their ids, from 1 on."""
    leader: int
    rack: str = ""


@contextmanager
def reading_history(reading: Reading | None, total: Any) -> Iterator[list[int]]:
    """Run a consumer that adds the bytes it has read to a total, if one is wanted; yield its process id."""
    if reading is None:
        yield []
        return
    addresses = {node_id: node.bootstrap for node_id, node in enumerate(reading.nodes, 1)}
    arguments = (addresses, reading.leader, reading.rack, total)
    reader = SPAWN.Process(target=read_again_and_again, args=arguments, daemon=True)
    reader.start()
    try:
        assert reader.pid is not None
        pin(reader.pid, ELSEWHERE)
        while not total.value:  # its interpreter starts
            if not reader.is_alive():
                sys.exit("the history cannot be read")
            time.sleep(0.05)
        yield [reader.pid]
    finally:
        reader.kill()
        reader.join()


def measure(
    node: NodeProcess, replica: NodeProcess, reading: Reading | None, rate_bytes: float, seconds: float
) -> Phase:
    """Produce to a node for some seconds, beside a consumer if one is wanted."""
    total = SPAWN.Value("q", 0, lock=False)
    with reading_history(reading, total) as readers:
        pids = [node.pid, replica.pid, *readers]
        before, read_before, began_s = [cpu_s_of(pid) for pid in pids], total.value, time.monotonic()
        acks_s = asyncio.run(produce_steadily(node, rate_bytes, seconds))
        took_s = time.monotonic() - began_s
        cores = [(cpu_s_of(pid) - earlier_s) / took_s for pid, earlier_s in zip(pids, before, strict=True)]
        return Phase(acks_s, (total.value - read_before) / took_s / 1e6, cores)


def p999(values: Sequence[float]) -> float:
    """Return the 99.9th percentile."""
    return quantiles(values, n=1000, method="inclusive")[998]


def fill(node: NodeProcess, size_bytes: int) -> None:
    """Write the history to a node that leads it, and start it again: a stop uploads, and nothing is in memory then."""
    asyncio.run(write_history(node, size_bytes))
    node.terminate()
    node.start()


def add_catchup(report: Report, rate_mb: float, *, quick: bool) -> None:
    """Measure acknowledgements beside a consumer that reads history."""
    history_bytes, rounds, seconds = (256 * MIB, 2, 5.0) if quick else (1024 * MIB, 7, 15.0)
    with racked(RACKS[:2], wal_capacity_bytes=256 * MIB) as nodes, racked(RACKS[:1]) as (stranger,):
        replica, leader = nodes
        create(nodes, HISTORY, [1, 2])
        asyncio.run(write_history(replica, history_bytes))
        replica.wait_uploaded()
        asyncio.run(move(catalog_of(replica), HISTORY, 2))
        create(nodes, LIVE, [2])
        create([stranger], HISTORY, [1])
        fill(stranger, history_bytes)
        pin(os.getpid(), MINE)
        pin(leader.pid, MINE)
        pin(replica.pid, ELSEWHERE)
        pin(stranger.pid, ELSEWHERE)
        readings = {
            "alone": None,
            "reader at another cluster": Reading([stranger], 1),
            "reader at the replica": Reading(nodes, 2, RACKS[0]),
            "reader at the leader": Reading(nodes, 2),
        }
        phases: dict[str, list[Phase]] = {name: [] for name in readings}
        for number in range(rounds + 1):
            for name, reading in readings.items():
                found = measure(leader, replica, reading, rate_mb * 1e6, seconds)
                if number:  # the first round warms
                    phases[name].append(found)
        os.sched_setaffinity(0, PROCESSORS)
    p99s = {name: [p99(each.acks_s) for each in measured] for name, measured in phases.items()}
    bases = {"reader at the replica": ("alone", "reader at another cluster")}
    for name, measured in phases.items():
        pooled = [waited_s for each in measured for waited_s in each.acks_s]
        report.add(f"{name}: p99 of acknowledgements, median of rounds", 1000 * middle(p99s[name]), "ms")
        report.add(f"{name}: p99.9 of acknowledgements of all rounds", 1000 * p999(pooled), "ms")
        if readings[name] is not None:
            for base in bases.get(name, ("alone",)):
                ratios = [one / other for one, other in zip(p99s[name], p99s[base], strict=True)]
                goal = "<= 1.1" if name == "reader at the replica" else None
                report.add(f"{name}: p99 over {base}, median of rounds", middle(ratios), "x", goal)
                report.add(f"{name}: p99 over {base}, smallest", min(ratios), "x")
                report.add(f"{name}: p99 over {base}, largest", max(ratios), "x")
            report.add(f"{name}: it reads", middle([each.read_mb_s for each in measured]), "MB/s")
        if name == "reader at the replica":
            idle = middle([each.cores[1] for each in phases["alone"]])
            byte_s = middle([(each.cores[1] - idle) / (each.read_mb_s * 1e6) for each in measured])
            kb_us = 1e9 * (byte_s - REQUEST_S / FETCH_BYTES)
            report.add("CPU of the replica for a KB from objects", kb_us, "us")
            known_us = 1e9 * (SENT_BYTE_S + LOADED_BYTE_S)
            report.add("CPU of the replica for a KB from objects, in costs.py", known_us, "us")
        for at, which in enumerate(("leader", "replica", "reader")[: len(measured[0].cores)]):
            report.add(f"{name}: CPU of the {which}", middle([each.cores[at] for each in measured]), "cores")


# fanout


class Tail:
    """A consumer of one rack that reads all partitions, in a thread."""

    def __init__(self, servers: str, number: int, partitions: int) -> None:
        self.rack = RACKS[number % len(RACKS)]
        self.records = 0
        self.received = Counter[int]()
        """Bytes received from each node."""
        self._consumer = Consumer({
            **CLIENT,
            "bootstrap.servers": servers,
            "client.id": f"tail-{number}",
            "client.rack": self.rack,
            "group.id": f"tail-{number}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "statistics.interval.ms": int(STATISTICS_S * 1000),
            "stats_cb": self._note,
        })  # fmt: skip
        self._consumer.assign([TopicPartition(LIVE, index, 0) for index in range(partitions)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Close it."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(500, 0.1):
                error = message.error()
                if error is not None:
                    sys.stderr.write(f"a consumer of rack {self.rack}: {error}\n")
                self.records += error is None

    def _note(self, text: str) -> None:
        received = Counter[int]()
        for each in json.loads(text)["brokers"].values():  # a coordinator is one more, with a connection of its own
            received[each["nodeid"]] += each["rxbytes"]
        self.received = received


def internal_bytes(
    lines: Sequence[str], nodes: Mapping[int, str], links: Mapping[str, str]
) -> Counter[tuple[str, str]]:
    """Return bytes on the connections between nodes, from rack to rack.

    `lines` are those of `ss`, with both ends of each connection; `nodes` racks by process id; `links` racks by the
    address that other nodes connect to.
    """
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        match = INTERNAL.search(line)
        if match and (there := links.get(match[1])) is not None and (here := nodes.get(int(match[2]))) is not None:
            found[here, there] += int(match[3])
            found[there, here] += int(match[4] or 0)
    return found


def bytes_between_racks(nodes: Sequence[NodeProcess], tails: Sequence[Tail]) -> Counter[tuple[str, str]]:
    """Return the bytes so far, from rack to rack, that consumers have received and nodes have sent each other."""
    lines = subprocess.run(["ss", "-tinpHO"], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    pids = {node.pid: rack for node, rack in zip(nodes, RACKS, strict=True)}
    links = {node.events("serving")[-1]["internal"]: rack for node, rack in zip(nodes, RACKS, strict=True)}
    found = internal_bytes(lines, pids, links)
    for tail in tails:
        for node_id, rack in enumerate(RACKS, 1):
            found[rack, tail.rack] += tail.received[node_id]
    return found


def send(producer: Producer, rate_bytes: float, seconds: float, partitions: int) -> int:
    """Send records at a steady rate to the partitions in turn; return how many."""
    value, began_s, number = os.urandom(RECORD_BYTES), time.monotonic(), int(rate_bytes * seconds / RECORD_BYTES)
    for count in range(number):
        ahead_s = began_s + count * RECORD_BYTES / rate_bytes - time.monotonic()
        if ahead_s > 0.005:
            time.sleep(ahead_s)
        producer.produce(LIVE, value, partition=count % partitions)
        producer.poll(0)
    if producer.flush(TIMEOUT_S):
        sys.exit("records were not acknowledged")
    return number


def await_read(tails: Sequence[Tail], records: int) -> None:
    """Wait until all consumers have as many records, and until their statistics say so."""
    until_s = time.monotonic() + TIMEOUT_S
    while any(tail.records < records for tail in tails):
        if time.monotonic() > until_s:
            sys.exit(f"{records} records were sent, and read: {[tail.records for tail in tails]}")
        time.sleep(0.05)
    time.sleep(3 * STATISTICS_S)


def add_fanout(report: Report, rate_mb: float, *, quick: bool) -> None:
    """Count what crosses racks while ten consumers read what is produced."""
    warm_s, seconds = (3.0, 5.0) if quick else (10.0, 60.0)
    partitions = len(RACKS)
    with racked(RACKS, wal_capacity_bytes=256 * MIB) as nodes:
        ids = range(1, partitions + 1)
        create(nodes, LIVE, *([leader, *(each for each in ids if each != leader)] for leader in ids))
        assert leaders(nodes, LIVE) == list(ids)
        producer = Producer({**CLIENT, "bootstrap.servers": bootstrap(nodes), "linger.ms": 20})
        tails = [Tail(bootstrap(nodes), number, partitions) for number in range(CONSUMERS)]
        try:
            warmed = send(producer, rate_mb * 1e6, warm_s, partitions)
            await_read(tails, warmed)
            before, cpu_s, began_s = bytes_between_racks(nodes, tails), _cpu_s(nodes), time.monotonic()
            sent = send(producer, rate_mb * 1e6, seconds, partitions)
            await_read(tails, warmed + sent)
            crossed = bytes_between_racks(nodes, tails)
            cores = (_cpu_s(nodes) - cpu_s) / (time.monotonic() - began_s)
        finally:
            for tail in tails:
                tail.stop()
    crossed.subtract(before)
    payload_bytes = sent / partitions * RECORD_BYTES
    for source, target in itertools.permutations(RACKS, 2):
        copies = crossed[source, target] / payload_bytes
        report.add(f"copies of what rack {source} leads that rack {target} gets", copies, "x", "<= 1.1")
    readers = Counter(tail.rack for tail in tails)
    report.add("copies without replicas that follow the tail, at most", max(readers.values()), "x")
    report.add("CPU of all nodes", cores, "cores")


def _cpu_s(nodes: Sequence[NodeProcess]) -> float:
    return sum(cpu_s_of(node.pid) for node in nodes)


def main() -> None:
    """Run the benchmark."""
    options_of = parser("What replicas take off a leader, and off the network between racks.")
    options_of.add_argument("--part", choices=("catchup", "fanout"), help="[default: both of them]")
    options_of.add_argument("--rate", type=float, help="MB/s that are produced  [default: 5; fanout: 1]")
    options = options_of.parse_args()
    report = Report("replicas")
    if options.part != "fanout":
        add_catchup(report, options.rate or 5.0, quick=options.quick)
    if options.part != "catchup":
        add_fanout(report, options.rate or 1.0, quick=options.quick)
    report.finish(options)


if __name__ == "__main__":
    main()
