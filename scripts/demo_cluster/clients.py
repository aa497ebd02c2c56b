"""Clients of the demo, each at work for the whole time: librdkafka and Java produce, a group of librdkafka reads."""

import json
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.spark.java import cache_folder, find_java_home
from scripts.demo.clients import DemoError
from scripts.demo.flights import Flight, Tally, encode
from scripts.tools import KAFKA_VERSION

QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
KAFKA = f"kafka-{KAFKA_VERSION}"
JAVA_SETTINGS = (
    "acks=all",
    "delivery.timeout.ms=300000",
    "linger.ms=20",
    "reconnect.backoff.max.ms=500",
    "retry.backoff.max.ms=500",
)
JAVA_BYTES = 200
FLUSH_S = 120
POLL_S = 0.2
SAMPLE_S = 0.25
METADATA_S = 5.0
RDKAFKA = {"log_level": 0, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 2_000}


@dataclass(frozen=True, slots=True)
class Sample:
    """Values that clients see at one time."""

    at_s: float
    acked: int
    """Flights acknowledged so far."""
    read: Mapping[str, int]
    """Records read so far, by topic."""
    led: Mapping[int, int]
    """Partitions by leader."""


class FlightSender(threading.Thread):
    """Sends flights at a steady rate with an idempotent producer (librdkafka)."""

    def __init__(self, servers: str, topic: str, flights: Iterable[Flight], count: int, per_second: int) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                **RDKAFKA,
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "delivery.timeout.ms": 300_000,
            }
        )
        self._topic = topic
        self._flights: Iterator[Flight] = islice(flights, count)
        self._per_second = per_second
        self.tally = Tally()
        """Flights handed to the producer."""
        self.acked = 0
        self.offsets: dict[int, set[int]] = defaultdict(set)
        """Acknowledged offsets by partition."""
        self.failures: list[str] = []

    def run(self) -> None:
        """Send all flights, and wait for the acknowledgements."""
        began = time.monotonic()
        for number, flight in enumerate(self._flights, 1):
            self._producer.produce(
                self._topic,
                encode(flight.document),
                flight.carrier,
                timestamp=flight.timestamp_ms,
                on_delivery=self._note,
            )
            self.tally.add(flight.document, flight.timestamp_ms)
            ahead_s = number / self._per_second - (time.monotonic() - began)
            self._producer.poll(max(ahead_s, 0.0))
        if left := self._producer.flush(FLUSH_S):
            self.failures.append(f"{left} flights were not acknowledged")

    def _note(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self.failures.append(str(error))
            return
        self.offsets[partition].add(offset)
        self.acked += 1


class JavaSender:
    """Apache Kafka's ProducerPerformance, which sends a number of records at a steady rate."""

    def __init__(self, folder: Path, servers: str, topic: str, count: int, per_second: int) -> None:
        self._output = folder / "java.log"
        jars = cache_folder() / KAFKA
        if not jars.is_dir():
            raise DemoError("Apache Kafka's tools are missing: run `make tools`")
        command = [str(find_java_home() / "bin" / "java"), *QUICK_JVM, f"-Djava.io.tmpdir={folder}", "-cp", f"{jars}/*"]
        command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(count)]
        command += ["--record-size", str(JAVA_BYTES), "--throughput", str(per_second), "--producer-props"]
        command += [f"bootstrap.servers={servers}", *JAVA_SETTINGS]
        with self._output.open("wb") as output:
            # In a separate session: Ctrl-C reaches only the demo, which ends what it has started.
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def wait(self, limit_s: float) -> str:
        """Wait until all records are sent; return the tool's last line. Raises DemoError."""
        try:
            status = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise DemoError(f"Java's producer has not ended after {limit_s:.0f} s: see {self._output}") from None
        lines = self._output.read_text(errors="replace").splitlines()
        if status or not lines:
            raise DemoError(f"Java's producer failed with exit code {status}: see {self._output}")
        return lines[-1]

    def end(self) -> None:
        """Make sure that the process has ended."""
        self._process.kill()
        self._process.wait()


class Reader(threading.Thread):
    """A member of a group that reads topics from their beginning, and notes each offset that it has seen."""

    def __init__(self, servers: str, topics: list[str], flights_topic: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                **RDKAFKA,
                "bootstrap.servers": servers,
                "group.id": "demo-cluster",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": 1_000,
            }
        )
        self._consumer.subscribe(topics)
        self._flights_topic = flights_topic
        self.stopping = threading.Event()
        self.seen: dict[str, dict[int, Counter[int]]] = {topic: defaultdict(Counter) for topic in topics}
        """Number of times that each offset was seen, by topic and partition."""
        self.tally = Tally()
        """Flights, each counted once however often a rebalance brings it."""
        self.disordered = 0
        """Offsets that came after a later one although it had not been seen yet."""

    def count(self, topic: str) -> int:
        """Number of different records seen."""
        return sum(len(offsets) for offsets in list(self.seen[topic].values()))

    def run(self) -> None:
        """Poll until told to stop."""
        newest: dict[tuple[str, int], int] = {}
        while not self.stopping.is_set():
            for message in self._consumer.consume(1_000, POLL_S):
                self._note(message, newest)
        self._consumer.close()

    def _note(self, message: Message, newest: dict[tuple[str, int], int]) -> None:
        topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
        if message.error() is not None or topic is None or partition is None or offset is None or value is None:
            return
        offsets = self.seen[topic][partition]
        offsets[offset] += 1
        if offsets[offset] > 1:
            return
        self.disordered += offset != newest.get((topic, partition), -1) + 1
        newest[topic, partition] = offset
        if topic == self._flights_topic:
            self.tally.add(json.loads(value), message.timestamp()[1])


class Watch(threading.Thread):
    """Samples what clients see: records acknowledged and read, and the leaders of all partitions."""

    def __init__(self, servers: str, sender: FlightSender, reader: Reader, topics: list[str], began: float) -> None:
        super().__init__(daemon=True)
        self._admin = AdminClient({**RDKAFKA, "bootstrap.servers": servers})
        self._sender, self._reader, self._topics = sender, reader, topics
        self._began = began
        self.stopping = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        """Sample until told to stop."""
        while not self.stopping.wait(SAMPLE_S):
            read = {topic: self._reader.count(topic) for topic in self._topics}
            self.samples.append(Sample(time.monotonic() - self._began, self._sender.acked, read, self.leaders()))

    def leaders(self) -> Counter[int]:
        """Number of partitions by leader; empty if no node answers."""
        found: Counter[int] = Counter()
        with suppress(KafkaException):
            metadata = self._admin.list_topics(timeout=METADATA_S).topics
            for topic in self._topics:
                found.update(each.leader for each in metadata[topic].partitions.values())
        return found


def end_offsets(servers: str, topic: str, partitions: int) -> list[int]:
    """Return the end of each partition."""
    consumer = Consumer({**RDKAFKA, "bootstrap.servers": servers, "group.id": "ends"})
    try:
        places = [TopicPartition(topic, index) for index in range(partitions)]
        return [consumer.get_watermark_offsets(place, timeout=FLUSH_S)[1] for place in places]
    finally:
        consumer.close()
