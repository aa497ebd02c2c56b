"""Topics created, grown and deleted by each client. Other nodes see a change a moment after it was answered."""

import warnings
from collections.abc import Sequence

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.interop.test_java import run
from tests.interop.test_kcat import run as kcat
from tests.support.kafka_tools import TOPICS
from tests.support.node import NodeProcess
from tests.support.node_processes import wait_for_topic

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.admin import NewPartitions as PythonPartitions
    from kafka.admin import NewTopic as PythonTopic

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

TIMEOUT_S = 30
FACTOR = 3
TO_THE_END = ("-o", "beginning", "-e", "-f", "%s\\n")


def test_kafka_python(nodes: Sequence[NodeProcess], servers: str, topic: str) -> None:
    name = f"{topic}-kafka-python"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        admin.create_topics([PythonTopic(name, 2, FACTOR)])
        wait_for_topic(nodes, name, 2)
        admin.create_partitions({name: PythonPartitions(7)})
        wait_for_topic(nodes, name, 7)
        assert name in admin.list_topics()
        admin.delete_topics([name])
        wait_for_topic(nodes, name, 0)
        assert name not in admin.list_topics()
    finally:
        admin.close()


async def test_aiokafka(nodes: Sequence[NodeProcess], servers: str, topic: str) -> None:
    name = f"{topic}-aiokafka"
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([AioTopic(name, 2, FACTOR)])
        wait_for_topic(nodes, name, 2)
        await admin.create_partitions({name: AioPartitions(7)})
        wait_for_topic(nodes, name, 7)
        assert name in await admin.list_topics()
        await admin.delete_topics([name])
        wait_for_topic(nodes, name, 0)
        assert name not in await admin.list_topics()
    finally:
        await admin.close()


def test_librdkafka(nodes: Sequence[NodeProcess], servers: str, topic: str) -> None:
    name = f"{topic}-librdkafka"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 3})
    admin.create_topics([NewTopic(name, 2, FACTOR)])[name].result(TIMEOUT_S)
    wait_for_topic(nodes, name, 2)
    admin.create_partitions([NewPartitions(name, 7)])[name].result(TIMEOUT_S)
    wait_for_topic(nodes, name, 7)
    assert name in admin.list_topics(timeout=TIMEOUT_S).topics
    admin.delete_topics([name])[name].result(TIMEOUT_S)
    wait_for_topic(nodes, name, 0)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_javas_tools(nodes: Sequence[NodeProcess], servers: str, topic: str) -> None:
    name = f"{topic}-java"
    run(servers, TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=60000")
    wait_for_topic(nodes, name, 2)
    run(servers, TOPICS, "--alter", "--topic", name, "--partitions", "7")
    wait_for_topic(nodes, name, 7)
    assert "PartitionCount: 7" in run(servers, TOPICS, "--describe", "--topic", name)
    run(servers, TOPICS, "--delete", "--topic", name)
    wait_for_topic(nodes, name, 0)
    assert name not in run(servers, TOPICS, "--list").splitlines()


def test_a_topic_is_created_by_its_first_record(nodes: Sequence[NodeProcess], topic: str) -> None:
    name = f"{topic}-unborn"
    kcat(nodes[0].bootstrap, "-P", "-t", name, stdin=b"first\n")
    wait_for_topic(nodes, name, 1)
    for node in nodes:
        assert kcat(node.bootstrap, "-C", "-t", name, *TO_THE_END) == "first\n"
