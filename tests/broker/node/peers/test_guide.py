"""A cluster that is started as docs/cluster.md says, and by nothing else: what goes over several nodes works."""

import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from anabranch.client.connection import Connection
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.support.node import NodeProcess
from tests.support.node_processes import bootstrap_of, wait_for_brokers

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[4] / "docs" / "cluster.md"
TIMEOUT_S = 60
AUTHORIZER = {"authorizer_enabled": "true", "authorizer_super_users": "User:ANONYMOUS"}


def commands() -> list[dict[str, str]]:
    """The settings of each `anabranch serve` in "Start" that names its node, by their outside names."""
    start = GUIDE.read_text(encoding="utf-8").split("## Start\n")[1].split("\n## ")[0]
    found = []
    for line in re.findall(r"^\$ anabranch serve (--node-id .+)$", start, re.MULTILINE):
        words = shlex.split(line)
        found.append({flag[2:].replace("-", "_"): value for flag, value in zip(words[::2], words[1::2], strict=True)})
    return found


def leaders_of(node: NodeProcess, topic: str) -> list[int]:
    """Leaders of the topic's partitions."""
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "-"})
    try:
        found = consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions
    finally:
        consumer.close()
    return [found[index].leader for index in sorted(found)]


@pytest.mark.parametrize("more", [{}, AUTHORIZER], ids=["open", "authorizer"])
def test_two_nodes_on_sqlite(tmp_path: Path, more: dict[str, str]) -> None:
    places = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db", "objects_path": tmp_path / "objects"}
    started = commands()
    own = {"node_id", "data_dir", *places}
    assert [each.keys() for each in started] == [own, own | {"port", "admin_port"}], "any other ports do"
    nodes = [NodeProcess(tmp_path / each["data_dir"], node_id=each["node_id"], **places, **more) for each in started]
    with ExitStack() as stack:
        for node in nodes:
            stack.push(node)
            node.spawn()
        for node in nodes:
            node.wait_ready()
        for node in nodes:
            wait_for_brokers(node.host, node.port, 2)
        first, second = nodes
        places_of_t = [CreatableReplicaAssignment(partition_index=at, broker_ids=[at + 1]) for at in range(2)]
        with Connection(first.host, first.port) as connection:
            created = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=places_of_t)
            connection.call(CreateTopicsRequest(topics=[created], timeout_ms=60_000, validate_only=False))
        assert leaders_of(second, "t") == [1, 2]
        for number in range(4):  # coordinators of several names are on both nodes
            check_transaction(bootstrap_of(nodes), f"name-{number}", number)
        move = ["topic", "move", "t:1", "--to", "1", "--admin", second.admin]
        moved = subprocess.run([sys.executable, "-m", "anabranch", *move], capture_output=True, text=True, check=False)
        assert moved.returncode == 0, moved.stderr
        assert leaders_of(second, "t") == [1, 1]
        check_transaction(bootstrap_of(nodes), "name-0", 4)


def check_transaction(bootstrap: str, name: str, done: int) -> None:
    """Write to both partitions and commit an offset of a group in one transaction, and read what is committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": name, "isolation.level": "read_committed"})
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    try:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("t", name.encode(), partition=partition)
        offsets = [TopicPartition("t", 0, done + 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        producer.commit_transaction(TIMEOUT_S)
        (found,) = consumer.committed([TopicPartition("t", 0)], TIMEOUT_S)
        assert found.offset == done + 1
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(2)])
        messages = consumer.consume(2 * (done + 1), TIMEOUT_S)
        assert [each.error() for each in messages] == [None] * 2 * (done + 1)
    finally:
        consumer.close()
