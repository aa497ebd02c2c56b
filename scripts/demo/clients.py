"""Kafka clients of the demo: an ordinary producer and an ordinary consumer (librdkafka), with checks."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from scripts.demo.flights import Flight, Tally, encode

REPORT_EVERY = 2_000
TIMEOUT_S = 60
POLL_S = 0.5
LOG_LEVEL = 3
"""librdkafka's syslog level: errors."""


class DemoError(RuntimeError):
    """The demo cannot continue. The text says why."""


@dataclass(slots=True)
class Sent:
    """Records that were acknowledged, and their offsets."""

    tally: Tally = field(default_factory=Tally)
    value_bytes: int = 0
    end_offsets: Counter[int] = field(default_factory=Counter)
    """One past the last acknowledged offset, by partition."""


def create_topic(servers: str, topic: str, partitions: int) -> None:
    """Create a topic with unlimited retention, because the records are of 2013, and wait until the node serves it."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": LOG_LEVEL})
    for done in admin.create_topics([NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})]).values():
        done.result(TIMEOUT_S)


def send(servers: str, topic: str, flights: Iterable[Flight], progress: Callable[[int], None]) -> Sent:
    """Send all flights, each acknowledged by the node (acks=all, idempotent). Raises DemoError."""
    producer = Producer({
        "bootstrap.servers": servers,
        "log_level": LOG_LEVEL,
        "enable.idempotence": True,
        "compression.type": "lz4",
        "linger.ms": 20,
        "batch.size": 256 * 1024,
        "queue.buffering.max.messages": 50_000,
    })  # fmt: skip
    sent = Sent()
    failures: list[KafkaError] = []
    acknowledged = 0

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            failures.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        sent.end_offsets[partition] = max(sent.end_offsets[partition], offset + 1)
        acknowledged += 1

    for number, flight in enumerate(flights, 1):
        value = encode(flight.document)
        sent.tally.add(flight.document, flight.timestamp_ms)
        sent.value_bytes += len(value)
        while True:
            try:
                producer.produce(topic, value, flight.carrier, timestamp=flight.timestamp_ms, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.05)
        if number % REPORT_EVERY == 0:
            producer.poll(0)
            progress(acknowledged)
            if failures:
                break
    unsent = producer.flush(TIMEOUT_S)
    progress(acknowledged)
    if failures:
        raise DemoError(f"{len(failures)} records were refused, the first with: {failures[0].str()}")
    if unsent:
        raise DemoError(f"{unsent} records were not acknowledged within {TIMEOUT_S} s")
    return sent


def read_back(servers: str, topic: str, group: str, wanted: Counter[int], progress: Callable[[int], None]) -> Tally:
    """Read the topic from its beginning with a new group, up to `wanted` offsets. Each offset must follow the last.

    Raises DemoError at a gap, a repetition, or when no more records arrive.
    """
    consumer = Consumer({
        "bootstrap.servers": servers,
        "log_level": LOG_LEVEL,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.max.bytes": 32 << 20,
        "max.partition.fetch.bytes": 8 << 20,
    })  # fmt: skip
    tally = Tally()
    expected: Counter[int] = Counter(dict.fromkeys(wanted, 0))
    try:
        consumer.subscribe([topic])
        empty_polls = 0
        while expected != wanted:
            messages = consumer.consume(REPORT_EVERY, POLL_S)
            empty_polls = 0 if messages else empty_polls + 1
            if empty_polls * POLL_S >= TIMEOUT_S:
                raise DemoError(f"no more records after {tally.rows:,}; offsets reached: {dict(expected)}")
            for message in messages:
                _check_and_count(message, expected, tally)
            progress(tally.rows)
        positions = [TopicPartition(topic, partition, offset) for partition, offset in wanted.items()]
        consumer.commit(offsets=positions, asynchronous=False)
    finally:
        consumer.close()
    return tally


def _check_and_count(message: Message, expected: Counter[int], tally: Tally) -> None:
    if error := message.error():
        raise KafkaException(error)
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert value is not None
    if offset != expected[partition]:
        raise DemoError(f"partition {partition}: offset {offset} came where {expected[partition]} was due")
    expected[partition] += 1
    document = json.loads(value)
    if (key := message.key()) != document["carrier"].encode():
        raise DemoError(f"partition {partition}, offset {offset}: key {key!r} at a flight of {document['carrier']}")
    tally.add(document, message.timestamp()[1])
