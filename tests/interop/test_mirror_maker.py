"""MirrorMaker 2 of Apache Kafka moves topics, configs and offsets of groups from Apache Kafka to a node, and back."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from tests.differential.kafka_cluster import kafka_cluster
from tests.support.events import Event, create_topic, receive, send
from tests.support.kafka_tools import QUICK_JVM
from tests.support.node import NodeProcess
from tests.support.soak import LONG
from tests.support.tools import connect_class_path, java
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600), LONG]

TIMEOUT_S: Final = 30
RECORDS: Final = 100
"""Of each partition."""
CONFIGS: Final = {"cleanup.policy": "compact", "max.message.bytes": "200000", "min.compaction.lag.ms": "86400000"}
SETTINGS: Final = Path(__file__).parents[2] / "docs" / "mirror-maker.properties"
MORE: Final = """\
anabranch->kafka.enabled=true
anabranch->kafka.topics=returns
kafka->anabranch.topics=orders
sync.topic.acls.enabled=false
refresh.groups.interval.seconds=2
refresh.topics.interval.seconds=2
emit.checkpoints.interval.seconds=1
sync.group.offsets.interval.seconds=1
offset.flush.interval.ms=1000
plugin.discovery=only_scan
"""
"""The other direction, and short intervals. A later line counts."""


@contextmanager
def mirror_maker(folder: Path, kafka: str, node: str) -> Iterator[None]:
    """Run MirrorMaker 2 for both directions until the block ends."""
    settings = folder / "mirror.properties"
    named = SETTINGS.read_text().replace("KAFKA:9092", kafka).replace("ANABRANCH:9092", node)
    settings.write_text(named + MORE)
    command: list[str | Path] = [
        java(),
        *QUICK_JVM,
        "-cp",
        connect_class_path(),
        "org.apache.kafka.connect.mirror.MirrorMaker",
    ]
    with (folder / "mirror.log").open("w") as log:
        process = subprocess.Popen([*command, settings], stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
            assert process.poll() is None, "MirrorMaker has ended"
        finally:
            process.kill()
            process.wait(TIMEOUT_S)


def events(topic: str) -> list[Event]:
    return [
        Event(
            partition, b"%s %d" % (topic.encode(), number), b"k%d" % number, 1_700_000_000_000 + number, [("n", b"1")]
        )
        for number in range(RECORDS)
        for partition in range(2)
    ]


def consume_all(servers: str, topic: str, group: str) -> None:
    """Consume a topic to its end, and commit."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        left = 2 * RECORDS
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert isinstance(message, Message)
            assert message.error() is None
            left -= 1
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def committed(consumer: Consumer, topic: str) -> list[int]:
    """Offsets of the consumer's group, by partition."""
    found = consumer.committed([TopicPartition(topic, partition) for partition in range(2)], timeout=TIMEOUT_S)
    return [each.offset for each in found]


def configs(admin: AdminClient, topic: str) -> Mapping[str, str | None]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    try:
        found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    except KafkaException:
        return {}  # the topic is not there yet
    return {name: found[name].value for name in CONFIGS}


def check_moved(topic: str, group: str, source: str, target: str) -> None:
    """Wait until topic, configs, records and the group's offsets are at the target, and compare them."""
    admin = AdminClient({"bootstrap.servers": target})
    wait_until(lambda: configs(admin, topic) == CONFIGS, f"{topic} has its configs")
    counts = {0: RECORDS, 1: RECORDS}
    moved, original = (sorted(receive(servers, topic, counts)) for servers in (target, source))
    assert moved == original
    consumer = Consumer({"bootstrap.servers": target, "group.id": group})
    try:
        wait_until(lambda: committed(consumer, topic) == [RECORDS, RECORDS], f"the offsets of {group} have moved")
    finally:
        consumer.close()


def test_topics_configs_and_offsets_move_in_both_directions(tmp_path: Path) -> None:
    with kafka_cluster(tmp_path / "kafka", 1, {}) as brokers, NodeProcess(tmp_path / "node") as node:
        kafka = f"127.0.0.1:{brokers[1].port}"
        flows = [("orders", "shop", kafka, node.bootstrap), ("returns", "clerk", node.bootstrap, kafka)]
        for topic, group, source, _ in flows:
            create_topic(source, topic, 2, CONFIGS)
            send(source, topic, events(topic))
            consume_all(source, topic, group)
        with mirror_maker(tmp_path, kafka, node.bootstrap):
            for flow in flows:
                check_moved(*flow)
            for topic, _, source, target in flows:
                send(source, topic, [Event(0, b"one more", b"k")])
                assert receive(target, topic, {0: RECORDS + 1})[-1].value == b"one more"
