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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.lab.client import Options, PerfClient, outcome
from benchmarks.lab.meter import BrokerMeter
from benchmarks.lab.processes import DELETE_SOON, Anabranch, ApacheKafka, Broker, MissingError, free_port
from benchmarks.support import CONSOLE, Report, number, parser
from tests.support.certificates import Authority

GB, MB, KIB = 1e9, 1e6, 1 << 10
PARTITIONS = 16
RECORD_BYTES = KIB
BATCH_BYTES = 64 * KIB
TLS, PLAIN = "tls", "plain"
SUITES: Mapping[str, str] = {
    "TLS_AES_128_GCM_SHA256": "TLSv1.3",
    "TLS_AES_256_GCM_SHA384": "TLSv1.3",
    "TLS_CHACHA20_POLY1305_SHA256": "TLSv1.3",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "TLSv1.2",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "TLSv1.2",
}


class TlsAnabranch(Anabranch):
    """A node with two listeners."""

    def __init__(self, home: Path, certificate: Path) -> None:
        super().__init__(home)
        self.ports = {PLAIN: self.port, TLS: free_port()}
        self._flags = [
            f"--listeners=PLAINTEXT://127.0.0.1:{self.port},SSL://127.0.0.1:{self.ports[TLS]}",
            f"--ssl-certificate-file={certificate}",
        ]


class TlsKafka(ApacheKafka):
    """Apache Kafka with two listeners."""

    def __init__(self, home: Path, certificate: Path) -> None:
        ports = {TLS: free_port()}
        super().__init__(
            home,
            properties={
                **DELETE_SOON,
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(certificate),
            },
            other_listeners=f",SSL://127.0.0.1:{ports[TLS]}",
        )
        self.ports = {**ports, PLAIN: self.port}


class Comparison:
    """The brokers, the client, and the figures so far."""

    def __init__(self, home: Path, suite: str, *, seconds: float, fetch_bytes: int, passes: int) -> None:
        authority = Authority(home / "ca")
        certificate = authority.issue("localhost").both
        self.node = TlsAnabranch(home / "anabranch", certificate)
        self.kafka = TlsKafka(home / "kafka", certificate)
        self.client = PerfClient(home / "client.log")
        self.figures: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        """By figure, listener and broker, in the order of rounds."""
        self._seconds, self._fetch_bytes, self._passes = seconds, fetch_bytes, passes
        self._secure: Options = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
            "ssl.enabled.protocols": SUITES[suite],
            "ssl.protocol": SUITES[suite],
            "ssl.cipher.suites": suite,
        }
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
                order: Sequence[TlsAnabranch | TlsKafka] = [self.node, self.kafka]
                for listener in (TLS, PLAIN):
                    for broker in order if round_ % 2 == 0 else order[::-1]:
                        self._measure(broker, listener)
                CONSOLE.print(f"round {round_ + 1} of {rounds}", highlight=False)

    def _new_topic(self, broker: Broker) -> str:
        self._topics += 1
        name = f"tls-{self._topics}"
        broker.create_topic(name, PARTITIONS)
        return name

    def _options(self, prefix: str, listener: str) -> Options:
        return {f"{prefix}.{name}": value for name, value in self._secure.items()} if listener == TLS else {}

    def _load(
        self,
        broker: TlsAnabranch | TlsKafka,
        listener: str,
        topic: str,
        *,
        seconds: float = 0,
        size_bytes: int = 0,
        meter: BrokerMeter | None = None,
    ) -> tuple[float, float]:
        """Send records for a time, or that many bytes; return seconds and bytes."""
        options: Options = {
            "partitions": PARTITIONS,
            "record.bytes": RECORD_BYTES,
            "records": size_bytes // RECORD_BYTES,
            "prime": 1,
            "rate": 0,
            "seconds": seconds or 600,
            "producer.batch.size": BATCH_BYTES,
            **self._options("producer", listener),
        }
        found = self.client.load(broker.ports[listener], topic, options=options, meter=meter)
        return found.seconds, float(found.sent_records * RECORD_BYTES)

    def _measure(self, broker: TlsAnabranch | TlsKafka, listener: str) -> None:
        topic = self._new_topic(broker)
        meter = BrokerMeter(broker)
        self._add(
            "produce", listener, broker, meter, *self._load(broker, listener, topic, seconds=self._seconds, meter=meter)
        )
        broker.delete_topic(topic)
        topic = self._new_topic(broker)
        self._load(broker, PLAIN, topic, size_bytes=self._fetch_bytes)
        meter = BrokerMeter(broker)
        options: Options = {
            "port": broker.ports[listener],
            "topic": topic,
            "partitions": PARTITIONS,
            "passes": self._passes,
            **self._options("consumer", listener),
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
    made.add_argument("--suite", choices=SUITES, default=next(iter(SUITES)), help="the cipher suite")
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
