"""Several nodes of one `anabranch serve --processes N`: takeovers, throughput beside one process, CPU and memory.

    python -m benchmarks.processes [--quick] [--kills N] [--json FILE]

- failover: as `benchmarks.failover`, but a process of `--processes 3` is killed, which its parent starts again
- throughput: the same requests of one record to one process and to two, in turn, from two clients that cost less than
  half of what the nodes do; each pair gives a ratio. Clients and nodes share the processors of this machine: what
  remains of the ratio on two cores is the cost of the second process. Those of more cores are calculated from the CPU
  of a request: all cores are busy with nothing else
- memory: of the parent, and of each node before any load
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from anabranch.client.cluster import Cluster
from anabranch.client.connection import Connection
from benchmarks.lab.cluster import CLIENT, MIB, TOPIC, NumberedLoad, bootstrap, create, leaders
from benchmarks.lab.load import Load, Loaded
from benchmarks.lab.processes import cpu_s_of, rss_bytes_of
from benchmarks.support import Report, middle, p99, parser
from tests.support.node import NodeProcess
from tests.support.several_processes import SeveralProcesses

PROCESSES, PARTITIONS, SEND_S = 3, 6, 0.01
QUICK_KILLS, KILLS = 6, 15
CLIENTS = 2
CORES = (8, 16)
"""Cores of the machines that are calculated."""


@contextmanager
def started(processes: int) -> Iterator[NodeProcess]:
    """Run nodes on SQLite in a temporary folder: those of one start, or one alone."""
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    kind = SeveralProcesses if processes > 1 else NodeProcess
    node = kind(home, wal_capacity_bytes=256 * MIB, processes=processes)
    node.new_interpreter = True  # with the memory of one
    try:
        with node:
            yield node
    finally:
        shutil.rmtree(home)


def nodes_of(node: NodeProcess) -> Mapping[int, tuple[int, int]]:
    """Return process id and port for clients of each node, by id."""
    if not isinstance(node, SeveralProcesses):
        return {1: (node.pid, node.port)}
    found = {}
    for node_id, address in node.addresses().items():
        pid = node.pid_of(node_id)
        assert pid is not None, f"node {node_id} has ended"
        found[node_id] = pid, int(address.rpartition(":")[2])
    return found


def failover(report: Report, *, kills: int) -> None:
    """A process is killed under load, and its partitions acknowledge again."""
    moved_s: list[float] = []
    with started(PROCESSES) as node:
        assert isinstance(node, SeveralProcesses)
        create([node], TOPIC, PARTITIONS)
        load = NumberedLoad(node.bootstrap, PARTITIONS, at_once=PARTITIONS, pause_s=SEND_S)
        load.start()
        for _ in range(kills):
            load.wait_all(time.monotonic())
            led = leaders([node], TOPIC)
            victim = max(set(led), key=lambda node_id: (led.count(node_id), node_id))
            serving = len(node.events("serving"))
            began_s = time.monotonic()
            node.kill_node(victim)
            took_s = load.wait_all(began_s)
            moved_s += [seconds for leader, seconds in zip(led, took_s, strict=True) if leader == victim]
            while len(node.events("serving")) == serving:
                time.sleep(0.1)
        load.stop()
        what = "a killed process until its partitions acknowledge again"
        report.add(f"{what}, median", middle(moved_s), "s", "<= 2")
        report.add(f"{what}, p99", p99(moved_s), "s", "<= 5")
        load.add_losses(report, bootstrap([node]))


class Loaders:
    """Clients of nodes that each lead the topic `bench-ID`."""

    def __init__(self, node: NodeProcess) -> None:
        self._nodes = nodes_of(node)
        admin = AdminClient({**CLIENT, "bootstrap.servers": node.bootstrap})
        topics = [
            NewTopic(f"{TOPIC}-{each}", PARTITIONS, replica_assignment=[[each]] * PARTITIONS) for each in self._nodes
        ]
        for created in admin.create_topics(topics).values():
            created.result()
        with Cluster(node.bootstrap, Connection) as cluster:
            found = cluster.topics([topic.topic for topic in topics])
            self._topics: Mapping[str | None, str] = {each.name: each.topic_id.hex() for each in found}

    def run(self, seconds: float, record_bytes: int) -> tuple[float, float, float]:
        """Load all nodes. Returns requests a second, CPU us of a request in the nodes, and in the clients."""
        pids = [pid for pid, _ in self._nodes.values()]
        before = sum(map(cpu_s_of, pids))
        with ThreadPoolExecutor(CLIENTS) as threads:
            done = list(threads.map(lambda number: self._load(number, seconds, record_bytes), range(CLIENTS)))
        cpu_s, requests = sum(map(cpu_s_of, pids)) - before, sum(each.requests for each in done)
        client_s = sum(each.client_cpu_s for each in done)
        rate = sum(each.requests / each.seconds for each in done)
        return rate, cpu_s / requests * 1e6, client_s / requests * 1e6

    def _load(self, number: int, seconds: float, record_bytes: int) -> Loaded:
        node_id = list(self._nodes)[number % len(self._nodes)]
        return Load(
            port=self._nodes[node_id][1],
            topic_id=self._topics[f"{TOPIC}-{node_id}"],
            partitions=PARTITIONS,
            connections=8,
            in_flight=4,
            record_bytes=record_bytes,
            batch_bytes=record_bytes,
            seconds=seconds,
            bytes_max=1 << 40,
        ).run()


def throughput(report: Report, *, quick: bool) -> None:
    """One process and two, in turn."""
    pairs, seconds = (3, 1.0) if quick else (9, 2.0)  # 16 KiB a request are 0.3 GB/s, and all of it stays on the disk
    with started(1) as single, started(2) as several:
        report.add("memory of a node before any load", rss_bytes_of(single.pid) / MIB, "MiB")
        report.add("memory of the parent", rss_bytes_of(several.pid) / MIB, "MiB", "<= 20")
        idle = [rss_bytes_of(pid) for pid, _ in nodes_of(several).values()]
        report.add("memory of each of two nodes before any load", fmean(idle) / MIB, "MiB")
        both = (Loaders(single), Loaders(several))
        for record_bytes in (1024, 16_384):
            found: tuple[list[tuple[float, float, float]], ...] = ([], [])
            for loaders in both:
                loaders.run(1.0, record_bytes)
            for number in range(pairs):
                for index in (0, 1) if number % 2 else (1, 0):
                    found[index].append(both[index].run(seconds, record_bytes))
            for index, name in ((0, "one process"), (1, "two processes")):
                rates, costs, client = zip(*found[index], strict=True)
                what = f"{record_bytes // 1024} KiB a request, {name}"
                report.add(what, middle(rates), "requests/s")
                report.add(f"{what}: CPU of the nodes", middle(costs), "us a request")
                report.add(f"{what}: CPU of the clients", middle(client), "us a request")
            ratios = [two[0] / one[0] for one, two in zip(*found, strict=True)]
            report.add(f"{record_bytes // 1024} KiB a request, two over one, median of pairs", middle(ratios), "x")
            cost_us = middle([each[1] for each in found[1]])
            for cores in CORES:
                name = f"{record_bytes // 1024} KiB a request, {cores} processes: calculated, at most"
                report.add(name, cores / cost_us * 1e6, "requests/s")


def main() -> None:
    """Run the benchmark."""
    options_of = parser("Several processes of one start: takeovers, throughput, CPU and memory.")
    options_of.add_argument("--kills", type=int, help=f"number of kills  [default: {KILLS}; quick: {QUICK_KILLS}]")
    options = options_of.parse_args()
    report = Report("Several nodes of one anabranch serve --processes N")
    failover(report, kills=options.kills or (QUICK_KILLS if options.quick else KILLS))
    throughput(report, quick=options.quick)
    report.finish(options)


if __name__ == "__main__":
    main()
