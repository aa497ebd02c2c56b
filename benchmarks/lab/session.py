"""A run of the benchmark: brokers and client, warm-up, and the steps in rounds that alternate between the brokers."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from click import ClickException

from benchmarks.lab.client import Options, Outcome, PerfClient, PythonClient
from benchmarks.lab.meter import BrokerMeter, Usage
from benchmarks.lab.processes import DELETE_SOON, Anabranch, ApacheKafka, Broker
from benchmarks.lab.tls import Tls
from benchmarks.support import CONSOLE

KIB = 1 << 10
MIB = 1 << 20
MB = 1e6
GB = 1e9
QUIET_S = 0.5
QUIET_CPU_SHARE = 0.1
"""A broker that used less than this share of a processor for QUIET_S has finished earlier work."""
QUIET_TIMEOUT_S = 15.0
WARM_S = 2.0
"""Longest duration of a load of the warm-up."""
WARM_UNITS = 3
WARM_SPREAD = 0.1
"""A process is warm when its CPU per GB in the last WARM_UNITS units of warm-up differs by no more than this."""
FAILURES_MAX = 2
"""A broker that fails so often in a step is left out of the step's other rounds."""

Figures = Mapping[str, float]


class FlushingKafka(ApacheKafka):
    """Apache Kafka that flushes each batch to the disk before the ack, as this node does."""

    name = "Apache Kafka, flushed"

    def __init__(self, home: Path, certificate: Path) -> None:
        super().__init__(home, properties={**DELETE_SOON, "log.flush.interval.messages": "1"}, certificate=certificate)


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    rounds: int
    produce_bytes: int
    """Bytes of a produce load without a rate; 0: as many as go into `produce_s`."""
    produce_s: float
    """Longest duration of such a load."""
    fetch_bytes: int
    """Bytes of a topic that is read from memory: less than the node's log cache keeps of the newest data (512 MiB)."""
    fetch_passes: int
    steady_cycles: int
    """Upload cycles of a steady load. 0: the load takes `short_s`."""
    short_s: float
    """Duration of loads at a rate."""
    warm_units_max: int
    history_bytes: int
    """History of the catch-up reader."""
    left_out: Sequence[str] = ()
    """Keys of steps that this plan leaves out."""
    flushed: bool = True
    """Measure Apache Kafka with a flush of each batch, too."""
    warm_up_s: float = 0
    """Expected duration of the start and the warm-up."""


@dataclass(frozen=True)
class Load:
    """Records sent, with the options of the driver."""

    partitions: int
    record_bytes: int = KIB
    batch_bytes: int = 16 * KIB
    """Of Apache Kafka's producer; those of Python keep their defaults."""
    seconds: float = 0
    size_bytes: int = 0
    """Limit of the bytes sent; 0: none."""
    rate_mb_per_s: float = 0
    """0: as fast as possible."""
    library: str = ""
    """Python's producer that sends them, `librdkafka` or `aiokafka`. Empty: Apache Kafka's."""
    tls: bool = False
    options: Options = field(default_factory=dict)

    def run(self, client: PerfClient, port: int, topic: str, meter: BrokerMeter | None = None) -> Outcome:
        """Run it on a topic that exists."""
        options: Options = {
            "partitions": self.partitions,
            "record.bytes": self.record_bytes,
            "records": self.size_bytes // self.record_bytes,
            "prime": 1,
            "rate": self.rate_mb_per_s * MB / self.record_bytes,
            "seconds": self.seconds,
            "producer.batch.size": self.batch_bytes,
            "library": self.library,
            **self.options,
        }
        return client.load(port, topic, options=options, meter=meter)


class Step:
    """One or more rows of the result, measured together."""

    key: str
    flags: Sequence[str] = ()
    """Flags of a node of its own for this step. Empty: the node of the session."""
    rounds_max: int = 100
    flushed_rounds: int = 0
    """Rounds of Apache Kafka with flushes. 0: this step leaves it out."""

    def expected_s(self, plan: Plan) -> float:
        """Return the expected duration of one round on one broker."""
        raise NotImplementedError

    def prepare(self, session: "Session", broker: Broker) -> None:
        """Prepare a broker before the first round."""

    def run(self, session: "Session", broker: Broker) -> Mapping[str, Figures]:
        """Measure a broker once. Returns figures by row."""
        raise NotImplementedError


class Session:
    """Brokers, client, and the measurements so far."""

    def __init__(self, home: Path, plan: Plan, flags: Sequence[str], *, flushed: bool) -> None:
        self.plan = plan
        self.flags = flags
        self.rounds: dict[str, dict[str, dict[int, Figures]]] = defaultdict(lambda: defaultdict(dict))
        """Figures by row, broker and round."""
        self.failures: list[str] = []
        self.bytes_moved: dict[str, int] = defaultdict(int)
        home.mkdir(parents=True, exist_ok=True)
        self.tls = Tls(home / "ca")
        self.node = Anabranch(home / "anabranch", flags, self.tls.certificate)
        self.kafka = ApacheKafka(home / "kafka", certificate=self.tls.certificate)
        self.flushed = FlushingKafka(home / "kafka-flushed", self.tls.certificate) if flushed else None
        self.client = PerfClient(home / "client.log")
        self.python_client = PythonClient(home / "python-client.log")
        self._home = home
        self._topics = 0
        self._special = 0

    @property
    def brokers(self) -> list[Broker]:
        """All brokers that run for the whole session."""
        return [broker for broker in (self.node, self.kafka, self.flushed) if broker is not None]

    @property
    def peers(self) -> list[str]:
        """Names of the brokers that the node is compared with; the first one counts for the goals."""
        return [broker.name for broker in self.brokers if broker is not self.node]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run brokers and client."""
        with ExitStack() as stack:
            for broker in self.brokers:
                stack.enter_context(broker)
            for client in (self.client, self.python_client):
                stack.enter_context(client)
            yield

    # steps

    def measure(self, step: Step, rounds: int, flush: Callable[[], None]) -> None:
        """Run a step in rounds; the order of the brokers changes each round. `flush` is called after each round."""
        began = time.monotonic()
        failures: dict[str, int] = defaultdict(int)
        with ExitStack() as stack:
            node = self.node
            if step.flags:
                self._special += 1
                home = self._home / f"anabranch-{self._special}"
                node = stack.enter_context(Anabranch(home, [*self.flags, *step.flags]))
                self._attempt("warm-up", node, failures, partial(self._warm_up, node))
            pair: list[Broker] = [node, self.kafka]
            flushed = [] if self.flushed is None or not step.flushed_rounds else [self.flushed]
            for broker in (*pair, *flushed):
                self._attempt(step.key, broker, failures, partial(step.prepare, self, broker))
            rounds = min(rounds, step.rounds_max)
            for round_ in range(rounds):
                order = pair if round_ % 2 == 0 else pair[::-1]
                if round_ < step.flushed_rounds:
                    order = [*order, *flushed] if round_ % 2 == 0 else [*flushed, *order]
                for broker in order:
                    if failures[broker.name] < FAILURES_MAX:
                        self._attempt(step.key, broker, failures, partial(self._run, step, broker, round_))
                flush()
        expected_s = expected_step_s(step, self.plan, rounds)
        CONSOLE.print(
            f"{step.key}: {rounds} rounds, {time.monotonic() - began:.0f} s ({expected_s:.0f} expected)",
            highlight=False,
        )

    def _run(self, step: Step, broker: Broker, round_: int) -> None:
        self.wait_until_quiet(broker)
        for key, figures in step.run(self, broker).items():
            self.rounds[key][broker.name][round_] = figures

    def _attempt(self, what: str, broker: Broker, failures: dict[str, int], action: Callable[[], None]) -> None:
        """Run an action; the run goes on after a failure, which is reported."""
        try:
            action()
        except (RuntimeError, AssertionError, OSError, ClickException) as error:
            failures[broker.name] += 1
            self.failures.append(f"{what}, {broker.name}: {error}")
            CONSOLE.print(self.failures[-1], style="red", markup=False)

    # parts of steps

    @contextmanager
    def topic(self, broker: Broker, partitions: int) -> Iterator[str]:
        """A new topic, deleted afterwards."""
        self._topics += 1
        name = f"bench-{self._topics}"
        broker.create_topic(name, partitions)
        try:
            yield name
        finally:
            broker.delete_topic(name)

    def load(self, broker: Broker, load: Load, topic: str) -> tuple[Outcome, Usage]:
        """Run a load on a topic, with the broker's use during it."""
        meter = BrokerMeter(broker)
        if load.tls:
            load = replace(load, options={**load.options, **self.tls.options("producer")})
        client = self.python_client if load.library else self.client
        outcome = load.run(client, broker.tls_port if load.tls else broker.port, topic, meter)
        assert meter.usage is not None
        self.bytes_moved[broker.name] += outcome.sent_records * load.record_bytes
        self.bytes_moved[broker.name] += outcome.read_records * load.record_bytes + outcome.history_bytes
        return outcome, meter.usage

    def read(self, broker: Broker, topic: str, partitions: int, passes: int) -> tuple[Outcome, Usage]:
        """Read a topic from beginning to end, with the broker's use during it."""
        meter = BrokerMeter(broker)
        outcome = self.client.read(broker.port, topic, partitions=partitions, passes=passes, meter=meter)
        assert meter.usage is not None
        self.bytes_moved[broker.name] += outcome.read_bytes
        return outcome, meter.usage

    def wait_until_quiet(self, *others: Broker) -> None:
        """Wait until all brokers have finished the work of earlier loads, which would count for the next one.

        What they left to the page cache is written out, because it would delay the next load's flushes.
        """
        brokers = {broker.pid: broker for broker in (*self.brokers, *others)}.values()
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        while time.monotonic() < deadline:
            before = [broker.cpu_s() for broker in brokers]
            time.sleep(QUIET_S)
            used = max(broker.cpu_s() - was for broker, was in zip(brokers, before, strict=True))
            if used < QUIET_CPU_SHARE * QUIET_S:
                break
        else:
            CONSOLE.print(f"a broker is still at work after {QUIET_TIMEOUT_S:.0f} s", style="yellow")
        os.sync()

    # warm-up

    def warm_up(self) -> None:
        """Repeat small loads on each broker until its CPU per GB, and the client's, stand still."""
        for broker in self.brokers:
            self._attempt("warm-up", broker, defaultdict(int), partial(self._warm_up, broker))

    def _warm_up(self, broker: Broker) -> None:
        found: list[tuple[float, float]] = []
        while len(found) < self.plan.warm_units_max and not stands_still(found):
            found.append(self._warm_unit(broker))
        shown = " ".join(f"{ours:.1f}+{theirs:.1f}" for ours, theirs in found)
        state = "warm" if stands_still(found) else "not warm yet"
        CONSOLE.print(f"{broker.name} {state}; CPU s/GB of broker and client: {shown}", highlight=False)

    def _warm_unit(self, broker: Broker) -> tuple[float, float]:
        """Produce and fetch in the ways of the steps. Returns CPU seconds per GB of broker and client."""
        cpu_s, client_cpu_s, moved = broker.cpu_s(), self.client.cpu_s(), self.bytes_moved[broker.name]
        for partitions, batch_bytes in ((16, 16 * KIB), (1, 256 * KIB)):
            with self.topic(broker, partitions) as topic:
                load = Load(
                    partitions,
                    batch_bytes=batch_bytes,
                    seconds=WARM_S,
                    size_bytes=self.plan.fetch_bytes // 2,
                )
                self.load(broker, load, topic)
                self.read(broker, topic, partitions, 1)
        gb = (self.bytes_moved[broker.name] - moved) / GB
        return (broker.cpu_s() - cpu_s) / gb, (self.client.cpu_s() - client_cpu_s) / gb


def expected_step_s(step: Step, plan: Plan, rounds: int) -> float:
    """Return the expected duration of a step in that many rounds."""
    rounds = min(rounds, step.rounds_max)
    flushed_rounds = min(rounds, step.flushed_rounds) if plan.flushed else 0
    return step.expected_s(plan) * (2 * rounds + flushed_rounds)


def stands_still(found: Sequence[tuple[float, ...]]) -> bool:
    """Return whether the figures have hardly changed in the last units."""
    last = found[-WARM_UNITS:]
    if len(last) < WARM_UNITS:
        return False
    return all(max(column) <= (1 + WARM_SPREAD) * min(column) for column in zip(*last, strict=True))
