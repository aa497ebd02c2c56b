"""Apache Kafka's tools that move partitions and elect leaders, on three nodes."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.s3stream.catalog.values import MoveReason
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.broker.api.handlers.test_reassignments import all_see, leaders
from tests.interop.test_java import run
from tests.support.held_moves import hold_moves, moves_carried_out
from tests.support.kafka_tools import TOOLS, TOPICS
from tests.support.node import running_nodes
from tests.support.waiting import until

pytestmark = pytest.mark.interop

REASSIGN = f"{TOOLS}.reassign.ReassignPartitionsCommand"
ELECT = f"{TOOLS}.LeaderElectionCommand"


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    hold_moves(monkeypatch)
    async with running_nodes(tmp_path, 3) as running:
        assert await create(running[0], assigned("t", [1], [1], [2])) == [(0, None)]
        await all_serve(running, "t")
        yield running
        monkeypatch.undo()  # the nodes move their partitions before they stop


def plan_in(folder: Path, name: str, *replicas: list[int]) -> str:
    """Write a plan for partitions of `t`; returns its path."""
    partitions = [{"topic": "t", "partition": index, "replicas": each} for index, each in enumerate(replicas)]
    plan = folder / name
    plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(plan)


async def tool(node: Node, *arguments: str) -> str:
    return await asyncio.to_thread(run, node.bootstrap, *arguments)


async def test_a_reassignment_is_executed_listed_cancelled_and_verified(nodes: list[Node], tmp_path: Path) -> None:
    plan = plan_in(tmp_path, "plan.json", [3], [1], [1])
    execute = (REASSIGN, "--reassignment-json-file", plan, "--execute")
    generated = await tool(
        nodes[0],
        *(REASSIGN, "--generate", "--broker-list", "1,2,3"),
        *("--topics-to-move-json-file", _topics_in(tmp_path)),
    )
    assert "Proposed partition reassignment configuration" in generated
    started = await tool(nodes[0], *execute, "--throttle", "1000000", "--replica-alter-log-dirs-throttle", "1000000")
    assert "Successfully started partition reassignments for t-0,t-1,t-2" in started
    listed = await tool(nodes[1], REASSIGN, "--list")
    assert "t-0: replicas: 3,1. adding: 3. removing: 1." in listed
    assert "t-2: replicas: 1,2. adding: 1. removing: 2." in listed
    verify = (REASSIGN, "--reassignment-json-file", plan, "--verify")
    verified = await tool(nodes[1], *verify)
    assert "Reassignment of partition t-0 is still in progress." in verified
    assert "Reassignment of partition t-1 is completed." in verified
    cancelled = await tool(nodes[0], REASSIGN, "--reassignment-json-file", plan, "--cancel")
    assert "Successfully cancelled partition reassignments for: t-0,t-2" in cancelled
    assert "No partition reassignments found." in await tool(nodes[2], REASSIGN, "--list")

    async with moves_carried_out(nodes):
        await tool(nodes[2], *execute)
        await all_see(nodes, 3, 1, 1)
    verified = await tool(nodes[1], *verify)
    assert [line for line in verified.splitlines() if line.endswith("is completed.")] == [
        f"Reassignment of partition t-{index} is completed." for index in range(3)
    ]
    described = await tool(nodes[0], TOPICS, "--describe", "--topic", "t")
    assert "Partition: 0\tLeader: 3\tReplicas: 3\tIsr: 3" in described


def _topics_in(folder: Path) -> str:
    path = folder / "topics.json"
    path.write_text(json.dumps({"version": 1, "topics": [{"topic": "t"}]}))
    return str(path)


async def test_replicas_are_added_at_once_while_the_leader_stays(nodes: list[Node], tmp_path: Path) -> None:
    plan = ("--reassignment-json-file", plan_in(tmp_path, "plan.json", [3, 1]))
    assert "Successfully started partition reassignment for t-0" in await tool(nodes[0], REASSIGN, *plan, "--execute")
    infos = [node.serving.move_requests.info for node in nodes]  # the tool asks any of them
    await until(lambda: all(info(Place("t", 0)).replicas == (3, 1) for info in infos), timeout_s=60, pause_s=0.01)
    assert "Reassignment of partition t-0 is completed." in await tool(nodes[0], REASSIGN, *plan, "--verify")
    described = await tool(nodes[0], TOPICS, "--describe", "--topic", "t")
    assert "Partition: 0\tLeader: 1\tReplicas: 3,1\tIsr: 3,1" in described


async def test_preferred_leaders_are_elected(nodes: list[Node]) -> None:
    every = (ELECT, "--election-type", "preferred", "--all-topic-partitions")
    async with moves_carried_out(nodes):
        await nodes[0].serving.move_requests.request(
            dict.fromkeys((Place("t", 0), Place("t", 1)), 3), MoveReason.GATHERING
        )
        await all_see(nodes, 3, 3, 2)
        done = await tool(nodes[1], *every)
        _, _, elected = done.strip().partition("Successfully completed leader election (PREFERRED) for partitions ")
        assert sorted(elected.split(", ")) == ["t-0", "t-1"]
        await all_see(nodes, 1, 1, 2)
        assert "Valid replica already elected for partitions t-2" in await tool(
            nodes[1], ELECT, "--election-type", "preferred", "--topic", "t", "--partition", "2"
        )
    assert leaders(nodes[0]) == [1, 1, 2]
