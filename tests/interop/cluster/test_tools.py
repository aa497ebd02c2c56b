"""Tools that are shown three nodes: brokers, leaders, log directories, the quorum; and changes that any node takes."""

import json
import re
from collections.abc import Sequence

import pytest

from tests.interop.test_java import run
from tests.interop.test_kcat import run as kcat
from tests.support.events import Event, create_topic, send
from tests.support.kafka_tools import TOOLS, TOPICS
from tests.support.node import NodeProcess
from tests.support.node_processes import wait_for_topic

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

IDS = {1, 2, 3}


def test_kcat_shows_all_nodes_whichever_it_asks(nodes: Sequence[NodeProcess], servers: str, topic: str) -> None:
    shown = [json.loads(kcat(node.bootstrap, "-L", "-J", "-t", topic)) for node in nodes]
    for metadata in shown:
        assert {(broker["id"], broker["name"]) for broker in metadata["brokers"]} == {
            (node_id, node.bootstrap) for node_id, node in enumerate(nodes, 1)
        }
    leaders = [{part["partition"]: part["leader"] for part in found["topics"][0]["partitions"]} for found in shown]
    assert leaders[0] == leaders[1] == leaders[2]
    assert set(leaders[0].values()) <= IDS


def test_javas_tools_assign_partitions_and_show_where_they_are(nodes: Sequence[NodeProcess], topic: str) -> None:
    name = f"{topic}-assigned"
    run(nodes[0].bootstrap, TOPICS, "--create", "--topic", name, "--replica-assignment", "3,1,2")
    wait_for_topic(nodes, name, 3)
    run(nodes[1].bootstrap, TOPICS, "--alter", "--topic", name, "--partitions", "4", "--replica-assignment", "3,1,2,3")
    wait_for_topic(nodes, name, 4)
    described = run(nodes[2].bootstrap, TOPICS, "--describe", "--topic", name)
    assert re.findall(r"Leader: (\d)\s+Replicas: (\d)", described) == [(each, each) for each in "3123"]
    send(nodes[0].bootstrap, name, [Event(index, b"x" * 100) for index in range(4)])
    directories = run(nodes[0].bootstrap, f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", name)
    found = {
        broker["broker"]: {part["partition"]: part["size"] > 100 for part in broker["logDirs"][0]["partitions"]}
        for broker in json.loads(directories.splitlines()[-1])["brokers"]
    }
    assert found == {
        1: {f"{name}-1": True},
        2: {f"{name}-2": True},
        3: {f"{name}-0": True, f"{name}-3": True},
    }


def test_javas_tools_show_the_quorum(servers: str) -> None:
    status = run(servers, f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
    assert re.search(r"LeaderId:\s+1\b", status)
    replication = run(servers, f"{TOOLS}.MetadataQuorumCommand", "describe", "--replication")
    assert {int(line.split()[0]) for line in replication.splitlines()[1:]} == IDS


def test_configs_of_a_node_are_set_there(servers: str) -> None:
    tool = "org.apache.kafka.tools.ConfigCommand"
    entity = ["--entity-type", "brokers", "--entity-name", "2"]
    run(servers, tool, "--alter", *entity, "--add-config", "max.connections=1002")
    assert "max.connections=1002" in run(servers, tool, "--describe", *entity)
    run(servers, tool, "--alter", *entity, "--delete-config", "max.connections")


def test_a_group_and_its_topic_are_found_from_every_node(nodes: Sequence[NodeProcess], topic: str) -> None:
    name = f"{topic}-spread"
    create_topic(nodes[0].bootstrap, name, 6)
    wait_for_topic(nodes, name, 6)
    send(nodes[1].bootstrap, name, [Event(n % 6, b"%d" % n) for n in range(60)])
    for at, node in enumerate(nodes):
        settings = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=30000", "-e", "-f", "%s\\n")
        read = kcat(node.bootstrap, *settings, "-G", f"{name}-{at}", name)
        assert sorted(map(int, read.split())) == list(range(60))
