"""The part `beside`: latency of small requests beside a load whose topic is a table, or is none."""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.isolation import RECORD_BYTES, Partition, one_record
from benchmarks.lab.tables.node import TableNode
from benchmarks.lab.tables.records import Sender, batches_of, small_kind, wait
from benchmarks.support import CONSOLE, Report, middle, p99

PARTITIONS = 4
RATE = 20_000
"""Records of 174 B a second, in all."""
INTERVAL_MS = 5_000
PAUSE_S = 0.0005
GOALS = {"produce": "<= 1.3", "fetch": "<= 1.1"}


@dataclass(frozen=True)
class Plan:
    """Amount of work: a round is one turn with a table, and one without."""

    rounds: int
    turn_s: float


QUICK = Plan(2, 6)
FULL = Plan(7, 12)


@dataclass
class Samples:
    """Percentiles in seconds of one kind of request, with and without a table, for each round."""

    beside: list[list[float]] = field(default_factory=list)
    alone: list[list[float]] = field(default_factory=list)


def measure(report: Report, home: Path, options: argparse.Namespace) -> None:
    """Take turns between two loads, of which one makes a table."""
    plan = QUICK if options.quick else FULL
    found = {name: Samples() for name in GOALS}
    with TableNode(home / "beside", ["--compaction-enabled=false"]) as node:
        node.create_topic("table", PARTITIONS, {"table.enable": "true", "table.commit.interval.ms": f"{INTERVAL_MS}"})
        node.create_topic("none", PARTITIONS)
        node.create_topic("probe", 1)
        with node.connect() as connection:
            probe = Partition(connection, "probe")
            for topic in ("table", "none"):  # warms up
                turn(node, probe, topic, plan.turn_s / 3)
            commits = node.pointer.version("table")
            for round_ in range(plan.rounds):
                for topic in ("table", "none") if round_ % 2 == 0 else ("none", "table"):
                    latencies = turn(node, probe, topic, plan.turn_s)
                    for name, samples in found.items():
                        (samples.beside if topic == "table" else samples.alone).append(latencies[name])
                    shown = ", ".join(f"{name} p99 {p99(some) * 1e3:.2f} ms" for name, some in latencies.items())
                    CONSOLE.print(f"{topic}: {shown}", highlight=False)
        report.add("commits in a turn", (node.pointer.version("table") - commits) / plan.rounds, "")
    for name, samples in found.items():
        for percentile, of, goal in (("p50", middle, None), ("p99", p99, GOALS[name])):
            beside, alone = [of(each) for each in samples.beside], [of(each) for each in samples.alone]
            report.add(f"{name} {percentile} without a table", middle(alone) * 1e3, "ms")
            ratio = middle([with_ / without for with_, without in zip(beside, alone, strict=True)])
            report.add(f"{name} {percentile} beside a table over without", ratio, "ratio", goal)


def turn(node: TableNode, probe: Partition, topic: str, seconds: float) -> dict[str, list[float]]:
    """Measure requests beside a load of a topic; then wait until the table has all rows, so that no turn has more."""
    with load(node, topic):
        found = latencies_of(probe, seconds)
    ends = node.ends("table")
    wait(lambda: node.pointer.table_ends("table") == ends, "the table is not complete")
    return found


def latencies_of(probe: Partition, seconds: float) -> dict[str, list[float]]:
    """Append records one by one, and read each back; return the seconds that both took."""
    produce, fetch = [], []
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        batch = one_record(bytes(RECORD_BYTES))
        began_s = time.perf_counter()
        offset = probe.append(batch)
        acknowledged_s = time.perf_counter()
        probe.fetch(offset)
        fetch.append(time.perf_counter() - acknowledged_s)
        produce.append(acknowledged_s - began_s)
        time.sleep(PAUSE_S)
    return {"produce": produce, "fetch": fetch}


@contextmanager
def load(node: TableNode, topic: str) -> Iterator[None]:
    """Run the process that sends records, from its first request on."""
    command = [sys.executable, "-m", "benchmarks.lab.tables.beside", str(node.port), topic]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        rate = float(process.communicate()[0] or "nan")
    assert rate > 0.95 * RATE, f"the load had {rate:.0f} records/s"


def send(port: int, topic: str) -> None:
    """Send records at a rate until standard input ends; then print the records a second."""
    from select import select

    from anabranch.client.connection import Connection

    batches = batches_of(small_kind(50_000).values)
    records = 50_000 / len(batches)
    with Connection("127.0.0.1", port) as connection:
        sender = Sender(connection, topic)
        print("sending", flush=True)
        began_s, sent = time.perf_counter(), 0.0
        while not select([sys.stdin], [], [], max(0.0, began_s + sent / RATE - time.perf_counter()))[0]:
            some = {idx: batches[int(sent / records + idx) % len(batches)] for idx in range(PARTITIONS)}
            sender.send(some)
            sent += records * PARTITIONS
        print(sent / (time.perf_counter() - began_s))


if __name__ == "__main__":
    send(int(sys.argv[1]), sys.argv[2])
