"""Statements of planned moves: a stream changes its owner while both nodes live, or the source takes it back.

The target has the stream's tail durable in its own log before `transfer`, and the source appends nothing from before
that until it knows the outcome. The source ends an attempt whose outcome it does not know with `cancel`. Of the two the
one that runs first decides: each demands the stream epoch that the other one changes. Each function is the body of one
transaction.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select, update

from anabranch.s3stream.catalog.orders import LASTING, delete_orders, settle_orders
from anabranch.s3stream.catalog.rows import STREAM_COLUMNS, check_node, find_streams, next_change, select_in
from anabranch.s3stream.catalog.schema import moves, nodes, streams
from anabranch.s3stream.catalog.values import OpenStream, StreamTransfer
from anabranch.s3stream.errors import CatalogError, EndMoved, StorageError, StreamFenced, StreamNotFound
from anabranch.s3stream.model import StreamInfo, StreamOwner


def transfer(connection: Connection, wanted: Sequence[StreamTransfer]) -> Sequence[OpenStream | StorageError]:
    """Make one target the owner and leader of streams, under their next epochs and leader epochs, as is ordered.

    A stream that cannot be transferred is answered with its error.
    """
    (target,) = {each.target for each in wanted}
    found = _read_many(connection, [each.stream_id for each in wanted], target.node_id)
    if {each.target_epoch for each in found.values()} != {target.node_epoch}:
        check_node(connection, target.identity)
    answers: dict[int, OpenStream | StorageError] = {}
    granted: list[StreamTransfer] = []
    for each in wanted:
        try:
            before = _check(each, found.get(each.stream_id))
            if before is None:
                granted.append(each)
            else:
                answers[each.stream_id] = before
        except StorageError as error:
            answers[each.stream_id] = error
    if granted:
        answers.update(_give(connection, [each.stream_id for each in granted], target, found))
    return [answers[each.stream_id] for each in wanted]


class _Found(NamedTuple):
    """A stream as it is before a transfer, the epochs of the nodes, and its order."""

    info: StreamInfo
    leader: int
    leader_epoch: int
    owner_epoch: int | None
    target_epoch: int | None
    to_node: int | None
    reason: int | None
    failure: str | None


def _read_many(connection: Connection, stream_ids: Collection[int], target_id: int) -> Mapping[int, _Found]:
    query = (
        select(
            *STREAM_COLUMNS,
            streams.c.leader,
            streams.c.leader_epoch,
            nodes.c.epoch,
            select(nodes.c.epoch).where(nodes.c.node_id == target_id).scalar_subquery(),
            moves.c.to_node,
            moves.c.reason,
            moves.c.failure,
        )
        .outerjoin(nodes, nodes.c.node_id == streams.c.node_id)
        .outerjoin(moves, moves.c.stream_id == streams.c.stream_id)
    )
    width = len(STREAM_COLUMNS)
    rows = select_in(connection, query, streams.c.stream_id, stream_ids)
    return {row[0]: _Found(StreamInfo(*row[:width]), *row[width:]) for row in rows}


def _check(wanted: StreamTransfer, found: _Found | None) -> OpenStream | None:
    """Return the stream if it was transferred before; raise StorageError if it cannot be."""
    source, target, which = wanted.source, wanted.target, f"stream {wanted.stream_id}"
    if found is None:
        raise StreamNotFound(f"{which} does not exist")
    info, leader, leader_epoch = found.info, found.leader, found.leader_epoch
    if info.epoch == wanted.epoch + 1 and leader_epoch == wanted.leader_epoch + 1 and _is_owned(info, target):
        return OpenStream(info, leader_epoch)  # a repeated command: the answer was lost
    held = (info.epoch, leader_epoch, leader)
    if held != (wanted.epoch, wanted.leader_epoch, source.node_id) or not _is_owned(info, source):
        raise StreamFenced(
            f"{which}: the transfer's epoch {wanted.epoch} of node {source.node_id} is not the stream's, which has "
            f"epoch {info.epoch} of node {info.node_id}, leader {leader}"
        )
    if found.owner_epoch != source.node_epoch:
        raise StreamFenced(
            f"{which}: epoch {source.node_epoch} of its node {source.node_id} is not the last, {found.owner_epoch}"
        )
    if info.end_offset != wanted.end_offset:
        raise EndMoved(f"{which}: the tail begins at {wanted.end_offset}, and the stream ends at {info.end_offset}")
    if (found.to_node, found.failure) != (target.node_id, ""):
        raise CatalogError(f"{which}: the order to move it to node {target.node_id} was withdrawn")
    return None


def _give(
    connection: Connection, stream_ids: Sequence[int], target: StreamOwner, found: Mapping[int, _Found]
) -> Mapping[int, OpenStream]:
    """Change the owner of streams, and end their orders."""
    statement = (
        update(streams)
        .where(streams.c.stream_id.in_(stream_ids))
        .values(
            epoch=streams.c.epoch + 1,
            leader_epoch=streams.c.leader_epoch + 1,
            node_id=target.node_id,
            leader=target.node_id,
            wal_id=target.wal_id,
            changed=next_change(connection),
        )
        .returning(*STREAM_COLUMNS, streams.c.leader_epoch)
    )
    given = {row[0]: OpenStream(StreamInfo(*row[:-1]), row[-1]) for row in connection.execute(statement)}
    if any(found[stream_id].reason in LASTING for stream_id in stream_ids):
        settle_orders(connection, stream_ids)
    else:
        delete_orders(connection, stream_ids)
    return given


def cancel(connection: Connection, stream_id: int, epoch: int, source: StreamOwner) -> int:
    """Give a stream that the source still owns its next epoch, which a late transfer does not know; return it."""
    check_node(connection, source.identity)
    info = _read(connection, stream_id)
    if not _is_owned(info, source) or info.epoch not in {epoch, epoch + 1}:
        raise StreamFenced(f"stream {stream_id}: node {info.node_id} has it, under epoch {info.epoch}")
    connection.execute(update(streams).where(streams.c.stream_id == stream_id).values(epoch=epoch + 1))
    return epoch + 1


def _is_owned(info: StreamInfo, owner: StreamOwner) -> bool:
    return (info.node_id, info.wal_id) == (owner.node_id, owner.wal_id)


def _read(connection: Connection, stream_id: int) -> StreamInfo:
    """Return a stream. Raises StreamNotFound."""
    info = find_streams(connection, [stream_id]).get(stream_id)
    if info is None:
        raise StreamNotFound(f"stream {stream_id} does not exist")
    return info
