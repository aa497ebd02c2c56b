"""The steps of the benchmark: loads on both brokers, and the figures taken of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.broker.node.settings.memory import memory_for
from anabranch.broker.node.settings.names import all_settings
from anabranch.broker.node.settings.package_settings import storage_settings, wal_settings
from anabranch.broker.node.settings.sources import load as load_settings
from benchmarks.lab.client import Latency, Options, Outcome
from benchmarks.lab.meter import Usage
from benchmarks.lab.processes import Broker
from benchmarks.lab.session import GB, KIB, MB, MIB, Figures, Load, Plan, Session, Step

STEADY_MB_PER_S = 10.0
EXPECTED_HALF_MB_PER_S = 100.0
CATCH_UP_MB_PER_S = 250.0
HISTORY_PARTITIONS = 4
LONG_S = 120.0
AROUND_S = 2.0
"""Expected duration of what is around a load: topic, connections, and the wait until all brokers are quiet."""
CROWD_S = 10.0
"""The same for 200 clients and 1,000 partitions."""
FETCH_S = 7.0
"""Expected duration of writing a topic, and reading it from memory."""
BEST_RATE_ROW = "produce.16p.16KiB"
"""Half of Apache Kafka's throughput in this row is the rate of the faster steady load."""


def figures(outcome: Outcome, usage: Usage, size_bytes: int, latency: Latency | None) -> dict[str, float]:
    """Return the figures of a load that moved that many bytes."""
    found = {
        "mb_per_s": size_bytes / MB / outcome.seconds,
        "cpu_s_per_gb": usage.cpu_s / (size_bytes / GB),
        "peak_mib": usage.peak_bytes / MIB,
        "switches_per_mb": usage.context_switches / (size_bytes / MB),
    }
    if latency is not None:
        found |= {"p50_ms": latency.p50_ms, "p99_ms": latency.p99_ms, "p999_ms": latency.p999_ms}
    if outcome.requests:
        found |= {
            "requests_per_s": outcome.requests / outcome.seconds,
            "cpu_us_per_request": usage.cpu_s / outcome.requests * 1e6,
            "switches_per_request": usage.context_switches / outcome.requests,
        }
    return found


@dataclass
class ProduceFetch(Step):
    """Produce as fast as possible to a new topic, and read another from memory."""

    partitions: int
    batch_bytes: int
    record_bytes: int = KIB
    fetch: bool = True
    key: str = ""
    flushed_rounds: int = 2

    def __post_init__(self) -> None:
        self.key = self.key or f"{self.partitions}p.{self.batch_bytes // KIB}KiB"

    def expected_s(self, plan: Plan) -> float:
        return plan.produce_s + AROUND_S + (FETCH_S if self.fetch else 0)

    def run(self, session: Session, broker: Broker) -> Mapping[str, Figures]:
        plan = session.plan
        load = Load(self.partitions, self.record_bytes, self.batch_bytes, plan.produce_s, plan.produce_bytes)
        with session.topic(broker, self.partitions) as topic:
            outcome, usage = session.load(broker, load, topic)
        size_bytes = outcome.sent_records * self.record_bytes
        found: dict[str, Figures] = {f"produce.{self.key}": figures(outcome, usage, size_bytes, outcome.ack)}
        if self.fetch and broker is not session.flushed:
            found[f"fetch.{self.key}"] = self._fetch(session, broker, replace(load, size_bytes=plan.fetch_bytes))
        return found

    def _fetch(self, session: Session, broker: Broker, load: Load) -> Figures:
        """Read a topic that is small enough to be in memory. The bytes read from files show whether it was."""
        with session.topic(broker, self.partitions) as topic:
            session.load(broker, load, topic)
            session.wait_until_quiet(broker)
            outcome, usage = session.read(broker, topic, self.partitions, session.plan.fetch_passes)
        from_files = usage.file_bytes / MB / outcome.seconds
        return {**figures(outcome, usage, outcome.read_bytes, None), "from_files_mb_per_s": from_files}


@dataclass
class Loaded(Step):
    """Run one load on a new topic."""

    key: str
    load: Load
    latency: str = "ack"
    """Latency of the row: `ack`, until the producer has the ack, or `read`, until a consumer has the record."""
    is_special: bool = False
    """It takes another way than the loads of the warm-up: run it once before the first round."""
    around_s: float = AROUND_S
    flushed_rounds: int = 2

    def expected_s(self, plan: Plan) -> float:
        return (self.load.seconds + self.around_s) * (1 + self.is_special / plan.rounds)

    def prepare(self, session: Session, broker: Broker) -> None:
        if self.is_special:
            self.run(session, broker)

    def run(self, session: Session, broker: Broker) -> Mapping[str, Figures]:
        with session.topic(broker, self.load.partitions) as topic:
            outcome, usage = session.load(broker, self.load, topic)
        size_bytes = outcome.sent_records * self.load.record_bytes
        latency: Latency | None = getattr(outcome, self.latency)
        return {self.key: figures(outcome, usage, size_bytes, latency)}


@dataclass
class Steady(Step):
    """Produce at a fixed rate far below the limit over several upload cycles, to measure latency without queueing."""

    key: str
    threshold_bytes: int
    rate_mb_per_s: float | None = None
    """None: half of Apache Kafka's best rate."""
    flushed_rounds: int = 1

    def expected_s(self, plan: Plan) -> float:
        return self._seconds(plan, self.rate_mb_per_s or EXPECTED_HALF_MB_PER_S) + AROUND_S

    def _seconds(self, plan: Plan, rate_mb_per_s: float) -> float:
        return plan.steady_cycles * self.threshold_bytes / (rate_mb_per_s * MB) or plan.short_s

    def run(self, session: Session, broker: Broker) -> Mapping[str, Figures]:
        rate = self.rate_mb_per_s or self._half_of_best(session)
        load = Load(16, seconds=self._seconds(session.plan, rate), rate_mb_per_s=rate)
        return Loaded(self.key, load).run(session, broker)

    def _half_of_best(self, session: Session) -> float:
        if not session.rounds[BEST_RATE_ROW][session.kafka.name]:
            step = ProduceFetch(16, 16 * KIB, fetch=False)
            for round_ in range(3):
                session.wait_until_quiet()
                found = step.run(session, session.kafka)
                session.rounds[BEST_RATE_ROW][session.kafka.name][round_] = found[BEST_RATE_ROW]
        measured = session.rounds[BEST_RATE_ROW][session.kafka.name].values()
        return max(each["mb_per_s"] for each in measured) / 2


@dataclass
class CatchUp(Step):
    """Produce at a steady rate, alone and beside a consumer that reads history again and again.

    The node of this step has small caches, so that history comes from objects; the bytes that it reads from files show
    that it does.
    """

    key: str = "catchup"
    rounds_max: int = 3
    flags: Sequence[str] = ("--storage-log-cache-bytes=96MiB", "--storage-block-cache-bytes=64MiB")
    history: dict[str, str] = field(default_factory=dict)
    """Topic with the history by broker."""

    def expected_s(self, plan: Plan) -> float:
        return 2 * (plan.short_s + AROUND_S)

    def prepare(self, session: Session, broker: Broker) -> None:
        topic = self.history[broker.name] = f"history-{broker.name.split()[0].lower()}"
        broker.create_topic(topic, HISTORY_PARTITIONS)
        load = Load(HISTORY_PARTITIONS, KIB, 256 * KIB, LONG_S, session.plan.history_bytes)
        session.load(broker, load, topic)

    def run(self, session: Session, broker: Broker) -> Mapping[str, Figures]:
        alone = Load(16, seconds=session.plan.short_s, rate_mb_per_s=STEADY_MB_PER_S)
        reader: Options = {
            "history": self.history[broker.name],
            "history.partitions": HISTORY_PARTITIONS,
            "history.rate": CATCH_UP_MB_PER_S * MB,
            # The reader seeks back at the end, and must not wait there for new records first.
            "consumer.fetch.max.wait.ms": 5,
        }
        with session.topic(broker, 16) as topic:
            before, _ = session.load(broker, alone, topic)
            session.wait_until_quiet(broker)
            beside, usage = session.load(broker, replace(alone, options=reader), topic)
        assert before.ack is not None
        assert beside.ack is not None
        moved = beside.sent_records * KIB + beside.history_bytes
        return {
            self.key: {
                **figures(beside, usage, moved, beside.ack),
                "mb_per_s": beside.history_bytes / MB / beside.seconds,
                "from_files_mb_per_s": usage.file_bytes / MB / beside.seconds,
                "p99_alone_ms": before.ack.p99_ms,
                "p99_over_alone": beside.ack.p99_ms / before.ack.p99_ms,
            }
        }


def upload_cycle_bytes(flags: Sequence[str]) -> int:
    """Return the bytes between two uploads of a node with these flags (`--name=value`)."""
    given = dict(flag.split("=", 1) for flag in flags)
    settings = load_settings({each.key: given[each.flag] for each in all_settings() if each.flag in given})
    sizes = memory_for(settings).sizes
    return storage_settings(settings, sizes).threshold_bytes(wal_settings(settings).capacity_bytes)


def all_steps(plan: Plan, flags: Sequence[str]) -> list[Step]:
    """Return the steps in the order in which they run. The flags are the node's."""
    cycle = upload_cycle_bytes(flags)
    short = plan.short_s
    full = Load(16, seconds=plan.produce_s, size_bytes=plan.produce_bytes)
    single: Options = {
        "window": 64,
        "producer.linger.ms": 0,
        "producer.batch.size": 0,
        "producer.enable.idempotence": "false",
        "producer.max.in.flight.requests.per.connection": 64,
    }
    prompt: Options = {"consumers": 1, "producer.linger.ms": 0}
    crowd: Options = {
        "producers": 100,
        "consumers": 100,
        "spread": 1,
        "consumer.group.id": "many",
        "producer.buffer.memory": 4 * MIB,
        # Apache Kafka writes an index entry every 4 KiB; the first one of each file costs the file system 20 ms here.
        "prime": 8,
    }
    python = [
        Loaded(library, replace(full, library=library), is_special=True) for library in ("librdkafka", "aiokafka")
    ]
    end_to_end = Load(16, seconds=short, rate_mb_per_s=KIB / 1e3, options=prompt)
    many = Load(1000, seconds=short, rate_mb_per_s=2 * KIB / 1e3, options=crowd)
    return [
        *(ProduceFetch(partitions, size * KIB) for partitions in (1, 16) for size in (16, 256)),
        Loaded("tail", replace(full, options={"consumers": 1}), latency="read"),
        Loaded("single", Load(1, seconds=short / 2, options=single)),
        *python,
        Loaded("tls", replace(full, batch_bytes=64 * KIB, tls=True), is_special=True),
        Steady("steady.10MBps", cycle, STEADY_MB_PER_S),
        Loaded("e2e", end_to_end, latency="read", flushed_rounds=1),
        Loaded("many", many, around_s=CROWD_S, flushed_rounds=0),
        Steady("steady.half", cycle),
        ProduceFetch(16, 16 * KIB, record_bytes=100, fetch=False, key="100B", flushed_rounds=0),
        CatchUp(),
    ]
