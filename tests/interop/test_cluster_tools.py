"""Apache Kafka's tools on a cluster of three nodes: what they show of it, an unclean election, an unregistered node."""

import json
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.broker.cluster.membership.test_failover import bootstrap, cluster
from tests.interop.test_java import run
from tests.support.events import Event, receive, send
from tests.support.kafka_tools import TOOLS, TOPICS, run_tool
from tests.support.node import NodeProcess
from tests.support.node_processes import wait_for_brokers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.interop

Nodes = tuple[NodeProcess, NodeProcess, NodeProcess]
ELECTION = f"{TOOLS}.LeaderElectionCommand"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes. Each leads one partition of `t`, and keeps its log to itself."""
    first, second, third = cluster(tmp_path_factory.mktemp("cluster-tools"), 3, wal_takeover="none")
    with first, second, third:
        servers = bootstrap(first, second, third)
        for node in (first, second, third):
            wait_for_brokers(node.host, node.port, 3)
        run(servers, TOPICS, "--create", "--topic", "t", "--replica-assignment", "1,2,3")
        yield first, second, third


def cluster_tool(servers: str, action: str, *arguments: str) -> tuple[int, str]:
    """Run `kafka-cluster`, whose action comes first; return its exit code and output."""
    done = run_tool(f"{TOOLS}.ClusterTool", [action, "--bootstrap-server", servers, *arguments])
    return done.returncode, done.stdout + done.stderr


def living(servers: str) -> list[str]:
    code, listed = cluster_tool(servers, "list-endpoints")
    assert code == 0, listed
    return [line.split()[0] for line in listed.splitlines()[1:]]


def leaders(servers: str) -> Mapping[int, str]:
    described = run(servers, TOPICS, "--describe", "--topic", "t")
    return {int(index): leader for index, leader in re.findall(r"Partition: (\d+)\s+Leader: (\S+)", described)}


def test_every_tool_shows_three_nodes(nodes: Nodes) -> None:
    servers = bootstrap(*nodes)
    assert leaders(servers) == {0: "1", 1: "2", 2: "3"}
    versions = run(servers, f"{TOOLS}.BrokerApiVersionsCommand")
    assert len(re.findall(r"\(id: \d+ rack: \S+ isFenced: false\) -> \(", versions)) == 3, versions
    described = run(servers, f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "t")
    brokers = json.loads(described.splitlines()[-1])["brokers"]
    found = {
        each["broker"]: [part["partition"] for folder in each["logDirs"] for part in folder["partitions"]]
        for each in brokers
    }
    assert found == {1: ["t-0"], 2: ["t-1"], 3: ["t-2"]}


def test_the_quorum_has_a_voter_for_each_node_and_none_lags_for_long(nodes: Nodes) -> None:
    servers = bootstrap(*nodes)
    tool = f"{TOOLS}.MetadataQuorumCommand"

    def lags() -> dict[str, str]:
        rows = [line.split() for line in run(servers, tool, "describe", "--replication").splitlines()[1:]]
        return {row[0]: row[3] for row in rows}

    wait_until(lambda: lags() == {"1": "0", "2": "0", "3": "0"}, "all have seen the last change")
    status = run(servers, tool, "describe", "--status")
    assert "LeaderId:               1" in status
    assert "MaxFollowerLag:         0" in status


def test_an_unclean_election_gives_up_what_only_a_dead_node_has_and_then_the_node_is_unregistered(
    nodes: Nodes,
) -> None:
    first, second, third = nodes
    servers = bootstrap(first, second)
    where = ["--topic", "t", "--election-type", "unclean"]
    assert "Valid replica already elected" in run(servers, ELECTION, *where, "--partition", "2")
    code, said = cluster_tool(servers, "unregister", "--id", "3")
    assert (code, "Broker ID 3 cannot be unregistered: node 3 is" in said) == (1, True), said
    send(servers, "t", [Event(2, b"lost")] * 5)
    third.kill9()
    wait_until(lambda: "silent node is not taken over" in " ".join(first.lines), "the log cannot be opened")
    elected = run(servers, ELECTION, *where, "--partition", "2")
    assert "Successfully completed leader election (UNCLEAN) for partitions t-2" in elected
    wait_until(lambda: bool(first.events("records given up with the log")), "its log line is read")
    (lost,) = first.events("records given up with the log")
    assert (lost["partition"], lost["from_offset"], lost["node_id"]) == ("t-2", 0, 3)
    wait_until(lambda: leaders(servers)[2] in {"1", "2"}, "both nodes know the new leader")
    again = run(servers, ELECTION, *where, "--partition", "2")
    assert "Valid replica already elected" in again
    code, said = cluster_tool(servers, "unregister", "--id", "3")
    assert (code, "Broker 3 is no longer registered." in said) == (0, True), said
    wait_until(lambda: living(servers) == ["1", "2"], "both nodes know that it is gone")

    send(servers, "t", [Event(2, b"new")])
    third.start()  # on its old log
    wait_until(lambda: living(servers) == ["1", "2", "3"], "it is registered anew")
    send(servers, "t", [Event(2, b"newer")])
    assert [event.value for event in receive(servers, "t", {2: 2})] == [b"new", b"newer"]
    assert leaders(servers)[2] != "3", "it gets nothing back"
