"""Ids of nodes that have none of their own: which one is chosen, and that no two processes ever have the same."""

import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from anabranch.broker.cluster.membership.auto_id import choose_id
from anabranch.s3stream.catalog.values import NodeInfo, WalInfo, WalState
from anabranch.wal.format import PAGE_BYTES
from tests.broker.cluster.membership.test_failover import create_topic
from tests.broker.operator.cli.test_node import states
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

LEFT, UP = 0, 9_000


def chosen(
    nodes: Mapping[int, int], logs: Mapping[str, tuple[int, WalState]], *folders: int, taken: tuple[int, ...] = ()
) -> int:
    """The choice beside nodes by the end of their lease, and logs `ID` whose last digit is the node that has them."""
    rows = [NodeInfo(node_id, 1, "h", 1, lease_until_ms) for node_id, lease_until_ms in nodes.items()]
    known = [WalInfo(wal_id, node_id, 1, "wal", state, 0) for wal_id, (node_id, state) in logs.items()]
    here = {node_id: next((key for key, (owner, _) in logs.items() if owner == node_id), "") for node_id in folders}
    return choose_id(rows, known, here, taken)


@pytest.mark.parametrize(
    ("expected", "nodes", "logs", "folders", "taken"),
    [
        (1, {}, {}, (), ()),
        (2, {}, {}, (), (1,)),
        (3, {1: UP, 2: UP}, {}, (), ()),
        (2, {1: UP, 3: UP}, {}, (), ()),
        (2, {1: UP, 2: LEFT, 3: LEFT}, {"b": (2, WalState.DRAINED)}, (), ()),
        (3, {1: UP, 2: LEFT, 3: LEFT}, {"b": (2, WalState.OPEN)}, (), ()),
        (4, {1: UP, 2: LEFT, 3: LEFT}, {"b": (2, WalState.FENCED)}, (), (3,)),
        (3, {1: UP, 2: LEFT, 3: LEFT}, {"c": (3, WalState.DRAINED)}, (3,), ()),
        (3, {1: UP, 2: LEFT, 3: UP}, {"c": (3, WalState.OPEN)}, (3,), ()),
        (2, {1: UP, 2: LEFT, 3: UP}, {"c": (3, WalState.DRAINED)}, (3,), ()),
        (2, {1: UP, 2: LEFT, 3: UP}, {"c": (3, WalState.OPEN)}, (3,), (3,)),
    ],
)
def test_the_id_that_is_chosen(
    expected: int,
    nodes: Mapping[int, int],
    logs: Mapping[str, tuple[int, WalState]],
    folders: tuple[int, ...],
    taken: tuple[int, ...],
) -> None:
    assert chosen(nodes, logs, *folders, taken=taken) == expected


@pytest.mark.slow
def test_processes_that_start_at_once_have_different_ids_and_get_them_back(tmp_path: Path) -> None:
    shared = {
        "node_id": "auto",
        "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
        "objects_path": tmp_path / "objects",
        "wal_takeover": "none",
    }
    # The first two have one data directory; the third has one of its own, as on another machine.
    nodes = [NodeProcess(tmp_path / name, **shared) for name in ("a", "a", "b")]
    with ExitStack() as stack:
        for node in nodes:
            stack.push(node)
            node.data_dir.parent.mkdir(exist_ok=True)
            node.spawn()
        for node in nodes:
            node.wait_ready()
        wait_until(lambda: all(states(node) == {1: "UP", 2: "UP", 3: "UP"} for node in nodes), "three nodes are up")
        folders = {node.events("serving")[0]["data_dir"]: node for node in nodes}
        assert [*folders] == [str(node.data_dir / f"node-{id_of(node)}") for node in nodes]
        assert sorted(map(id_of, nodes)) == [1, 2, 3]
        logs = [log for node in (nodes[0], nodes[2]) for log in node.data_dir.glob("node-*/wal")]
        assert len(logs) == 3, "whoever was too late has begun nothing"

        killed, left = nodes[2], nodes[0]
        create_topic(killed)
        before = id_of(killed)
        killed.kill9()
        killed.start()
        assert id_of(killed) == before, "its log is there"

        before = id_of(left)
        assert left.terminate() == 0
        new = NodeProcess(tmp_path / "new", **shared)
        (tmp_path / "new").mkdir()
        with new:
            assert id_of(new) == before, "that of the one that has left"
            left.start()
            assert id_of(left) == 4

    own = killed.data_dir / f"node-{id_of(killed)}"
    shutil.copytree(own, killed.data_dir / "node-9")
    shutil.rmtree(own)
    assert re.search(rf"node-9/wal.* node {own.name.removeprefix('node-')}\b", killed.refusal())


def id_of(node: NodeProcess) -> int:
    """The id with which a node serves."""
    return int(node.events("serving")[-1]["data_dir"].rpartition("-")[2])


def test_a_log_of_a_node_with_an_id_of_its_own_is_not_left_behind(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, node_id=5) as node:
        create_topic(node)
        node.kill9()
    node.settings["node_id"] = "auto"
    assert "this log of a node with an id of its own may hold records" in node.refusal()

    log = node.data_dir / "wal"
    with log.open("r+b") as file:
        for at in (0, PAGE_BYTES):
            file.seek(at + 100)
            file.write(b"damage")
    assert re.search(r"/wal: both copies .* are damaged.*so node.node_id = auto chooses no other log", node.refusal())
    own = node.data_dir / "node-5"
    own.mkdir()
    log.rename(own / "wal")
    assert re.search(r"/node-5/wal: both copies .* or move .*/node-5 away", node.refusal())
