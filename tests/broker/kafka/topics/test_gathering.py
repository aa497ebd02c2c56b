"""Topics whose partitions several nodes lead are detached and cloned through any of them."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.model import StreamInfo
from anabranch.s3stream.object.owner_marks import OwnerMarks
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.broker.kafka.topics.test_moves import contents
from tests.support.held_moves import hold_moves, moves_carried_out
from tests.support.node import running_nodes
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Two nodes; each leads one of the partitions of `t`, and has two records of it in its log."""
    async with running_nodes(tmp_path, 2, stop_upload_timeout_ms=2_000) as running:
        assert await create(running[0], assigned("t", [1], [2])) == [(0, None)]
        await all_serve(running, "t")
        for partition, node in enumerate(running):
            async with raw_client(node.bootstrap) as client:
                for value in range(2):
                    answer = await client.produce("t", [batch_of(b"%d" % value)], partition=partition)
                    assert answer.responses[0].partition_responses[0].error_code == 0
        yield running


def leaders(node: Node, name: str) -> list[int]:
    topic = node.serving.topics.get(name)
    return [] if topic is None else [each.leader for each in topic.info.partitions]


def is_open(node: Node, name: str) -> bool:
    """Return whether the node has opened the topic's first partition."""
    topic = node.serving.topics.get(name)
    return topic is not None and topic.partitions[0] is not None


async def test_a_topic_of_two_nodes_is_detached_and_attached(nodes: list[Node]) -> None:
    detached = await nodes[1].moves.detach("t")
    await nodes[0].serving.membership.catch_up()
    assert nodes[0].serving.topics.get("t") is None
    attached = await nodes[0].moves.attach("t", "back")
    assert attached.topic_id == detached.topic_id
    assert leaders(nodes[0], "back") == [1, 1]
    assert [len(batches) for batches in await contents(nodes[0], "back")] == [2, 2]


async def test_a_topic_is_gathered_once_the_node_has_opened_all_of_it(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named as the leader before that, and the store may take its time for the new owner's mark."""
    put, released = OwnerMarks.put, asyncio.Event()

    async def put_late(marks: OwnerMarks, infos: Iterable[StreamInfo]) -> None:
        await released.wait()
        await put(marks, infos)

    monkeypatch.setattr(OwnerMarks, "put", put_late)
    detaching = asyncio.create_task(nodes[1].moves.detach("t"))
    await until(lambda: leaders(nodes[1], "t") == [2, 2], pause_s=0.01)
    done, _ = await asyncio.wait({detaching}, timeout=0.05)
    assert not done
    released.set()
    await detaching


async def test_a_topic_of_two_nodes_is_cloned(nodes: list[Node]) -> None:
    await nodes[0].moves.clone("t", "copy")
    assert leaders(nodes[0], "t") == leaders(nodes[0], "copy") == [1, 1]
    assert await contents(nodes[0], "copy") == await contents(nodes[0], "t")
    assert [len(batches) for batches in await contents(nodes[0], "copy")] == [2, 2]
    preferred = [each.preferred for topic in await nodes[0].serving.catalog.list_topics() for each in topic.partitions]
    assert preferred == [1, 1, 1, 2], "an election brings the original's partitions back"


async def test_a_topic_that_cannot_be_gathered_is_refused(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    hold_moves(monkeypatch)
    with pytest.raises(KafkaError, match="Partition t-1 could not be moved to node 1 within 2000 ms") as refused:
        await nodes[0].moves.detach("t")
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert await nodes[0].serving.catalog.list_moves() == []
    assert leaders(nodes[0], "t") == [1, 2]

    await nodes[1].serving.move_requests.set_draining(1, draining=True)
    with pytest.raises(KafkaError, match="node 1 is being drained"):
        await nodes[0].moves.clone("t", "copy")
    monkeypatch.undo()


async def test_a_topic_with_a_dead_leader_is_refused(nodes: list[Node]) -> None:
    nodes[0].serving.members.update([])
    with pytest.raises(KafkaError, match="Partition t-1 is led by node 2, which is not running") as refused:
        await nodes[0].moves.detach("t")
    assert refused.value.code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("command", ["detach", "clone"])
async def test_a_partition_that_moves_away_meanwhile_is_refused_for_the_moment(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    node, flush = nodes[0], nodes[0].serving.storage.flush
    assert await create(node, assigned("own", [1])) == [(0, None)]
    await all_serve(nodes, "own")
    hold_moves(monkeypatch)
    await node.serving.move_requests.request({Place("own", 0): 2}, MoveReason.OPERATOR)

    async def flush_and_move() -> None:
        monkeypatch.undo()
        await flush()
        async with moves_carried_out(nodes):
            await until(lambda: not is_open(node, "own"), pause_s=0.01)

    monkeypatch.setattr(node.serving.storage, "flush", flush_and_move)
    with pytest.raises(KafkaError) as refused:
        await (node.moves.detach("own") if command == "detach" else node.moves.clone("own", "copy"))
    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await node.moves.detach("own")
