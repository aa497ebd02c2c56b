"""Statements of planned moves: a stream changes its owner while both nodes live, or the source takes it back.

The target has the stream's tail durable in its own log before `transfer`, and the source appends nothing from before
that until it knows the outcome. The source ends an attempt whose outcome it does not know with `cancel`. Of the two the
one that runs first decides: each demands the stream epoch that the other one changes. Each function is the body of one
transaction.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from anabranch.s3stream.catalog.orders import settle_orders
from anabranch.s3stream.catalog.rows import STREAM_COLUMNS, check_node, next_change
from anabranch.s3stream.catalog.schema import moves, nodes, streams
from anabranch.s3stream.catalog.values import OpenStream, StreamTransfer
from anabranch.s3stream.errors import CatalogError, EndMoved, StreamFenced, StreamNotFound
from anabranch.s3stream.model import StreamInfo, StreamOwner


def transfer(connection: Connection, wanted: StreamTransfer) -> OpenStream:
    """Make the target the owner and leader of a stream, under its next epoch and leader epoch, as is ordered."""
    source, target = wanted.source, wanted.target
    check_node(connection, target.identity)
    info, leader, leader_epoch = _read(connection, wanted.stream_id)
    which = f"stream {wanted.stream_id}"
    if info.epoch == wanted.epoch + 1 and leader_epoch == wanted.leader_epoch + 1 and _is_owned(info, target):
        return OpenStream(info, leader_epoch)  # a repeated command: the answer was lost
    held = (info.epoch, leader_epoch, leader)
    if held != (wanted.epoch, wanted.leader_epoch, source.node_id) or not _is_owned(info, source):
        raise StreamFenced(
            f"{which}: the transfer's epoch {wanted.epoch} of node {source.node_id} is not the stream's, which has "
            f"epoch {info.epoch} of node {info.node_id}, leader {leader}"
        )
    found = connection.execute(select(nodes.c.epoch).where(nodes.c.node_id == source.node_id)).scalar_one_or_none()
    if found != source.node_epoch:
        raise StreamFenced(f"{which}: epoch {source.node_epoch} of its node {source.node_id} is not the last, {found}")
    if info.end_offset != wanted.end_offset:
        raise EndMoved(f"{which}: the tail begins at {wanted.end_offset}, and the stream ends at {info.end_offset}")
    order = (moves.c.stream_id == wanted.stream_id, moves.c.to_node == target.node_id, moves.c.failure == "")
    if connection.execute(select(moves.c.stream_id).where(*order)).one_or_none() is None:
        raise CatalogError(f"{which}: the order to move it to node {target.node_id} was withdrawn")
    statement = (
        update(streams)
        .where(streams.c.stream_id == wanted.stream_id)
        .values(
            epoch=wanted.epoch + 1,
            leader_epoch=wanted.leader_epoch + 1,
            node_id=target.node_id,
            leader=target.node_id,
            wal_id=target.wal_id,
            changed=next_change(connection),
        )
    )
    connection.execute(statement)
    settle_orders(connection, [wanted.stream_id])
    info, _, leader_epoch = _read(connection, wanted.stream_id)
    return OpenStream(info, leader_epoch)


def cancel(connection: Connection, stream_id: int, epoch: int, source: StreamOwner) -> int:
    """Give a stream that the source still owns its next epoch, which a late transfer does not know; return it."""
    check_node(connection, source.identity)
    info, _, _ = _read(connection, stream_id)
    if not _is_owned(info, source) or info.epoch not in {epoch, epoch + 1}:
        raise StreamFenced(f"stream {stream_id}: node {info.node_id} has it, under epoch {info.epoch}")
    connection.execute(update(streams).where(streams.c.stream_id == stream_id).values(epoch=epoch + 1))
    return epoch + 1


def _is_owned(info: StreamInfo, owner: StreamOwner) -> bool:
    return (info.node_id, info.wal_id) == (owner.node_id, owner.wal_id)


def _read(connection: Connection, stream_id: int) -> tuple[StreamInfo, int, int]:
    """Return a stream, its leader and its leader epoch. Raises StreamNotFound."""
    query = select(*STREAM_COLUMNS, streams.c.leader, streams.c.leader_epoch).where(streams.c.stream_id == stream_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise StreamNotFound(f"stream {stream_id} does not exist")
    fields: Sequence[Any] = tuple(row)
    return StreamInfo(*fields[:-2]), fields[-2], fields[-1]
