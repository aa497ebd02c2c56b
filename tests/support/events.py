"""Send records to a topic and receive them with librdkafka, for tests of the components in between."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from tests.support.waiting import wait_until

QUIET = {"log_level": 3}
TIMEOUT_S = 30
MOVING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
"""Errors of a partition that moves to another node at the moment."""


class Event(NamedTuple):
    """A record to send, or one received."""

    partition: int
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()


def create_topic(
    servers: str, topic: str, partitions: int, configs: Mapping[str, str] | None = None, *, factor: int = 1
) -> None:
    """Create a topic that keeps its records however old their timestamps are; a `factor` of -1 is the brokers'."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    for done in admin.create_topics(
        [NewTopic(topic, partitions, factor, config={"retention.ms": "-1", **(configs or {})})]
    ).values():
        done.result(TIMEOUT_S)


def delete_topic(servers: str, topic: str) -> None:
    """Delete a topic."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    for done in admin.delete_topics([topic]).values():
        done.result(TIMEOUT_S)


def send(servers: str, topic: str, events: Sequence[Event], **settings: object) -> None:
    """Send the events in order and wait until all are acknowledged; `settings` are librdkafka's.

    An idempotent producer would wait for its id for half a second or more: it asks before it has a connection.
    """
    in_order = {"max.in.flight": 1, "linger.ms": 5}
    producer = Producer({"bootstrap.servers": servers, **in_order, **QUIET, **settings})
    failures: list[KafkaException] = []
    for event in events:
        producer.produce(
            topic,
            event.value,
            event.key,
            event.partition,
            timestamp=event.timestamp_ms,
            headers=list(event.headers),
            on_delivery=lambda error, _message: failures.append(KafkaException(error)) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0, "not everything was acknowledged in time"
    assert not failures


def receive(servers: str, topic: str, counts: Mapping[int, int]) -> list[Event]:
    """The first `counts[partition]` records of each partition, in order within it."""
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False, **QUIET
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition, count in counts.items() if count])
        left = {partition: count for partition, count in counts.items() if count}
        events: list[Event] = []
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no more records, but these are still expected: {left}"
            if error := message.error():
                raise KafkaException(error)
            partition = message.partition()
            assert partition is not None
            if partition not in left:
                continue
            left[partition] -= 1
            if not left[partition]:
                del left[partition]
            headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            events.append(Event(partition, message.value(), message.key(), message.timestamp()[1], headers))
        return events
    finally:
        consumer.close()


def committed_records(servers: str, topic: str, *, wait: bool = True) -> list[tuple[int, bytes | None, bytes | None]]:
    """Partition, key and value of the committed records, by partition and in order, when no transaction is open.

    Without `wait`, those that can be read now: brokers answer the end of a transaction before its markers are written.
    """
    if wait:
        wait_stable(servers, topic)
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.partition.eof": True,
         "isolation.level": "read_committed", **QUIET}
    )  # fmt: skip
    try:
        partitions = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        rows: list[tuple[int, bytes | None, bytes | None]] = []
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, "the topic can be read to its end"
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF"
                ended.add(message.partition() or 0)
            else:
                rows.append((message.partition() or 0, message.key(), message.value()))
        return sorted(rows, key=lambda row: row[0])
    finally:
        consumer.close()


def wait_stable(servers: str, topic: str) -> None:
    """Wait until no transaction is open in the topic, and the markers of those that have ended are written."""
    wait_until(lambda: is_stable(servers, topic), "no transaction is open")


def is_stable(servers: str, topic: str) -> bool:
    """Return True if no transaction is open in the topic; False also while one of its partitions moves."""
    try:
        return _ends(servers, topic, committed=True) == _ends(servers, topic)
    except KafkaException as error:
        if error.args[0].code() not in MOVING:
            raise
        return False


def _ends(servers: str, topic: str, *, committed: bool = False) -> list[int]:
    """Offsets at which the partitions end for readers of all records, or of committed ones."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    found = admin.list_offsets({TopicPartition(topic, each): latest for each in partitions}, isolation_level=level)
    return [each.result(TIMEOUT_S).offset for each in found.values()]
