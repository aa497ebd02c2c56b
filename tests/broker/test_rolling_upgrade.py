"""Nodes of the version before and of this one serve a cluster together, until its level is raised.

The version before is the code of the last commit whose schema has a smaller version, run from its files.
"""

import re
import subprocess
import tarfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from anabranch.broker.node.settings.names import all_settings
from anabranch.broker.operator.cli import main
from anabranch.s3stream.catalog.schema import FIRST_ADDITIVE, NEWEST
from benchmarks.lab.cluster import NumberedLoad, bootstrap, create, leaders, read_all
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.server]

BEFORE: Final = "c3f4fba6"
"""Last commit with schema 12."""
ROOT: Final = Path(__file__).parents[2]
PARTITIONS: Final = 6
TOPIC: Final = "bench"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the code of the version before."""
    made = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this clone's history lacks commit {BEFORE}, the version before")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="tar")
    return folder


class Cluster:
    """Two nodes, each of which can be of either version."""

    def __init__(self, folder: Path, catalog_url: str, before: Path) -> None:
        self._before = before
        shared = {
            "catalog_url": catalog_url,
            "objects_path": folder / "objects",
            "cluster_internal_port": 0,
            "wal_capacity_bytes": 16 << 20,
        }
        self.nodes = [NodeProcess(folder / str(node_id), node_id=node_id, **shared) for node_id in (1, 2)]
        self._known = set(re.findall(r"`([a-z_.]+)`", (before / "docs/configuration.md").read_text()))
        self._settings = [dict(node.settings) for node in self.nodes]

    def start(self, index: int, *, older: bool) -> None:
        node = self.prepare(index, older=older)
        node.start()
        assert self.is_older(node) == older

    def prepare(self, index: int, *, older: bool) -> NodeProcess:
        """Let the next start be of one of the versions."""
        node = self.nodes[index]
        keys = {setting.outside_name: setting.key for setting in all_settings()}
        node.settings = {
            name: value for name, value in self._settings[index].items() if not older or keys[name] in self._known
        }
        node.environment = {"PYTHONPATH": str(self._before / "src"), "ANABRANCH_NATIVE": "off"} if older else {}
        node.new_interpreter = older
        return node

    def is_older(self, node: NodeProcess) -> bool:
        """Return whether the process was given the older code, by its environment."""
        return str(self._before) in Path(f"/proc/{node.pid}/environ").read_text()

    def replace(self, index: int, *, older: bool) -> None:
        """Stop a node, which moves its partitions away, and start it in a version."""
        assert self.nodes[index].terminate() == 0
        self.start(index, older=older)

    def upgrade(self, node: NodeProcess) -> str:
        """Raise the level; return the output."""
        return CliRunner().invoke(main, ["cluster", "upgrade", "--bootstrap-server", node.bootstrap]).output


@pytest.fixture
def cluster(tmp_path: Path, postgres: PostgresServer, before: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, postgres.new_database(), before)
    yield made
    for node in made.nodes:
        if node.running:
            node.kill9()


def test_a_cluster_is_upgraded_node_by_node_and_can_go_back_until_its_level_is_raised(cluster: Cluster) -> None:
    first, second = cluster.nodes
    for index in range(2):
        cluster.start(index, older=True)
    create(cluster.nodes, TOPIC, PARTITIONS)
    load = NumberedLoad(bootstrap(cluster.nodes), PARTITIONS, at_once=PARTITIONS, pause_s=0.02)
    load.start()
    try:
        load.wait_all(time.monotonic())
        cluster.replace(1, older=False)
        load.wait_all(time.monotonic())
        assert "node 1 runs a version that does not know" in cluster.upgrade(second)

        cluster.replace(1, older=True)  # the way back
        load.wait_all(time.monotonic())

        cluster.replace(1, older=False)
        create(cluster.nodes, "mixed", PARTITIONS)  # by one of both versions, and opened by both
        first.kill9()  # the new node recovers the log of the older one
        wait_until(lambda: set(leaders([second], TOPIC)) == {2}, "the takeover by the new node")
        load.wait_all(time.monotonic())
        cluster.start(0, older=True)
        second.kill9()  # and the older one that of the new one
        wait_until(lambda: set(leaders([first], TOPIC)) == {1}, "the takeover by the older node")
        load.wait_all(time.monotonic())
        cluster.start(1, older=False)

        cluster.replace(0, older=False)
        assert cluster.upgrade(second) == f"the cluster has level {NEWEST}\n"
        assert cluster.upgrade(first) == f"the cluster has level {NEWEST}\n", "it may be repeated"
        load.wait_all(time.monotonic())
        assert second.terminate() == 0
        refusal = cluster.prepare(1, older=True).refusal()
        assert f"version {FIRST_ADDITIVE - 1}" in refusal
    finally:
        load.stop()
    assert not load.failed
    acked: list[set[int]] = [set() for _ in range(PARTITIONS)]
    for each in load.acks:
        acked[each.partition].add(each.number)
    found = read_all(bootstrap([first]), PARTITIONS)
    assert [sorted(numbers) for numbers in acked] == found
