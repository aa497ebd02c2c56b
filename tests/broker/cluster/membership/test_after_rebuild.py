"""A cluster whose catalog was rebuilt has all its leaders again, and all records: stopped in any order, or killed."""

import os
import random
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from anabranch.broker.cluster.membership.environment import wall_ms
from anabranch.broker.cluster.membership.failover import TakeoverRefused
from anabranch.broker.cluster.membership.rebuild import CatalogRebuild, ClockAndIds
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.settings.model import Settings
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import NodeInUse
from tests.broker.cluster.membership.test_log_recovery import VALUES, is_led_by, killed_after, read, send, shared
from tests.broker.cluster.membership.test_operations import once_dead
from tests.support.node import running_node, settings_for
from tests.support.waiting import until

PARTITIONS = 6


async def rebuild(settings: Settings) -> None:
    entropy = ClockAndIds(wall_ms, lambda: os.urandom(16), random.Random())
    async with CatalogRebuild.opened(settings, entropy) as work:
        await work.make_plan(None, lambda _done, _total: None)
        await work.execute(accept_loss=False, keep_ms=0, on_progress=lambda _report: None)


def lose_catalog(folder: Path) -> None:
    for path in folder.glob("catalog.db*"):
        path.unlink()


async def stopped_and_rebuilt(folder: Path, order: Sequence[int]) -> None:
    """Run three nodes with records in a topic, stop them in this order, and rebuild their catalog."""
    stacks = {node_id: AsyncExitStack() for node_id in order}
    nodes = [
        await stacks[node_id].enter_async_context(
            running_node(folder / str(node_id), node_id=node_id, cluster_internal_port=0, **shared(folder))
        )
        for node_id in sorted(order)
    ]
    await until(
        lambda: all(len(node.serving.members.living()) == len(order) for node in nodes), timeout_s=60, pause_s=0.01
    )
    await nodes[0].serving.topic_commands.create("t", partitions=PARTITIONS, configs={})
    await send(nodes[0], *VALUES)
    for node_id in order:
        await stacks[node_id].aclose()
    lose_catalog(folder)
    await rebuild(settings_for(folder / "1", node_id=1, **shared(folder)))


async def start(stack: AsyncExitStack, folder: Path, *node_ids: int) -> Sequence[Node]:
    return [
        await stack.enter_async_context(
            running_node(folder / str(node_id), node_id=node_id, cluster_internal_port=0, **shared(folder))
        )
        for node_id in node_ids
    ]


async def all_led(node: Node, by: set[int]) -> None:
    """Wait until each partition is open at one of the nodes, which leads it."""

    def led() -> bool:
        topic = node.serving.topics.get("t")
        return topic is not None and all(each.owner == each.leader in by for each in topic.info.partitions)

    await until(led, timeout_s=30, pause_s=0.02)


async def test_all_partitions_are_led_again_when_all_nodes_start(tmp_path: Path) -> None:
    await stopped_and_rebuilt(tmp_path, (1, 2, 3))
    async with AsyncExitStack() as stack:
        nodes = await start(stack, tmp_path, 1, 2, 3)
        await all_led(nodes[0], {1, 2, 3})
        assert await read(nodes[0], len(VALUES)) == VALUES


async def test_a_node_that_is_lost_is_replaced_by_the_commands_that_refusals_name(tmp_path: Path) -> None:
    await stopped_and_rebuilt(tmp_path, (1, 2, 3))
    shutil.rmtree(tmp_path / "3")
    async with AsyncExitStack() as stack:
        nodes = await start(stack, tmp_path, 1, 2)
        with pytest.raises(NodeInUse, match="`anabranch node give-up 3`"):
            await nodes[0].serving.operations.remove(3)
        with pytest.raises(TakeoverRefused, match="`anabranch node give-up 3`"):
            await nodes[0].serving.operations.fail(3)
        await once_dead(lambda: nodes[0].serving.operations.give_up(3))
        await all_led(nodes[0], {1, 2})
        with pytest.raises(TakeoverRefused, match="`anabranch node remove 3`"):
            await nodes[0].serving.operations.plan_loss(3)
        await nodes[0].serving.operations.remove(3)
        assert await read(nodes[0], len(VALUES)) == VALUES


async def test_the_log_of_a_node_that_stays_away_is_recovered_on_its_machine(tmp_path: Path) -> None:
    await stopped_and_rebuilt(tmp_path, (1, 2, 3))
    async with AsyncExitStack() as stack:
        (first,) = await start(stack, tmp_path, 1)
        await all_led(first, {1})
        assert await read(first, len(VALUES)) == VALUES
        assert await first.serving.operations.remove(3) >= 0


async def stands_still() -> None:
    """Stand for the writing of a manifest that the catalog's loss is faster than."""


@pytest.mark.parametrize("is_moved_twice", [False, True])
async def test_what_a_new_leader_acknowledged_before_any_manifest_named_it_is_there(
    tmp_path: Path, *, is_moved_twice: bool
) -> None:
    async with (
        killed_after(tmp_path, 1, cluster_internal_port=0) as first,
        killed_after(tmp_path, 2, cluster_internal_port=0) as second,
    ):
        nodes = {1: first, 2: second}
        await until(
            lambda: all(len(node.serving.members.living()) == 2 for node in nodes.values()),
            timeout_s=60,
            pause_s=0.01,
        )
        topic = await first.serving.topic_commands.create("t", partitions=1, configs={})
        (partition,) = topic.info.partitions
        await send(nodes[partition.leader], VALUES[0])
        for node in nodes.values():
            await node.upkeep.manifests.ensure_current()
            node.upkeep.manifests.ensure_current = stands_still  # type: ignore[method-assign]
        leader = partition.leader
        for value in VALUES[1 : 3 if is_moved_twice else 2]:
            leader = 3 - leader
            await first.serving.catalog.request_moves(
                {partition.stream_id: leader}, reason=MoveReason.OPERATOR, now_ms=1
            )
            await is_led_by(first, leader)
            await send(nodes[leader], value)
    lose_catalog(tmp_path)
    await rebuild(settings_for(tmp_path / "1", node_id=1, **shared(tmp_path)))
    async with AsyncExitStack() as stack:
        first, _ = await start(stack, tmp_path, 1, 2)
        await all_led(first, {leader})
        expected = VALUES[: 3 if is_moved_twice else 2]
        assert await read(first, len(expected)) == expected
