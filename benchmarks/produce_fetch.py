"""Produce and fetch, side by side with Apache Kafka, driven by Apache Kafka's own performance tools.

Both brokers run at the same time on this machine with their defaults, and one warm JVM drives them in turn: acks=all,
records of 1 KiB, 1 and 16 partitions, batches of 16 and 256 KiB, then the same records read back by a group of one.
The node here writes every batch to its log device before it answers (O_DIRECT and O_DSYNC); Apache Kafka answers from
the page cache. CPU is the broker's, user and system. Ratios are this node over Apache Kafka. The steady load begins
when neither broker is at work on what came before (uploads, for one); the figure of the whole life has it all.

    python -m benchmarks.produce_fetch [--quick] [--only LOAD ...] [--rounds N] [--json FILE]
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.table import Table

from benchmarks.lab.client import PerfClient
from benchmarks.lab.processes import Anabranch, ApacheKafka, Broker, MissingError
from benchmarks.support import CONSOLE, Report, middle, number, parser

KIB = 1024
MIB = 1024 * KIB
GB = 1e9
RECORD_BYTES = KIB
STEADY_MB_PER_S = 10
READS = 2
"""Reads of each topic, because a single one takes only a fraction of a second."""
QUIET_S = 0.5
QUIET_CPU_SHARE = 0.1
"""A broker that used less than this share of a processor for QUIET_S has finished earlier work."""
QUIET_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Case:
    """A load: number of partitions, and size of the producer's batches."""

    partitions: int
    batch_bytes: int

    @property
    def label(self) -> str:
        return f"{self.partitions:2} x {self.batch_bytes // KIB} KiB"

    @property
    def key(self) -> str:
        return f"{self.partitions}p.{self.batch_bytes // KIB}KiB"

    @property
    def throughput_goal(self) -> str:
        """Goal for throughput. Small batches of one partition are limited by the round trip and its fixed costs."""
        return ">= 0.9" if self.partitions == 1 and self.batch_bytes < 64 * KIB else ">= 1.8"


CASES = tuple(Case(partitions, batch) for partitions in (1, 16) for batch in (16 * KIB, 256 * KIB))
STEADY = "steady"
LOADS = (*(case.key for case in CASES), STEADY)


@dataclass
class Samples:
    """A broker's figures for one kind of run."""

    mb_per_s: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    rounds: int
    produce_bytes: int
    warm_bytes: int
    steady_s: int


QUICK = Plan(rounds=1, produce_bytes=128 * MIB, warm_bytes=128 * MIB, steady_s=4)
FULL = Plan(rounds=5, produce_bytes=512 * MIB, warm_bytes=256 * MIB, steady_s=20)


class Session:
    """Both brokers, the client, and the measurements so far."""

    def __init__(
        self, brokers: Sequence[Broker], client: PerfClient, plan: Plan, *, loads: Collection[str] = LOADS
    ) -> None:
        self._brokers = brokers
        self._client = client
        self._plan = plan
        self._loads = loads
        self._topics = 0
        self.samples: dict[tuple[str, str], Samples] = defaultdict(Samples)
        """Figures by kind of run and broker."""
        self.bytes_moved: dict[str, int] = defaultdict(int)

    def run(self) -> None:
        """Warm everything up, then run all cases. The order of the brokers changes each round."""
        for broker in self._brokers:
            for case in (CASES[1], CASES[2]):
                self._one(broker, case, self._plan.warm_bytes, None)
        for round_ in range(self._plan.rounds):
            brokers = self._brokers if round_ % 2 == 0 else self._brokers[::-1]
            for case in CASES:
                for broker in brokers if case.key in self._loads else ():
                    self._one(broker, case, self._plan.produce_bytes, case.key)
            for broker in brokers if STEADY in self._loads else ():
                self._wait_until_quiet()
                self._steady(broker)
            CONSOLE.print(f"round {round_ + 1} of {self._plan.rounds} done")

    def _one(self, broker: Broker, case: Case, size_bytes: int, key: str | None) -> None:
        """Produce to a new topic, then read it back. Without a key nothing is recorded."""
        topic = self._new_topic(broker, case.partitions)
        records = size_bytes // RECORD_BYTES
        before = broker.cpu_s()
        produced = self._client.produce(
            broker.port, topic, records=records, record_bytes=RECORD_BYTES, batch_bytes=case.batch_bytes
        )
        between = broker.cpu_s()
        self.bytes_moved[broker.name] += size_bytes
        if key is not None:
            sent = self.samples[f"produce.{key}", broker.name]
            sent.mb_per_s.append(produced.mb_per_s)
            sent.cpu_s_per_gb.append((between - before) / (size_bytes / GB))
            sent.p50_ms.append(produced.p50_ms)
            sent.p99_ms.append(produced.p99_ms)
        for _ in range(READS):
            before = broker.cpu_s()
            consumed = self._client.consume(broker.port, topic, records=records)
            after = broker.cpu_s()
            self.bytes_moved[broker.name] += size_bytes
            if key is not None:
                read = self.samples[f"fetch.{key}", broker.name]
                read.mb_per_s.append(consumed.mb_per_s)
                read.cpu_s_per_gb.append((after - before) / (size_bytes / GB))
        broker.delete_topic(topic)

    def _wait_until_quiet(self) -> None:
        """Wait until both brokers have finished the work of earlier loads, which would count for this one."""
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while time.monotonic() < deadline:
            before = [broker.cpu_s() for broker in self._brokers]
            time.sleep(QUIET_S)
            used = max(broker.cpu_s() - was for broker, was in zip(self._brokers, before, strict=True))
            if used < QUIET_CPU_SHARE * QUIET_S:
                return

    def _steady(self, broker: Broker) -> None:
        """Run at a fixed rate far below the limit, to measure latency without queueing."""
        rate = STEADY_MB_PER_S * MIB // RECORD_BYTES
        records = rate * self._plan.steady_s
        topic = self._new_topic(broker, 16)
        before = broker.cpu_s()
        produced = self._client.produce(
            broker.port,
            topic,
            records=records,
            record_bytes=RECORD_BYTES,
            batch_bytes=16 * KIB,
            records_per_s=rate,
        )
        size_bytes = records * RECORD_BYTES
        samples = self.samples[STEADY, broker.name]
        samples.cpu_s_per_gb.append((broker.cpu_s() - before) / (size_bytes / GB))
        samples.mb_per_s.append(produced.mb_per_s)
        samples.p50_ms.append(produced.p50_ms)
        samples.p99_ms.append(produced.p99_ms)
        broker.delete_topic(topic)
        self.bytes_moved[broker.name] += size_bytes

    def _new_topic(self, broker: Broker, partitions: int) -> str:
        self._topics += 1
        name = f"bench-{self._topics}"
        broker.create_topic(name, partitions)
        return name


def main() -> None:
    """Run the benchmark."""
    made = parser("Produce and fetch, beside Apache Kafka.")
    made.add_argument("--home", type=Path, help="folder for both brokers' data  [default: a new temporary one]")
    made.add_argument("--flag", action="append", default=[], help="a flag for the node, as --flag=--wal-durability=...")
    made.add_argument("--only", nargs="+", choices=LOADS, default=LOADS, metavar="LOAD", help=f"of {', '.join(LOADS)}")
    made.add_argument("--rounds", type=int, help="number of rounds, instead of the plan's")
    options = made.parse_args()
    home = options.home or Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        measure(options, home)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        if options.home is None:
            shutil.rmtree(home)


def measure(options: argparse.Namespace, home: Path) -> None:
    """Start everything, measure, report."""
    plan = QUICK if options.quick else FULL
    if options.rounds is not None:
        plan = replace(plan, rounds=options.rounds)
    ours = Anabranch(home / "anabranch", options.flag)
    peer = ApacheKafka(home / "kafka")
    with ExitStack() as stack:
        for broker in (ours, peer):
            stack.enter_context(broker)
        client = stack.enter_context(PerfClient(home / "client.log"))
        session = Session((ours, peer), client, plan, loads=options.only)
        session.run()
        memory = {broker.name: broker.rss_bytes() for broker in (ours, peer)}
    report = Report("produce and fetch")
    for case in CASES:
        add(report, session, f"produce.{case.key}", throughput_goal=case.throughput_goal)
        add(report, session, f"fetch.{case.key}", throughput_goal=">= 1")
    add(report, session, STEADY, throughput_goal=None)
    cpu = {broker.name: broker.session_cpu_s / (session.bytes_moved[broker.name] / GB) for broker in (ours, peer)}
    for name, value in cpu.items():
        report.add(f"session.cpu.{name}", value, "s/GB")
        report.add(f"session.rss.{name}", memory[name] / MIB, "MiB")
    report.add("session.cpu.ratio", cpu[ours.name] / cpu[peer.name], "x", "<= 1")
    CONSOLE.print(comparison(session, ours.name, peer.name))
    CONSOLE.print(
        f"whole life, start, uploads and stop included: {number(cpu[ours.name])} CPU s per GB moved, "
        f"Apache Kafka {number(cpu[peer.name])}",
        highlight=False,
    )
    report.print([result for result in report.results if result.goal is not None])
    report.finish(options, show=False)


def add(report: Report, session: Session, kind: str, *, throughput_goal: str | None) -> None:
    """Add both brokers' medians for one kind of run, and their ratios."""
    for figure, unit, goal in (
        ("mb_per_s", "MiB/s", throughput_goal),
        ("cpu_s_per_gb", "s/GB", "<= 1"),
        ("p50_ms", "ms", None),
        ("p99_ms", "ms", "<= 1"),
    ):
        values = []
        for name in (Anabranch.name, ApacheKafka.name):
            samples: list[float] = getattr(session.samples[kind, name], figure)
            if samples:
                values.append(report.add(f"{kind}.{figure}.{name}", middle(samples), unit))
        if len(values) == 2 and values[1] > 0:
            report.add(f"{kind}.{figure}.ratio", values[0] / values[1], "x", goal)


def comparison(session: Session, ours: str, peer: str) -> Table:
    """Return the table for readers: for each load this node, Apache Kafka, and the ratio."""
    table = Table(title=f"{ours} : {peer} = ratio", title_justify="left", header_style="bold")
    table.add_column("load")
    for name in ("MiB/s", "broker CPU s/GB", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    rows = [(f"{what} {case.label}", f"{what}.{case.key}") for what in ("produce", "fetch") for case in CASES]
    for label, kind in [*rows, (f"steady {STEADY_MB_PER_S} MiB/s, 16 x 16 KiB", STEADY)]:
        if not session.samples[kind, ours].mb_per_s:
            continue  # left out by --only
        cells = []
        for figure in ("mb_per_s", "cpu_s_per_gb", "p50_ms", "p99_ms"):
            pair = [getattr(session.samples[kind, name], figure) for name in (ours, peer)]
            if not all(pair):
                cells.append("")
                continue
            left, right = (middle(samples) for samples in pair)
            ratio = number(left / right) if right else "?"
            cells.append(f"{number(left)} : {number(right)} = {ratio}")
        table.add_row(label, *cells)
    return table


if __name__ == "__main__":
    main()
