"""Moves whose messages, answers or commands are lost, late or refused, between two nodes in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.handover import orders, source, target
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.internal.hand_over import HandOverRequest
from anabranch.protocol.messages.internal.prepare_move import PrepareMoveRequest, PrepareMoveResponse
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from anabranch.s3stream.catalog.values import MoveReason, OpenStream, PartitionInfo, StreamTransfer
from anabranch.s3stream.errors import CatalogUnavailable, StorageError
from anabranch.s3stream.model import StreamInfo, StreamOwner
from tests.support.catalog_node import hand_over
from tests.support.node import running_nodes
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

Call = Callable[[int, Any, int], Coroutine[Any, Any, Any]]


class Moving:
    """A partition of the first node that is ordered to the second one."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.first, self.second = nodes

    @property
    def stream_id(self) -> int:
        return self.partition_info.stream_id

    @property
    def partition_info(self) -> PartitionInfo:
        topic = self.first.serving.topics.get("t")
        assert topic is not None
        return topic.info.partitions[0]

    @property
    def partition(self) -> Partition:
        return self.first.serving.topics.partition("t", 0)

    async def order(self) -> None:
        await self.first.serving.catalog.request_moves(
            {self.stream_id: 2}, reason=MoveReason.OPERATOR, now_ms=self.first.serving.now_ms()
        )

    def is_at(self, node: Node) -> bool:
        """Return whether only that node serves the partition."""
        serving = [
            each for each in self.nodes for led in each.serving.topics.led_partitions() if led.stream.error is None
        ]
        return serving == [node]

    async def arrives(self) -> None:
        await until(lambda: self.is_at(self.second), timeout_s=60, pause_s=0.01)

    async def owner(self) -> StreamOwner:
        info = (await self.first.serving.catalog.get_streams([self.stream_id]))[self.stream_id]
        return StreamOwner(info.node_id, 0, info.wal_id)

    def calls(self, wrap: Callable[[Call], Call], monkeypatch: pytest.MonkeyPatch) -> None:
        """Change what the first node's calls to the second one do."""
        assert self.first.serving.links is not None
        monkeypatch.setattr(self.first.serving.links, "call", wrap(self.first.serving.links.call))


@pytest.fixture
async def moving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Moving]:
    monkeypatch.setattr(orders, "PAUSE_S", (0.01, 0.05))
    async with running_nodes(tmp_path, 2) as nodes:
        await nodes[0].serving.topic_commands.create("t", partitions=1, configs={})
        made = Moving(nodes)
        await until(lambda: nodes[1].serving.topics.get("t") is not None, timeout_s=60, pause_s=0.01)
        yield made


async def produce(node: Node, payload: bytes = b"a") -> ProduceResponse:
    data = PartitionProduceData(index=0, records=bytes(batch_of(payload)))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=[data])])
    async with raw_client(node.bootstrap) as client:
        response: ProduceResponse = await client.call(request, 12)
        return response


def result_of(response: ProduceResponse) -> tuple[int, int, int]:
    """Error code, base offset and named leader."""
    found = response.responses[0].partition_responses[0]
    return found.error_code, found.base_offset, found.current_leader.leader_id


def holds_of(node: Node) -> Collection[object]:
    """Return what keeps records in the node's log that would be trimmed otherwise."""
    return node.serving.storage.wal_trimmer._holds  # noqa: SLF001 - only the next trim would show it


@asynccontextmanager
async def sealed(moving: Moving) -> AsyncIterator[Any]:
    """The partition while it is sealed by a move that goes no further."""
    handovers = moving.first.serving.storage.handovers
    held = await handovers.seal(moving.partition.stream)
    yield held
    if handovers.is_open(held.stream):
        handovers.unseal(held, held.epoch)


def losing_answers(call: Call) -> Call:
    """The same call, but the source does not hear how a transfer ended."""

    async def lossy(node_id: int, request: Any, version: int) -> Any:
        answer = await call(node_id, request, version)
        if isinstance(request, HandOverRequest):
            raise PeerUnavailable("cut")
        return answer

    return lossy


async def test_a_transfer_whose_answer_to_the_source_is_lost_is_found_in_the_catalog(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving.calls(losing_answers, monkeypatch)
    before = result_of(await produce(moving.first))
    await moving.order()
    await moving.arrives()
    assert before == (0, 0, -1)
    assert result_of(await produce(moving.second)) == (0, 1, -1)
    assert result_of(await produce(moving.first)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 2)


async def test_a_new_leader_serves_once_the_store_says_that_it_has_the_partition(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog that is lost just then would not know whose log the next records are in."""
    marks, begun, may_end = moving.second.serving.storage.owner_marks, asyncio.Event(), asyncio.Event()
    put = marks.put

    async def slow(infos: Iterable[StreamInfo]) -> None:
        begun.set()
        await may_end.wait()
        await put(infos)

    monkeypatch.setattr(marks, "put", slow)
    await produce(moving.first)
    await moving.order()
    await until(begun.is_set, timeout_s=60, pause_s=0.01)
    assert (await moving.owner()).node_id == 2
    assert list(moving.second.serving.topics.led_partitions()) == []
    assert holds_of(moving.first), "its log keeps the tail"
    may_end.set()
    await moving.arrives()


async def test_a_transfer_does_not_wait_until_the_store_has_the_marks_of_the_one_before(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, begun, may_end = moving.first.serving.catalog, asyncio.Event(), asyncio.Event()

    async def slow(_: Iterable[StreamInfo]) -> None:
        begun.set()
        await may_end.wait()

    topic = await moving.first.serving.topic_commands.create("u", partitions=2, configs={})
    (stream_id,) = (each.stream_id for each in topic.info.partitions if each.leader == 1)
    await until(lambda: moving.second.serving.topics.get("u") is not None, timeout_s=60, pause_s=0.01)
    monkeypatch.setattr(moving.second.serving.storage.owner_marks, "put", slow)
    await moving.order()
    await until(begun.is_set, timeout_s=60, pause_s=0.01)
    await catalog.request_moves({stream_id: 2}, reason=MoveReason.OPERATOR, now_ms=1)
    await until(lambda: {each.owner for each in topic.info.partitions} == {2}, timeout_s=60, pause_s=0.01)
    may_end.set()
    await until(lambda: len(list(moving.second.serving.topics.led_partitions())) == 3, timeout_s=60, pause_s=0.01)


async def test_a_source_that_gets_no_answer_marks_the_owner_before_it_forgets_the_tail(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, marked = moving.first.serving.storage, list[tuple[StreamInfo, bool]]()

    async def note(infos: Iterable[StreamInfo]) -> None:
        marked.extend((info, bool(holds_of(moving.first))) for info in infos)

    moving.calls(losing_answers, monkeypatch)
    monkeypatch.setattr(storage.owner_marks, "put", note)
    await produce(moving.first)
    await moving.order()
    await moving.arrives()
    await until(lambda: bool(marked), timeout_s=60, pause_s=0.01)
    ((info, was_kept),) = marked
    assert (info.stream_id, info.node_id, was_kept) == (moving.stream_id, 2, True)


async def test_a_transfer_whose_answer_to_the_target_is_lost_is_repeated(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer, lost = moving.second.serving.catalog.transfer_streams, [True]

    async def lossy(wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
        opened = await transfer(wanted)
        if lost:
            lost.pop()
            raise CatalogUnavailable("cut")
        return opened

    monkeypatch.setattr(moving.second.serving.catalog, "transfer_streams", lossy)
    await produce(moving.first)
    await moving.order()
    await moving.arrives()
    assert result_of(await produce(moving.second)) == (0, 1, -1)


async def test_a_source_without_an_answer_serves_on_and_the_late_transfer_is_refused(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ANSWER_S", 0.5)
    transfer, may_go, refused = moving.second.serving.catalog.transfer_streams, asyncio.Event(), asyncio.Event()

    async def slow(wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
        await may_go.wait()
        answers = await transfer(wanted)
        if isinstance(answers[0], StorageError):
            refused.set()
        return answers

    monkeypatch.setattr(moving.second.serving.catalog, "transfer_streams", slow)
    epoch = moving.partition.stream.epoch
    await moving.order()
    await until(lambda: moving.partition.stream.epoch == epoch + 1, timeout_s=60, pause_s=0.01)
    await moving.first.serving.catalog.cancel_moves([moving.stream_id])
    assert result_of(await produce(moving.first)) == (0, 0, -1)
    may_go.set()
    await refused.wait()
    await until(
        lambda: not moving.second.serving.storage.handovers.is_receiving(moving.stream_id), timeout_s=60, pause_s=0.01
    )
    await until(lambda: moving.is_at(moving.first), timeout_s=60, pause_s=0.01)
    await moving.order()  # the target's log has a void tail now
    await moving.arrives()
    assert result_of(await produce(moving.second)) == (0, 1, -1)


async def test_a_partition_that_comes_in_another_way_while_it_is_received_is_opened(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer, tried, away = moving.second.serving.catalog.transfer_streams, asyncio.Event(), [True]

    async def late(wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
        tried.set()
        if away:
            raise CatalogUnavailable("away")
        return await transfer(wanted)

    monkeypatch.setattr(moving.second.serving.catalog, "transfer_streams", late)
    await moving.order()
    await tried.wait()
    await hand_over(moving.first.serving.catalog, [moving.stream_id], leader=2)  # as a takeover of the source does
    await moving.first.serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "1000000"})
    away.clear()
    await moving.arrives()


async def test_while_the_catalog_does_not_tell_the_outcome_the_partition_waits(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, away = moving.first.serving.catalog.cancel_transfer, asyncio.Event()

    async def unavailable(stream_id: int, epoch: int, owner: StreamOwner) -> int:
        if away.is_set():
            raise CatalogUnavailable("away")
        return await cancel(stream_id, epoch, owner)

    def lose(call: Call) -> Call:
        async def lossy(node_id: int, request: Any, version: int) -> Any:
            if isinstance(request, HandOverRequest):
                raise PeerUnavailable("cut")
            return await call(node_id, request, version)

        return lossy

    away.set()
    monkeypatch.setattr(moving.first.serving.catalog, "cancel_transfer", unavailable)
    moving.calls(lose, monkeypatch)
    stream = moving.partition.stream
    await moving.order()
    await until(lambda: stream.is_sealed, timeout_s=60)
    waiting = asyncio.get_running_loop().create_task(produce(moving.first))
    await moving.first.serving.catalog.cancel_moves([moving.stream_id])
    assert stream.is_sealed
    away.clear()
    assert result_of(await waiting) == (0, 0, -1)


async def test_produce_gives_up_on_a_long_move_with_an_error_that_clients_retry(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.api.handlers.produce.SEALED_S", 0.1)
    async with sealed(moving):
        assert result_of(await produce(moving.first)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 1)
    assert result_of(await produce(moving.first)) == (0, 0, -1)


async def test_a_node_that_refuses_ends_in_a_failed_order_with_its_reason(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(call: Call) -> Call:
        async def refusing(node_id: int, request: Any, version: int) -> Any:
            if isinstance(request, PrepareMoveRequest):
                return PrepareMoveResponse(refusal="no room")
            return await call(node_id, request, version)

        return refusing

    moving.calls(refuse, monkeypatch)
    await moving.order()

    def has_failed() -> bool:
        order = moving.partition_info.order
        return order is not None and order.failure == "no room"

    await until(has_failed, timeout_s=60, pause_s=0.01)
    assert moving.is_at(moving.first)
    monkeypatch.undo()
    await moving.order()
    await moving.arrives()


async def test_pieces_that_do_not_fit_together_are_refused(moving: Moving) -> None:
    async with sealed(moving) as held:
        request = HandOverRequest(
            topic_id=moving.partition.topic_id,
            index=0,
            stream_id=moving.stream_id,
            stream_epoch=held.epoch,
            leader_epoch=moving.partition.leader_epoch,
            wal_id=moving.first.serving.storage.handovers.owner.wal_id,
            end_offset=0,
            next_offset=5,
            tail_bytes=10,
            piece=b"12345",
        )
        take, own = moving.second.serving.target.take, (1, moving.first.serving.members.own.epoch)
        assert (await take(replace(request, position=5), own)).refusal, "no tail has begun"
        for wrong in (
            replace(request, end_offset=6),
            replace(request, stream_epoch=2**63 - 1),
            replace(request, leader_epoch=-1),
            replace(request, tail_bytes=-1),
        ):
            assert (await take(wrong, own)).refusal, wrong
        assert (await take(request, own)).refusal == ""
        assert (await take(replace(request, position=5, stream_epoch=0), own)).refusal
        assert (await take(replace(request, position=5), (1, own[1] + 1))).refusal, "another life of the node"
        assert (await take(replace(request, position=5, piece=b"123456"), own)).refusal
        assert (await take(replace(request, position=5), own)).refusal, "the tail is not one"
        assert (await take(replace(request, tail_bytes=1 << 40), own)).refusal
        assert not moving.second.serving.storage.handovers.is_receiving(moving.stream_id)


async def test_a_node_that_stops_knows_the_outcome_of_its_moves_first(moving: Moving) -> None:
    await produce(moving.first)
    await moving.order()
    await until(lambda: moving.first.upkeep.orders.under_way > 0 or moving.is_at(moving.second), timeout_s=60)
    await moving.first.upkeep.orders.close()
    assert moving.first.upkeep.orders.under_way == 0
    assert moving.is_at(moving.second)


async def test_changes_from_before_a_move_that_are_applied_late_undo_nothing(moving: Moving) -> None:
    await produce(moving.first)
    old = await moving.first.serving.catalog.read_changes(0)
    assert old is not None
    await moving.order()
    await moving.arrives()
    for node in moving.nodes:
        async with node.serving.membership.changing():
            await node.serving.topics.apply_changes(old, node.serving.groups.forget_topics)
    assert moving.is_at(moving.second)
    assert result_of(await produce(moving.second)) == (0, 1, -1)
    assert result_of(await produce(moving.first)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 2)


async def test_partitions_that_wait_for_a_slow_catalog_are_transferred_together(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that their source sends because it has the answers of the transaction before."""
    monkeypatch.setattr(source, "ANSWER_S", 60)
    monkeypatch.setattr(target, "GATHERING", 5)
    monkeypatch.setattr(target, "GATHERING_S_MAX", 60)
    catalog, handovers = moving.second.serving.catalog, moving.second.serving.storage.handovers
    topic = await moving.first.serving.topic_commands.grow(
        "t", orders.AT_ONCE_TO_A_NODE_MAX + 1, leaders=[1] * orders.AT_ONCE_TO_A_NODE_MAX
    )
    ids = [each.stream_id for each in topic.info.partitions]
    transfer, sizes = catalog.transfer_streams, []

    async def slow(wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
        sizes.append(len(wanted))
        if len(sizes) == 1:
            await until(lambda: sum(map(handovers.is_receiving, ids)) == len(ids) - 1, timeout_s=60, pause_s=0.01)
        return await transfer(wanted)

    monkeypatch.setattr(catalog, "transfer_streams", slow)
    await moving.order()
    await until(lambda: bool(sizes), timeout_s=60, pause_s=0.01)
    await moving.first.serving.catalog.request_moves(
        dict.fromkeys(ids[1:], 2), reason=MoveReason.OPERATOR, now_ms=moving.first.serving.now_ms()
    )
    await until(
        lambda: len(list(moving.second.serving.topics.led_partitions())) == len(ids), timeout_s=60, pause_s=0.01
    )
    assert sizes == [1, len(ids) - 1]
