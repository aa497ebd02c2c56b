"""The cluster that stands in for the one node of other tests."""

from collections.abc import Iterator, Sequence

import pytest

from tests.support.node import NodeProcess
from tests.support.node_processes import bootstrap_of, node_processes, terminate_all, wait_for_topic
from tests.support.postgres import PostgresServer

NODES = 3
SETTINGS: dict[str, object] = {
    "wal_capacity_bytes": 64 << 20,
    "group_offsets_partitions": 9,
    "transaction_state_partitions": 9,
}
"""Few internal partitions: a new node opens its share of them before it serves."""


@pytest.fixture(scope="session")
def nodes(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Sequence[NodeProcess]]:
    """The nodes 1, 2 and 3."""
    with node_processes(tmp_path_factory.mktemp("cluster"), NODES, postgres.new_database(), **SETTINGS) as running:
        yield running
        terminate_all(running)


@pytest.fixture(scope="session")
def servers(nodes: Sequence[NodeProcess]) -> str:
    """Addresses of all nodes."""
    return bootstrap_of(nodes)


@pytest.fixture
def topic(nodes: Sequence[NodeProcess], topic: str) -> str:
    """A new topic of three partitions that all nodes know."""
    wait_for_topic(nodes, topic, 3)
    return topic
