"""TLS beside Apache Kafka's, with the same cipher: throughput and CPU of produce and fetch, over TLS and without.

Both brokers run at the same time on this machine with their defaults, each with a listener PLAINTEXT and one SSL, the
same key (P-256) and certificate. One warm JVM with Apache Kafka's clients drives them in turn: acks=all, 16 partitions,
records of 1 KiB in batches of 64 KiB. The clients allow one version and one cipher suite. Fetches read from memory.
CPU is the broker's, user and system; MB are 10^6 bytes. Ratios are the node over Apache Kafka, of pairs measured one
after the other; the order changes each round.

    python -m benchmarks.tls [--quick] [--rounds N] [--suite NAME] [--json FILE]
"""

import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lab.client import Options, PerfClient, outcome
from benchmarks.lab.meter import BrokerMeter
from benchmarks.lab.processes import Anabranch, ApacheKafka, Broker, MissingError
from benchmarks.lab.tls import DEFAULT_SUITE, SUITES, Tls
from benchmarks.support import CONSOLE, Report, number, parser

GB, MB, KIB = 1e9, 1e6, 1 << 10
PARTITIONS = 16
RECORD_BYTES = KIB
BATCH_BYTES = 64 * KIB
TLS, PLAIN = "tls", "plain"


class Comparison:
    """The brokers, the client, and the figures so far."""

    def __init__(self, home: Path, suite: str, *, seconds: float, fetch_bytes: int, passes: int) -> None:
        self._tls = Tls(home / "ca", suite)
        self.node: Broker = Anabranch(home / "anabranch", certificate=self._tls.certificate)
        self.kafka: Broker = ApacheKafka(home / "kafka", certificate=self._tls.certificate)
        self.client = PerfClient(home / "client.log")
        self.figures: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        """By figure, listener and broker, in the order of rounds."""
        self._seconds, self._fetch_bytes, self._passes = seconds, fetch_bytes, passes
        self._topics = 0

    def run(self, rounds: int, warm_seconds: float) -> None:
        """Warm up, then measure in rounds that alternate."""
        with ExitStack() as stack:
            for broker in (self.node, self.kafka):
                stack.enter_context(broker)
            stack.enter_context(self.client)
            for listener in (PLAIN, TLS):
                for broker in (self.node, self.kafka):
                    self._load(broker, listener, self._new_topic(broker), seconds=warm_seconds)
            for round_ in range(rounds):
                order = [self.node, self.kafka]
                for listener in (TLS, PLAIN):
                    for broker in order if round_ % 2 == 0 else order[::-1]:
                        self._measure(broker, listener)
                CONSOLE.print(f"round {round_ + 1} of {rounds}", highlight=False)

    def _new_topic(self, broker: Broker) -> str:
        self._topics += 1
        name = f"tls-{self._topics}"
        broker.create_topic(name, PARTITIONS)
        return name

    def _listener(self, broker: Broker, listener: str, client: str) -> tuple[int, Options]:
        """Return the listener's port, and what a client needs there."""
        return (broker.tls_port, self._tls.options(client)) if listener == TLS else (broker.port, {})

    def _load(
        self,
        broker: Broker,
        listener: str,
        topic: str,
        *,
        seconds: float = 0,
        size_bytes: int = 0,
        meter: BrokerMeter | None = None,
    ) -> tuple[float, float]:
        """Send records for a time, or that many bytes; return seconds and bytes."""
        port, secure = self._listener(broker, listener, "producer")
        options: Options = {
            "partitions": PARTITIONS,
            "record.bytes": RECORD_BYTES,
            "records": size_bytes // RECORD_BYTES,
            "prime": 1,
            "rate": 0,
            "seconds": seconds or 600,
            "producer.batch.size": BATCH_BYTES,
            **secure,
        }
        found = self.client.load(port, topic, options=options, meter=meter)
        return found.seconds, float(found.sent_records * RECORD_BYTES)

    def _measure(self, broker: Broker, listener: str) -> None:
        topic = self._new_topic(broker)
        meter = BrokerMeter(broker)
        self._add(
            "produce", listener, broker, meter, *self._load(broker, listener, topic, seconds=self._seconds, meter=meter)
        )
        broker.delete_topic(topic)
        topic = self._new_topic(broker)
        self._load(broker, PLAIN, topic, size_bytes=self._fetch_bytes)
        meter = BrokerMeter(broker)
        port, secure = self._listener(broker, listener, "consumer")
        options: Options = {
            "port": port,
            "topic": topic,
            "partitions": PARTITIONS,
            "passes": self._passes,
            **secure,
        }
        found = outcome(self.client.run("read", options, meter))
        self._add("fetch", listener, broker, meter, found.seconds, float(found.read_bytes))
        broker.delete_topic(topic)

    def _add(
        self, what: str, listener: str, broker: Broker, meter: BrokerMeter, seconds: float, size_bytes: float
    ) -> None:
        assert meter.usage is not None
        self.figures[f"{what}.rate", listener, broker.name].append(size_bytes / MB / seconds)
        self.figures[f"{what}.cpu", listener, broker.name].append(meter.usage.cpu_s / (size_bytes / GB))


def report(compared: Comparison, suite: str) -> Report:
    """Return medians by broker, and ratios of pairs with the goals."""
    made = Report(f"{suite}, {SUITES[suite]}")
    units = {"rate": ("MB/s", ">= 1"), "cpu": ("s/GB", "<= 1")}
    for what in ("produce.rate", "produce.cpu", "fetch.rate", "fetch.cpu"):
        unit, goal = units[what.split(".")[1]]
        for listener in (TLS, PLAIN):
            pair = [compared.figures[what, listener, broker.name] for broker in (compared.node, compared.kafka)]
            for broker, values in zip((compared.node, compared.kafka), pair, strict=True):
                made.add(f"{what}.{listener}.{broker.name}", statistics.median(values), unit)
            ratio = statistics.median(own / other for own, other in zip(*pair, strict=True))
            made.add(f"{what}.{listener}.ratio", ratio, "node / Apache Kafka", goal if listener == TLS else None)
    return made


def main() -> None:
    """Run the benchmark."""
    made = parser("TLS beside Apache Kafka.")
    made.add_argument("--rounds", type=int, help="number of rounds  [default: 5, with --quick 1]")
    made.add_argument("--suite", choices=SUITES, default=DEFAULT_SUITE, help="the cipher suite")
    options = made.parse_args()
    rounds = options.rounds or (1 if options.quick else 5)
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    size = {"seconds": 2.0, "fetch_bytes": 64 << 20, "passes": 3}
    if not options.quick:
        size = {"seconds": 10.0, "fetch_bytes": 192 << 20, "passes": 8}
    try:
        compared = Comparison(
            home,
            options.suite,
            seconds=size["seconds"],
            fetch_bytes=int(size["fetch_bytes"]),
            passes=int(size["passes"]),
        )
        compared.run(rounds, warm_seconds=2.0 if options.quick else 10.0)
        report(compared, options.suite).finish(options)
        tls, plain = (
            number(statistics.median(compared.figures["produce.rate", each, compared.node.name]))
            for each in (TLS, PLAIN)
        )
        CONSOLE.print(f"The node produces {tls} MB/s over TLS and {plain} MB/s without", highlight=False)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
