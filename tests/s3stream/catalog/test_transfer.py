"""Contract of the two statements of planned moves, on both databases."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import MoveReason, NodeBeat, OpenStream, StreamTransfer, Takeover
from anabranch.s3stream.errors import CatalogError, EndMoved, NodeFenced, StreamFenced, StreamNotFound
from anabranch.s3stream.model import NodeIdentity, StreamOwner
from tests.support.catalog_node import HOUR_MS, NOW, topic_id_of, transfer

FROM, TO, THIRD = 1, 2, 3


class Move:
    """A topic that node `FROM` has open, with an order to move its first partition to node `TO`."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.owners: dict[int, StreamOwner] = {}
        self.opened: Sequence[OpenStream] = ()

    async def begin(self) -> None:
        for node_id in (FROM, TO, THIRD):
            await self.register(node_id)
        topic = await self.catalog.create_topic(
            "t", topic_id_of("t"), partitions=2, configs={}, leader=FROM, internal=False
        )
        self.opened = await self.catalog.open_streams([each.stream_id for each in topic.partitions], self.owners[FROM])
        await self.order()

    async def register(self, node_id: int) -> None:
        info = await self.catalog.register_node(node_id, "h", 9092, now_ms=NOW, lease_ms=HOUR_MS)
        wal_id = f"{node_id:016x}"
        await self.catalog.open_wal(
            wal_id, node=NodeIdentity(node_id, info.epoch), location="/wal", takeover=Takeover.SHARED, now_ms=NOW
        )
        self.owners[node_id] = StreamOwner(node_id, info.epoch, wal_id)

    async def order(self, to_node: int = TO) -> None:
        await self.catalog.request_moves({self.stream_id: to_node}, reason=MoveReason.OPERATOR, now_ms=NOW)

    @property
    def stream_id(self) -> int:
        return self.opened[0].info.stream_id

    @property
    def wanted(self) -> StreamTransfer:
        first = self.opened[0]
        return StreamTransfer(
            self.stream_id, first.info.epoch, first.leader_epoch, 0, self.owners[FROM], self.owners[TO]
        )

    async def transfer(self) -> OpenStream:
        return await transfer(self.catalog, self.wanted)

    async def cancel(self, epoch: int | None = None) -> int:
        return await self.catalog.cancel_transfer(self.stream_id, epoch or self.wanted.epoch, self.owners[FROM])


@pytest.fixture
async def move(catalog: Catalog) -> Move:
    move = Move(catalog)
    await move.begin()
    return move


async def test_a_transfer_gives_the_target_ownership_leadership_and_new_epochs_and_ends_the_order(move: Move) -> None:
    version = await move.catalog.last_change()
    opened = await move.transfer()
    assert opened.info.epoch == move.wanted.epoch + 1
    assert opened.leader_epoch == move.wanted.leader_epoch + 1
    assert opened.info.is_held_by(move.owners[TO])
    changes = await move.catalog.read_changes(version)
    assert changes is not None
    first, second = changes.topics[0].partitions
    assert (first.leader, first.owner, first.preferred, first.order) == (TO, TO, TO, None)
    assert (second.leader, second.owner) == (FROM, FROM)


async def test_a_repeated_transfer_succeeds_again(move: Move) -> None:
    opened = await move.transfer()
    assert await move.transfer() == opened


async def test_a_cancelled_transfer_is_refused_however_late(move: Move) -> None:
    epoch = await move.cancel()
    assert epoch == move.wanted.epoch + 1
    assert await move.cancel() == epoch, "its first answer was lost"
    with pytest.raises(StreamFenced):
        await move.transfer()
    info = (await move.catalog.get_streams([move.stream_id]))[move.stream_id]
    assert info.is_held_by(move.owners[FROM])


async def test_a_cancellation_after_the_transfer_is_refused(move: Move) -> None:
    opened = await move.transfer()
    with pytest.raises(StreamFenced):
        await move.cancel()
    with pytest.raises(StreamFenced):
        await move.cancel(opened.info.epoch)


async def test_a_late_cancellation_changes_no_later_epoch(move: Move) -> None:
    first = move.wanted.epoch
    second = await move.cancel(await move.cancel())
    with pytest.raises(StreamFenced):
        await move.cancel(first)
    assert (await move.catalog.get_streams([move.stream_id]))[move.stream_id].epoch == second


async def test_a_source_that_was_taken_over_hands_nothing_over(move: Move) -> None:
    source = move.owners[FROM]
    await move.catalog.take_over(
        FROM,
        NodeBeat(source.node_epoch, 0, has_lease=True),
        wal_id=source.wal_id,
        recoverer=move.owners[THIRD].identity,
        leaders=[TO],
        now_ms=NOW,
    )
    with pytest.raises(StreamFenced):
        await move.transfer()


async def test_a_source_that_was_started_anew_hands_nothing_over_and_cancels_nothing(move: Move) -> None:
    wanted, owner = move.wanted, move.owners[FROM]
    await move.register(FROM)
    with pytest.raises(StreamFenced, match="not the last"):
        await transfer(move.catalog, wanted)
    with pytest.raises(NodeFenced):
        await move.catalog.cancel_transfer(move.stream_id, wanted.epoch, owner)


async def test_a_fenced_target_takes_nothing(move: Move) -> None:
    wanted = move.wanted
    await move.register(TO)
    with pytest.raises(NodeFenced):
        await transfer(move.catalog, wanted)


async def test_a_tail_that_does_not_begin_at_the_committed_end_is_refused(move: Move) -> None:
    with pytest.raises(EndMoved):
        await transfer(move.catalog, replace(move.wanted, end_offset=5))


@pytest.mark.parametrize("to_node", [None, THIRD])
async def test_without_its_order_nothing_is_transferred(move: Move, to_node: int | None) -> None:
    await move.catalog.cancel_moves([move.stream_id])
    if to_node is not None:
        await move.order(to_node)
    with pytest.raises(CatalogError, match="withdrawn"):
        await move.transfer()


async def test_a_failed_order_is_not_carried_out(move: Move) -> None:
    (order,) = await move.catalog.list_moves()
    await move.catalog.fail_move(order, "busy")
    with pytest.raises(CatalogError, match="withdrawn"):
        await move.transfer()


async def test_a_deleted_stream_is_neither_transferred_nor_cancelled(move: Move) -> None:
    await move.catalog.delete_topics([topic_id_of("t")], now_ms=NOW, delete_after_ms=NOW)
    with pytest.raises(StreamNotFound):
        await move.transfer()
    with pytest.raises(StreamNotFound):
        await move.cancel()
