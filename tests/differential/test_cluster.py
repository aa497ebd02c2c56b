"""Every script for a cluster, against three nodes and three brokers of Apache Kafka."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from benchmarks.lab.processes import Broker
from tests.differential.cluster_script import NODES, ClusterScript, ClusterScriptFunction, run_cluster_script
from tests.differential.cluster_scripts import CLUSTER_SCRIPTS
from tests.differential.cluster_scripts.outage import DEAD, after_the_outage, before_the_outage
from tests.differential.comparison import compare
from tests.differential.conftest import KAFKA_SETTINGS, OUR_SETTINGS
from tests.differential.kafka_cluster import kafka_cluster
from tests.differential.known_in_clusters import KNOWN_IN_CLUSTERS
from tests.differential.peer import Peer
from tests.differential.script import Step
from tests.support import tools
from tests.support.node import NodeProcess
from tests.support.node_processes import node_processes, terminate_all
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

LOGS = ("device", "object") if os.environ.get("ANABRANCH_SOAK") else ("device",)
"""Kinds of the nodes' logs."""
INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")
KAFKA_CLUSTER_SETTINGS = {
    **KAFKA_SETTINGS,
    "offsets.topic.num.partitions": str(len(NODES)),
    "transaction.state.log.num.partitions": str(len(NODES)),
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True, slots=True)
class Clusters:
    """Both clusters, in which the same broker coordinates a group or an id."""

    kafka: Mapping[int, Peer]
    ours: Mapping[int, Peer]
    kill: Callable[[int], None]
    """Ends the broker with that id in both, as a crash does."""

    def run(self, function: ClusterScriptFunction) -> tuple[Sequence[Step], Sequence[Step]]:
        """Both transcripts, recorded side by side: Apache Kafka's and the nodes'."""
        with ThreadPoolExecutor() as threads:
            runs = [
                threads.submit(run_cluster_script, function, peers, takes_over=peers is self.ours)
                for peers in (self.kafka, self.ours)
            ]
            kafka, ours = [run.result() for run in runs]
            return kafka, ours


def _place_internal_topics(script: ClusterScript) -> None:
    for name in INTERNAL_TOPICS:
        script.place(name, *NODES, cleanup_policy="compact")


@pytest.fixture(scope="module", params=LOGS)
def clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[Clusters]:
    """Both clusters, with their internal topics placed alike."""
    tools.java()
    tools.kafka_class_path()
    settings = {**OUR_SETTINGS, "wal_kind": request.param}
    with ExitStack() as stack:
        brokers: Mapping[int, Broker] = stack.enter_context(
            kafka_cluster(tmp_path_factory.mktemp("apache-kafka"), len(NODES), KAFKA_CLUSTER_SETTINGS)
        )
        nodes: Sequence[NodeProcess] = stack.enter_context(
            node_processes(tmp_path_factory.mktemp("nodes"), len(NODES), postgres.new_database(), **settings)
        )

        def kill(node_id: int) -> None:
            brokers[node_id].kill()
            nodes[node_id - 1].kill9()

        found = Clusters(
            {node_id: Peer("Apache Kafka", "127.0.0.1", brokers[node_id].port) for node_id in NODES},
            {node_id: Peer("anabranch", "127.0.0.1", nodes[node_id - 1].port) for node_id in NODES},
            kill,
        )
        found.run(_place_internal_topics)
        yield found
        terminate_all(nodes)


@pytest.mark.parametrize("function", CLUSTER_SCRIPTS, ids=lambda function: function.__name__)
def test_answers_as_apache_kafkas_brokers_do(clusters: Clusters, function: ClusterScriptFunction) -> None:
    compare(*clusters.run(function), KNOWN_IN_CLUSTERS.get(function.__name__, ()))


def test_answers_when_a_broker_was_killed(clusters: Clusters) -> None:
    compare(*clusters.run(before_the_outage), KNOWN_IN_CLUSTERS.get(before_the_outage.__name__, ()))
    clusters.kill(DEAD)
    compare(*clusters.run(after_the_outage), KNOWN_IN_CLUSTERS.get(after_the_outage.__name__, ()))


def test_known_differences_in_clusters_belong_to_scripts() -> None:
    names = [function.__name__ for function in (*CLUSTER_SCRIPTS, before_the_outage, after_the_outage)]
    assert len(set(names)) == len(names)
    assert set(KNOWN_IN_CLUSTERS) <= set(names)
