"""A node that is drained moves everything it leads to other nodes, and gets nothing; drains asked for by command."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.operator.cli import progress
from anabranch.broker.operator.cli.node import node as node_command
from anabranch.broker.operator.cli.topic import topic as topic_command
from anabranch.s3stream.catalog.values import MoveReason
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.support.held_moves import hold_moves, moves_carried_out
from tests.support.node import running_nodes
from tests.support.waiting import until

COUNT = 12
PLACES = [Place("t", index) for index in range(COUNT)]


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Three nodes; the first one leads all partitions of `t`."""
    hold_moves(monkeypatch)
    async with running_nodes(tmp_path, 3) as running:
        assert await create(running[0], assigned("t", *[[1]] * COUNT)) == [(0, None)]
        await all_serve(running, "t")
        yield running
        monkeypatch.undo()  # the nodes move their partitions before they stop


def leaders(node: Node) -> Counter[int]:
    return Counter(node.serving.move_requests.info(place).leader for place in PLACES)


async def command(node: Node, *arguments: str) -> Result:
    group = {"node": node_command, "topic": topic_command}[arguments[0]]
    through_kafka = arguments[1] in {"elect", "create", "describe"}
    there = ["--bootstrap-server", node.bootstrap] if through_kafka else ["--admin", node.ports.admin_address]
    return await asyncio.to_thread(CliRunner().invoke, group, [*arguments[1:], *there])


def said(result: Result) -> str:
    """The output of a command, without what the nodes of this process log meanwhile."""
    return "".join(line for line in result.stdout.splitlines(keepends=True) if not line.startswith("20"))


async def test_a_node_that_is_drained_leads_nothing_and_gets_nothing_until_the_drain_is_cancelled(
    nodes: list[Node],
) -> None:
    async with moves_carried_out(nodes):
        await nodes[1].serving.move_requests.set_draining(1, draining=True)
        await until(lambda: not nodes[0].serving.move_requests.led_by(1), timeout_s=60, pause_s=0.01)
        assert leaders(nodes[0]) == {2: COUNT // 2, 3: COUNT // 2}
        await nodes[0].serving.topic_commands.create("new", partitions=4, configs={})
        assert not nodes[0].serving.move_requests.led_by(1), "not even of a topic that was created through it"
        assert {nodes[0].serving.move_requests.info(place).preferred for place in PLACES} == {1}

        await nodes[1].serving.move_requests.set_draining(1, draining=False)
        await nodes[1].serving.topic_commands.create("newer", partitions=1, configs={})
        await nodes[0].serving.membership.catch_up()
        assert list(nodes[0].serving.move_requests.led_by(1)) == [Place("newer", 0)]


async def test_a_drain_goes_on_past_failed_moves_and_nodes_that_are_drained_too(nodes: list[Node]) -> None:
    await nodes[1].serving.move_requests.set_draining(1, draining=True)
    await until(
        lambda: all(nodes[1].serving.move_requests.info(place).order for place in PLACES), timeout_s=60, pause_s=0.01
    )
    order = nodes[1].serving.move_requests.info(PLACES[0]).order
    assert order is not None
    await nodes[1].serving.catalog.fail_move(order, "busy")
    await nodes[1].serving.move_requests.set_draining(3, draining=True)
    async with moves_carried_out(nodes):
        await until(lambda: not nodes[0].serving.move_requests.led_by(1), timeout_s=60, pause_s=0.01)
        assert leaders(nodes[0]) == {2: COUNT}


async def test_a_drain_waits_for_a_node_that_can_take_partitions(nodes: list[Node]) -> None:
    with capture_logs() as said:
        for node_id in (2, 3, 1):
            await nodes[0].serving.move_requests.set_draining(node_id, draining=True)
        await until(lambda: any(line["event"] == "the drain waits" for line in said), timeout_s=60, pause_s=0.01)
    assert leaders(nodes[0]) == {1: COUNT}
    async with moves_carried_out(nodes):
        await nodes[0].serving.move_requests.set_draining(2, draining=False)
        await until(lambda: leaders(nodes[0]) == {2: COUNT}, timeout_s=60, pause_s=0.01)


async def test_an_order_of_a_person_is_not_replaced_by_a_drain(nodes: list[Node]) -> None:
    await nodes[0].serving.move_requests.request(dict.fromkeys(PLACES, 3), MoveReason.OPERATOR)
    await nodes[0].serving.move_requests.set_draining(1, draining=True)
    async with moves_carried_out(nodes):
        await until(lambda: leaders(nodes[0]) == {3: COUNT}, timeout_s=60, pause_s=0.01)


async def test_before_a_stop_everything_moves_to_others(nodes: list[Node]) -> None:
    async with moves_carried_out(nodes):
        await nodes[0].upkeep.drain.before_stop(60)
        assert not nodes[0].serving.move_requests.led_by(1)
    assert leaders(nodes[0]) == {2: COUNT // 2, 3: COUNT // 2}


async def test_a_stop_also_moves_what_a_person_has_ordered_in_vain(nodes: list[Node]) -> None:
    requests = nodes[0].serving.move_requests
    await requests.request(dict.fromkeys(PLACES, 3), MoveReason.OPERATOR)
    for order in await nodes[0].serving.catalog.list_moves():
        await nodes[0].serving.catalog.fail_move(order, "busy")
    await nodes[0].serving.membership.catch_up()
    orders = [requests.info(place).order for place in PLACES]
    assert all(order is not None and order.failure for order in orders)
    async with moves_carried_out(nodes):
        await nodes[0].upkeep.drain.before_stop(60)
    assert leaders(nodes[0]) == {2: COUNT // 2, 3: COUNT // 2}


async def test_a_stop_does_not_wait_for_moves_that_fail_or_have_no_target(nodes: list[Node]) -> None:
    stopping = asyncio.create_task(nodes[0].upkeep.drain.before_stop(600))
    await until(
        lambda: all(nodes[0].serving.move_requests.info(place).order for place in PLACES), timeout_s=60, pause_s=0.01
    )
    for place in PLACES:
        order = nodes[0].serving.move_requests.info(place).order
        assert order is not None
        assert order.reason is MoveReason.STOP
        await nodes[0].serving.catalog.fail_move(order, "busy")
    await asyncio.wait_for(stopping, 60)
    for node_id in (2, 3):
        await nodes[1].serving.move_requests.set_draining(node_id, draining=True)
    await nodes[0].serving.membership.catch_up()
    await nodes[0].upkeep.drain.before_stop(600)
    assert leaders(nodes[0]) == {1: COUNT}


async def test_partitions_are_moved_by_command(nodes: list[Node]) -> None:
    async with moves_carried_out(nodes):
        done = await command(nodes[1], "topic", "move", "t:0,3", "--to", "2")
        assert (done.exit_code, said(done)) == (0, "node 2 leads 2 partitions\n"), done.output
        assert leaders(nodes[1]) == {1: COUNT - 2, 2: 2}
        done = await command(nodes[1], "topic", "move", "t", "--to", "3", "--output", "json")
        assert json.loads(said(done)) == {"to": 3, "led": COUNT, "failed": {}}
        assert {nodes[1].serving.move_requests.info(place).preferred for place in PLACES} == {3}


async def test_preferred_leaders_are_elected_by_command(nodes: list[Node]) -> None:
    async with moves_carried_out(nodes):
        await command(nodes[1], "node", "drain", "1")
        await command(nodes[1], "node", "drain", "1", "--cancel")
        done = await command(nodes[1], "topic", "elect", "t:0,3")
        assert said(done) == "elected leaders of 2 partitions; 0 needed no election\n", done.output
        assert leaders(nodes[1])[1] == 2
        done = await command(nodes[1], "topic", "elect", "--all", "--output", "json")
        assert json.loads(said(done)) == {"elected": COUNT - 2, "failed": {}, "not_needed": 2}
        assert leaders(nodes[1]) == {1: COUNT}


async def test_a_topic_is_created_with_replicas_and_they_are_shown(nodes: list[Node]) -> None:
    done = await command(nodes[1], "topic", "create", "r", "-p", "1", "--replication-factor", "3")
    assert said(done) == "created topic r with 1 partition\n", done.output
    shown = json.loads(said(await command(nodes[1], "topic", "describe", "r", "--output", "json")))
    assert [sorted(each["replicas"]) for each in shown[0]["partitions"]] == [[1, 2, 3]]
    refused = await command(nodes[1], "topic", "create", "s", "--replication-factor", "4")
    assert refused.exit_code == 1
    assert "4" in refused.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("topic", "move", "t", "--to", "9"), "Node 9 is not running."),
        (("topic", "move", "x", "--to", "2"), "topic x does not exist"),
        (("topic", "move", "t:99", "--to", "2"), "There is no partition t-99."),
        (("node", "drain", "9"), "Node 9 is not running: it has nothing to be moved."),
        (("node", "drain", "9", "--cancel"), "node 9 is not registered"),
    ],
)
async def test_what_cannot_be_moved_is_refused(nodes: list[Node], arguments: tuple[str, ...], reason: str) -> None:
    refused = await command(nodes[0], *arguments)
    assert refused.exit_code == 1
    assert refused.stderr == f"Error: {reason}\n"


async def test_a_move_that_fails_is_told(nodes: list[Node]) -> None:
    moving = asyncio.create_task(command(nodes[0], "topic", "move", "t:5", "--to", "2"))
    await until(lambda: nodes[0].serving.move_requests.info(PLACES[5]).order is not None, timeout_s=60, pause_s=0.01)
    (order,) = await nodes[0].serving.catalog.list_moves()
    await nodes[0].serving.catalog.fail_move(order, "busy")
    done = await moving
    assert (done.exit_code, said(done)) == (1, "node 2 leads 0 partitions\n")
    assert "t-5 was not moved: busy" in done.stderr


async def test_a_node_is_drained_by_command(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    polled = threading.Event()

    def sleep(seconds: float) -> None:
        polled.set()
        time.sleep(seconds)

    monkeypatch.setattr(progress, "time", SimpleNamespace(sleep=sleep))
    draining = asyncio.create_task(command(nodes[2], "node", "drain", "1"))
    await until(polled.is_set, timeout_s=60, pause_s=0.01)
    async with moves_carried_out(nodes):
        done = await draining
        assert (done.exit_code, said(done)) == (0, "node 1 leads no partitions; 12 partitions moved away\n")
        assert "draining node 1: 0 of 12" in done.stderr
        again = await command(nodes[2], "node", "drain", "1", "--output", "json")
        assert json.loads(said(again)) == {
            "node": 1,
            "draining": True,
            "lives": True,
            "leads": 0,
            "failed": {},
            "moved": 0,
        }
        for node_id in ("2", "3"):
            await command(nodes[0], "node", "drain", node_id)
        refused = await command(nodes[2], "node", "drain", "1")
    cancelled = await command(nodes[2], "node", "drain", "1", "--cancel")
    assert said(cancelled) == "node 1 may get partitions again; it leads 0 partitions\n"
    assert not refused.exit_code or "No other node could lead" in refused.stderr


async def test_an_interrupted_removal_ends_its_drain_only(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "time", SimpleNamespace(sleep=interrupt))
    stopped = await command(nodes[2], "node", "remove", "1", "--drain")
    assert (stopped.exit_code, stopped.stderr.splitlines()[-1]) == (
        1,
        f"Error: not removed: node 1 may get partitions again; it leads {COUNT} partitions",
    )
    await until(lambda: not nodes[0].serving.members.draining, timeout_s=60, pause_s=0.01)
    assert nodes[0].end_if_drained() == "node 1 is not being drained"
    assert await nodes[0].serving.move_requests.set_draining(1, draining=True)
    assert not await nodes[1].serving.move_requests.set_draining(1, draining=True), "it has begun elsewhere"
    await command(nodes[2], "node", "remove", "1", "--drain")
    await until(lambda: 1 in nodes[0].serving.members.draining, timeout_s=60, pause_s=0.01)
    assert 1 in nodes[2].serving.members.draining, "somebody else has begun that drain"
    assert nodes[0].end_if_drained() == f"node 1 leads {COUNT} partitions"


async def test_a_drain_that_is_cancelled_meanwhile_is_told(nodes: list[Node]) -> None:
    draining = asyncio.create_task(command(nodes[2], "node", "drain", "1"))
    await until(
        lambda: all(nodes[0].serving.move_requests.info(place).order for place in PLACES), timeout_s=60, pause_s=0.01
    )
    # Not by another command: each takes the standard error of the whole process while it runs.
    await nodes[1].serving.move_requests.set_draining(1, draining=False)
    done = await draining
    assert done.exit_code == 1
    assert "the drain of node 1 was cancelled; it leads 12 partitions" in done.stderr
    assert await nodes[0].serving.catalog.list_moves() == []
