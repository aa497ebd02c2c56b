"""Orders of an operator about other nodes: declared dead, given up, removed. Several nodes in one process."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from structlog.testing import capture_logs

from anabranch.broker.app import StartError
from anabranch.broker.cluster.membership.failover import TakeoverRefused
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.broker.node.peers.liveness import Silence
from anabranch.s3stream.catalog.values import WalState
from anabranch.s3stream.errors import NodeInUse, NotFound
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import NodeIdentity, ObjectState
from tests.broker.cluster.membership.test_log_recovery import (
    VALUES,
    is_led_by,
    killed_after,
    log_of,
    read,
    send,
    shared,
)
from tests.support.node import running_node, running_nodes
from tests.support.waiting import until

Answer = TypeVar("Answer")


async def once_dead(order: Callable[[], Awaitable[Answer]]) -> Answer:
    """Give an order once its node is known to be dead. After a pause of the machine it is not, for some seconds."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await order()
            except TakeoverRefused as error:
                if "is not known to be dead" not in str(error):
                    raise
            await asyncio.sleep(0.05)


async def end_of(node: Node) -> int:
    """Offset after the last record of `t-0`."""
    where = TopicPartition("t", 0)
    async with AIOKafkaConsumer(bootstrap_servers=node.bootstrap) as consumer:
        ends = await consumer.end_offsets([where])
    found: int = ends[where]
    return found


# fail


async def test_a_node_that_lives_is_declared_dead_and_nothing_is_lost(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2, wal_takeover="shared") as (first, second):
        await first.serving.topic_commands.create("t", partitions=1, configs={})
        await is_led_by(second, 1)
        await send(first, *VALUES)
        log = await second.serving.operations.fail(1)
        assert log is not None
        assert log.wal_id == first.wal.wal_id
        await is_led_by(second, 2)
        assert await read(second, len(VALUES)) == VALUES
        assert (await log_of(second, 1)).state is WalState.DRAINED
        assert "fenced" in await first.failed
        with pytest.raises(TakeoverRefused, match="it has left nothing"):
            await second.serving.operations.fail(1)


async def test_a_node_whose_log_cannot_be_opened_is_not_declared_dead(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, second):
        with pytest.raises(TakeoverRefused, match="the process of node 1 has its log: stop it first"):
            await second.serving.operations.fail(1)
        with pytest.raises(TakeoverRefused, match="this is node 1 itself"):
            await first.serving.operations.fail(1)
        with pytest.raises(TakeoverRefused, match="there is no node 7"):
            await first.serving.operations.fail(7)
        assert not first.failed.done()


async def test_a_node_that_keeps_its_log_to_itself_is_not_declared_dead(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2, wal_takeover="none") as (_, second):
        with pytest.raises(TakeoverRefused, match=r"cannot be opened here: .*only node 1 may open its log"):
            await second.serving.operations.fail(1)


# give up


async def test_a_lost_log_is_given_up_and_its_partitions_continue_at_their_committed_ends(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        async with killed_after(tmp_path, 1, wal_takeover="none") as first:
            await first.serving.topic_commands.create("t", partitions=1, configs={})
            await send(first, b"uploaded")
            await first.serving.storage.flush()
            await send(first, *VALUES)
            other = await stack.enter_async_context(running_node(tmp_path / "2", node_id=2, **shared(tmp_path)))
            await until(lambda: len(other.serving.members.living()) == 2, timeout_s=60, pause_s=0.01)
            with pytest.raises(TakeoverRefused, match="node 1 is not known to be dead"):
                await other.serving.operations.give_up(1)
        operations = other.serving.operations
        plan = await once_dead(lambda: operations.plan_loss(1))
        assert [(each.partition, each.end_offset) for each in plan.partitions] == [("t-0", 1)]
        with pytest.raises(TakeoverRefused, match="not 99 as in the plan"):
            await once_dead(lambda: operations.give_up(1, epoch=99))
        with capture_logs() as said:
            await once_dead(lambda: operations.give_up(1, epoch=plan.node.epoch))
        lost = [line for line in said if line["event"] == "records given up with the log"]
        assert [(line["partition"], line["from_offset"], line["node_id"]) for line in lost] == [("t-0", 1, 1)]
        await is_led_by(other, 2)
        await send(other, b"later")
        assert await read(other, 2) == [b"uploaded", b"later"]
        with pytest.raises(TakeoverRefused, match="no log that may hold records"):
            await other.serving.operations.give_up(1)
        with pytest.raises(StartError, match="was given up"):
            await stack.enter_async_context(running_node(tmp_path / "1", node_id=1, **shared(tmp_path)))
        assert await read(other, 2) == [b"uploaded", b"later"]


async def test_partitions_that_were_given_up_do_not_get_their_old_records_back_with_the_log(tmp_path: Path) -> None:
    """The log returns, the partition returns to its node, and the node recovers once more."""
    own = {"wal_takeover": "none", **shared(tmp_path)}
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(running_node(tmp_path / "2", node_id=2, **own))
        async with killed_after(tmp_path, 1, wal_takeover="none") as first:
            for name in ("t", "u"):
                await first.serving.topic_commands.create_all([TopicSpec(name, 1, {}, internal=False, leaders=[1])])
                await is_led_by(second, 1, name)
            await until(lambda: len(second.serving.members.living()) == 2, timeout_s=60, pause_s=0.01)
            await send(first, b"kept", topic="u")  # keeps what follows in the log
            await send(first, *VALUES)
            ids = {topic.name: topic.info.partitions[0].stream_id for topic in second.serving.topics}
        found = await once_dead(lambda: second.serving.operations.give_up_partitions(1, {ids["t"]}))
        assert [(each.partition, each.end_offset) for each in found.values()] == [("t-0", 0)]
        await is_led_by(second, 2)
        await send(second, b"new")
        assert (await log_of(second, 1)).state is WalState.OPEN, "it is still the log of the other partition"
        async with killed_after(tmp_path, 1, wal_takeover="none") as first:
            await is_led_by(first, 1, "u")
            await is_led_by(first, 2)
            assert await read(second, 1) == [b"new"]
            await until(lambda: len(second.serving.members.living()) == 2, timeout_s=60, pause_s=0.01)
            await stack.aclose()
            await is_led_by(first, 1)
            await send(first, b"newer")
            assert await read(first, 2) == [b"new", b"newer"]
    async with running_node(tmp_path / "1", node_id=1, **own) as first:
        assert not first.serving.storage.stopped_streams
        assert await read(first, 1, "u") == [b"kept"], "the other partition has what was acknowledged"
        assert await read(first, 2) == [b"new", b"newer"]
        assert await end_of(first) == 2


async def test_a_log_that_can_be_opened_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
        monkeypatch.setattr(other.upkeep.failover, "_take_over", lambda *_: asyncio.sleep(0))
        async with killed_after(tmp_path, 1) as first:
            await first.serving.topic_commands.create("t", partitions=1, configs={})
            await until(lambda: len(other.serving.members.living()) == 2, timeout_s=60, pause_s=0.01)
        with pytest.raises(TakeoverRefused, match="can be opened: it is being recovered"):
            await once_dead(lambda: other.serving.operations.plan_loss(1))


# remove


async def test_a_node_that_lives_is_not_removed(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, _):
        with pytest.raises(NodeInUse, match="node 2 is not known to be dead"):
            await first.serving.operations.remove(2)
        with pytest.raises(NodeInUse, match="it answers this"):
            await first.serving.operations.remove(1)


async def test_compaction_takes_what_is_inherited_and_the_storage_is_as_it_should_be(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_node(tmp_path / "1", node_id=1, **shared(tmp_path)))
        await first.serving.topic_commands.create("t", partitions=2, configs={})
        for value in VALUES:
            for partition in range(2):
                await send(first, value, partition=partition)
            await first.serving.storage.flush()
        async with running_node(tmp_path / "2", node_id=2, **shared(tmp_path)) as other:
            await until(lambda: len(first.serving.members.living()) == 2, timeout_s=60, pause_s=0.01)
            await stack.aclose()
            await is_led_by(other, 2)
            before = {each.object_id for each in await other.serving.catalog.list_node_ssos(1, limit=100)}
            assert len(before) == len(VALUES)
            assert await other.serving.operations.remove(1) == len(before)
            with pytest.raises(NotFound):
                await other.serving.operations.remove(1)
            assert [node.node_id for node in await other.serving.catalog.list_nodes()] == [2]
            summary = await other.upkeep.compaction.run_once()
            assert (summary.sso_before, summary.sso_after) == (len(before), 1)
            found = await other.serving.catalog.get_objects(sorted(before))
            assert {each.state for each in found.values()} == {ObjectState.DESTROYED}
            report = await verify(
                catalog=other.serving.catalog,
                stores=other.stores,
                cluster=other.serving.settings.node.cluster,
                deep=True,
            )
            assert report.ok, report.findings
            assert await read(other, len(VALUES)) == VALUES


async def test_a_node_that_has_beaten_since_it_was_observed_is_not_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observations of this node may be old by a beat: the catalog knows better."""
    async with running_nodes(tmp_path, 2, wal_takeover="none") as (first, second):
        await first.serving.topic_commands.create("t", partitions=1, configs={})
        found = await second.serving.catalog.observe_node(1)
        assert found is not None
        old = Silence(found[1], 60.0, was_alive=True)
        await first.serving.catalog.beat(
            NodeIdentity(1, first.serving.members.own.epoch), now_ms=first.serving.now_ms(), lease_ms=10_000
        )
        monkeypatch.setattr(second.serving.membership, "silent", lambda: {1: old})
        for order in (second.serving.operations.plan_loss, second.serving.operations.give_up):
            with pytest.raises(TakeoverRefused, match="node 1 is not known to be dead"):
                await order(1)
        with pytest.raises(NodeInUse, match="node 1 is not known to be dead"):
            await second.serving.operations.remove(1)
        assert not first.failed.done()
