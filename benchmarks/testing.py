"""A broker for tests beside Apache Kafka's in a JVM: time until the first record is acknowledged, CPU time, memory.

    python -m benchmarks.testing [--quick] [--json FILE]

Rounds alternate between the two. Each starts a new broker with nothing in it, sends one record to a new topic, and ends
the broker. The time of Apache Kafka begins when its storage is formatted.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from anabranch.testing import Broker
from benchmarks.lab.processes import ApacheKafka, cpu_s_of, rss_bytes_of
from benchmarks.support import Report, middle, parser

QUICK_ROUNDS, ROUNDS = 3, 10
TIMEOUT_S = 60.0


class Round(NamedTuple):
    """One life of a broker."""

    ready_s: float
    """Time until it answers."""
    first_ack_s: float
    """Time until a record of a new topic is acknowledged."""
    cpu_s: float
    """CPU time until then."""
    rss_bytes: int


def send(servers: str) -> None:
    """Send a record to a new topic, and wait for its acknowledgement."""
    producer = Producer({"bootstrap.servers": servers})
    producer.produce("first", b"record")
    if producer.flush(TIMEOUT_S):
        sys.exit(f"{servers} did not acknowledge a record")


def anabranch() -> Round:
    """Run the broker for tests once."""
    broker = Broker()
    began_s = time.perf_counter()
    broker.start()
    ready_s = time.perf_counter() - began_s
    send(broker.bootstrap_servers)
    found = Round(ready_s, time.perf_counter() - began_s, cpu_s_of(broker.pid), rss_bytes_of(broker.pid))
    broker.close()
    return found


def kafka(home: Path) -> Round:
    """Run Apache Kafka once."""
    broker = ApacheKafka(home)
    home.mkdir()
    broker.start()
    ready_s = time.perf_counter() - broker.spawned_s
    send(f"127.0.0.1:{broker.port}")
    found = Round(ready_s, time.perf_counter() - broker.spawned_s, broker.cpu_s(), broker.rss_bytes())
    broker.kill()
    return found


def main() -> None:
    """Run the benchmark."""
    options = parser("A broker for tests beside Apache Kafka.").parse_args()
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    ours: list[Round] = []
    theirs: list[Round] = []
    try:
        anabranch()  # compiles the modules and reads them into the page cache
        for number in range(QUICK_ROUNDS if options.quick else ROUNDS):
            ours.append(anabranch())
            theirs.append(kafka(home / str(number)))
            shutil.rmtree(home / str(number))
    finally:
        shutil.rmtree(home)
    report = Report("A broker for tests")

    def compare(name: str, unit: str, figure: Callable[[Round], float], goal: str | None = None) -> None:
        report.add(name, middle([figure(each) for each in ours]), unit, goal)
        report.add(f"{name}, Apache Kafka", middle([figure(each) for each in theirs]), unit)
        pairs = zip(ours, theirs, strict=True)
        report.add(f"{name}, ratio", middle([figure(one) / figure(other) for one, other in pairs]), "ratio")

    compare("ready after", "s", lambda each: each.ready_s, "<= 0.5")
    compare("first record acknowledged after", "s", lambda each: each.first_ack_s)
    compare("CPU until then", "s", lambda each: each.cpu_s)
    compare("memory then", "MiB", lambda each: each.rss_bytes / (1 << 20), "<= 60")
    report.finish(options)


if __name__ == "__main__":
    main()
