"""Nodes notice that they do not reach each other, whichever way fails, and say so everywhere."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from anabranch.broker.node.peers import reach
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.members import Member, Members
from anabranch.broker.node.peers.reach import ASK_S, FAILING_AFTER_S, Reach
from anabranch.broker.operator.admin.health import unhealthy_reason, unready_reason
from anabranch.broker.operator.cli import main
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tests.support.node import running_node
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

Way = tuple[int, int]


class Nodes:
    """Nodes 1 to `count`, which live. `cut` has the ways on which nothing arrives, `starting` nodes answer nobody."""

    def __init__(self, count: int, *, cut: Sequence[Way] = (), starting: Sequence[int] = ()) -> None:
        self.cut = set(cut)
        self.starting = starting
        members = [Member(node_id, 1, (), internal_host="h", internal_port=node_id) for node_id in range(1, count + 1)]
        self.reach: dict[int, Reach] = {}
        for own in members:
            known = Members(own)
            known.update(members)
            way = SimpleNamespace(call=self._caller(own.node_id))
            self.reach[own.node_id] = Reach(known, cast("Any", way), has_started=self._has_started)

    async def _has_started(self, member: Member) -> bool:
        return member.node_id not in self.starting

    def _caller(self, own: int) -> Any:
        async def call(node_id: int, _request: DescribeQuorumRequest, _version: int) -> DescribeQuorumResponse:
            if node_id in self.starting or (own, node_id) in self.cut:
                raise PeerUnavailable(f"{own} to {node_id} is cut")
            self.reach[node_id].hear(own, 1)
            return DescribeQuorumResponse(error_message=self.reach[node_id].failure_of(own))

        return call

    def ways(self, node_id: int) -> set[Way]:
        """Ways that fail, as a node sees them."""
        return {(each.from_node, each.to_node) for each in self.reach[node_id].unreached()}

    def isolated(self) -> set[int]:
        """Nodes that say that no other one reaches them."""
        return {node_id for node_id, each in self.reach.items() if each.why_isolated()}

    async def run(self, seconds: float) -> None:
        """Let the nodes ask each other for some time."""
        running = [each for node_id, each in self.reach.items() if node_id not in self.starting]
        tasks = [asyncio.create_task(each.run()) for each in running]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


BOTH = [(1, 2), (2, 1)]
LONG_S = 2 * (FAILING_AFTER_S + ASK_S)


@pytest.mark.parametrize(
    ("count", "cut", "ways", "isolated"),
    [
        (1, [], {1: set()}, set()),
        (2, [], {1: set(), 2: set()}, set()),
        (2, [(1, 2)], {1: {(1, 2)}, 2: {(1, 2)}}, {2}),
        (2, BOTH, {1: set(BOTH), 2: set(BOTH)}, {1, 2}),
        (3, BOTH, {1: set(BOTH), 2: set(BOTH), 3: set()}, set()),
        (3, [(1, 3), (2, 3)], {1: {(1, 3)}, 2: {(2, 3)}, 3: {(1, 3), (2, 3)}}, {3}),
        (3, [(3, 1), (3, 2)], {1: {(3, 1)}, 2: {(3, 2)}, 3: {(3, 1), (3, 2)}}, set()),
    ],
)
def test_each_node_knows_what_fails_at_its_ends(
    count: int, cut: Sequence[Way], ways: dict[int, set[Way]], isolated: set[int]
) -> None:
    async def body() -> None:
        nodes = Nodes(count, cut=cut)
        await nodes.run(LONG_S)
        assert {node_id: nodes.ways(node_id) for node_id in nodes.reach} == ways
        assert nodes.isolated() == isolated
        nodes.cut.clear()
        await nodes.run(2 * ASK_S)
        assert not any(nodes.ways(node_id) for node_id in nodes.reach)

    run_virtual(body())


def test_a_short_failure_is_none_and_neither_is_a_start() -> None:
    async def body() -> None:
        nodes = Nodes(2, cut=BOTH)
        await nodes.run(FAILING_AFTER_S / 2)
        assert not nodes.ways(1)
        nodes = Nodes(2, starting=[2])
        await nodes.run(LONG_S)
        assert not nodes.ways(1)
        assert not nodes.isolated()

    run_virtual(body())


def ask(*arguments: str) -> Any:
    result = CliRunner().invoke(main, [*arguments, "--output", "json"])
    return json.loads(result.stdout)


async def test_a_node_that_others_do_not_reach_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "ASK_S", 0.05)
    monkeypatch.setattr(reach, "FAILING_AFTER_S", 0.2)
    shared = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db", "objects_path": tmp_path / "objects"}
    async with (
        running_node(tmp_path / "1", node_id=1, **shared) as first,
        running_node(tmp_path / "2", node_id=2, **shared, cluster_internal_advertised_host="127.0.0.9") as second,
    ):
        await until(lambda: unready_reason(second) != "", timeout_s=60, pause_s=0.01)
        reason = f"node 2 at {second.internal_address}: Connection refused"
        assert unready_reason(second) == f"no other node reaches this one at {second.internal_address}: {reason}"
        assert (unhealthy_reason(second), unready_reason(first)) == ("", "")
        for node in (first, second):
            found = await asyncio.to_thread(ask, "cluster", "status", "--admin", node.ports.admin_address)
            assert found["unreached"] == [{"from_node": 1, "to_node": 2, "reason": reason}]
        config = tmp_path / "node.toml"
        config.write_text(f'[node]\ndata_dir = "{tmp_path}/3"\n[catalog]\nurl = "{shared["catalog_url"]}"\n')
        findings = await asyncio.to_thread(ask, "doctor", "--config", str(config))
        status = {each["check"]: each["status"] for each in findings}
        assert (status["way to node 1"], status["way to node 2"]) == ("ok", "failed")
