"""Topics configured for early compaction, as in librdkafka's test 0077 and with Kafka's tools."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.events import create_topic
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.interop

TOPIC = "compacted"
KEYS = (b"k1", b"k2", b"k3")
ROUNDS = 10
SOON: Mapping[str, Mapping[str, str]] = {
    "lag": {"max.compaction.lag.ms": "100"},
    "ratio": {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with the periods that nodes have."""
    with NodeProcess(tmp_path) as process:
        yield process


def produce(node: NodeProcess) -> None:
    """Repeated values for three keys, a tombstone as the last value of the first key, and keys that occur once."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 1, "log_level": 3})
    for number in range(ROUNDS):
        for key in KEYS:
            value = None if key == KEYS[0] and number == ROUNDS - 1 else b"%d" % number
            producer.produce(TOPIC, key=key, value=value)
        producer.produce(TOPIC, key=b"once %d" % number, value=b"stays")
    assert producer.flush(30) == 0


def consume(node: NodeProcess) -> list[tuple[int, bytes, bytes | None]]:
    """Offset, key and value of all that a consumer gets from the beginning up to the end of the partition."""
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 3}
    )
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            offset, key, value = message.offset(), message.key(), message.value()
            assert offset is not None
            assert isinstance(key, bytes)
            assert value is None or isinstance(value, bytes)
            found.append((offset, key, value))
        return found
    finally:
        consumer.close()


def by_key(node: NodeProcess) -> dict[str, Any]:
    """The node's status of compaction by key."""
    found: dict[str, Any] = node.status()["compaction"]["by_key"]
    return found


def is_clean(node: NodeProcess) -> bool:
    """True if everything that was produced has been cleaned."""
    topic = by_key(node).get(TOPIC)
    return topic is not None and topic["cleaned_ms"] > 0 and not topic["dirty_bytes"]


NEWEST = [
    *((4 * number + 3, b"once %d" % number, b"stays") for number in range(ROUNDS - 1)),
    (4 * ROUNDS - 4, KEYS[0], None),
    *((4 * ROUNDS - 4 + at, KEYS[at], b"%d" % (ROUNDS - 1)) for at in (1, 2)),
    (4 * ROUNDS - 1, b"once %d" % (ROUNDS - 1), b"stays"),
]


@pytest.mark.parametrize("configs", SOON.values(), ids=SOON)
def test_only_the_newest_values_are_left_soon(node: NodeProcess, configs: Mapping[str, str]) -> None:
    create_topic(node.bootstrap, TOPIC, 1, {"cleanup.policy": "compact", **configs})
    produce(node)
    wait_until(lambda: is_clean(node), "the cleaner came by")
    assert consume(node) == NEWEST
    node.kill9()
    node.start()
    assert consume(node) == NEWEST


def test_a_topic_that_is_told_later_is_cleaned_too(node: NodeProcess) -> None:
    create_topic(node.bootstrap, TOPIC, 1, {"cleanup.policy": "compact"})
    produce(node)
    assert node.terminate() == 0  # the records are in an object that topics share
    node.start()
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 3})
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    for name, value in SOON["lag"].items():
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(30)
    wait_until(lambda: is_clean(node), "the cleaner came by")
    assert consume(node) == NEWEST
    node.kill9()
    node.start()
    assert consume(node) == NEWEST
