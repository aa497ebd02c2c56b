"""Statements about orders of moves: which node is to lead a stream instead of its present leader.

An order is a row of `moves`, carried out by whichever node leads the stream at that time. Each function is the body of
one transaction, or a part of one. Every change of an order is a change of its stream, so that other nodes read it.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, exists, insert, or_, select, update

from anabranch.s3stream.catalog.placement import led_by
from anabranch.s3stream.catalog.rows import (
    chunks,
    join_ids,
    next_change,
    read_racks,
    replicas_text,
    select_in,
    split_ids,
    to_order,
    update_streams,
)
from anabranch.s3stream.catalog.schema import moves, nodes, streams
from anabranch.s3stream.catalog.values import MoveOrder, MoveReason
from anabranch.s3stream.errors import NodeUnavailable, StreamNotFound

LASTING: Final = tuple(int(reason) for reason in MoveReason if reason.is_lasting)
EVACUATIONS: Final = (int(MoveReason.DRAIN), int(MoveReason.STOP))
"""Reasons of orders that are about the node to leave: any other one will do."""


def request_moves(
    connection: Connection,
    wanted: Mapping[int, int],
    reason: MoveReason,
    now_ms: int,
    replicas: Mapping[int, Sequence[int]] = MappingProxyType({}),
) -> None:
    """Order that each stream is led by its node, with `replicas` then; an earlier order of the stream is replaced.

    A lasting order without them names the replicas that there are, with the node in front. If the node leads the stream
    already, the earlier order is only removed, and a lasting one takes effect at once. Nodes order only what is due by
    themselves, and in elections: they may not have seen yet what others have changed.
    """
    if int(reason) in (*EVACUATIONS, int(MoveReason.ELECTION), int(MoveReason.PLACEMENT)):
        wanted = _due(connection, wanted, reason)
        if not wanted:
            return
    _check_targets(connection, frozenset(wanted.values()))
    query = select(streams.c.stream_id, streams.c.leader, streams.c.replicas, moves.c.to_node).outerjoin(
        moves, moves.c.stream_id == streams.c.stream_id
    )
    found = {row.stream_id: row for row in select_in(connection, query, streams.c.stream_id, wanted)}
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise StreamNotFound(f"stream {missing[0]} does not exist ({len(missing)} of {len(wanted)} missing)")
    if reason.is_lasting:
        several = {key: row.replicas for key, row in found.items() if row.replicas}
        racks = read_racks(connection) if several else {}
        led = {key: led_by(split_ids(text), wanted[key], racks) for key, text in several.items()}
        replicas = {**led, **replicas}
    change = next_change(connection)
    delete_orders(connection, [key for key, row in found.items() if row.to_node is not None])
    _note_change(connection, wanted, change)
    rows = [
        {
            "stream_id": key,
            "to_node": to_node,
            "reason": int(reason),
            "asked_ms": now_ms,
            "failure": "",
            "replicas": join_ids(replicas.get(key, ())),
        }
        for key, to_node in wanted.items()
    ]
    for piece in chunks(rows):
        connection.execute(insert(moves), list(piece))
    settle_orders(connection, [key for key, row in found.items() if row.leader == wanted[key]])


def _due(connection: Connection, wanted: Mapping[int, int], reason: MoveReason) -> Mapping[int, int]:
    """Return those without a lasting order: of a drain, led by drained nodes; of an election, to preferred leaders."""
    is_ordered = exists().where(
        moves.c.stream_id == streams.c.stream_id, moves.c.reason.in_(LASTING), moves.c.failure == ""
    )
    query = select(streams.c.stream_id, streams.c.preferred).where(~is_ordered)
    if reason is MoveReason.DRAIN:
        query = query.join(nodes, nodes.c.node_id == streams.c.leader).where(nodes.c.draining != 0)
    preferred = {row.stream_id: row.preferred for row in select_in(connection, query, streams.c.stream_id, wanted)}
    return {
        stream_id: wanted[stream_id]
        for stream_id, leader in preferred.items()
        if reason is not MoveReason.ELECTION or leader == wanted[stream_id]
    }


def _check_targets(connection: Connection, targets: Collection[int]) -> None:
    query = select(nodes.c.node_id, nodes.c.draining).where(nodes.c.lease_until_ms >= 0)
    known = {row.node_id: row.draining for row in select_in(connection, query, nodes.c.node_id, targets)}
    for node_id in sorted(targets):
        if node_id not in known:
            raise NodeUnavailable(f"node {node_id} is not registered")
        if known[node_id]:
            raise NodeUnavailable(f"node {node_id} is being drained: it takes no partitions")


def settle_orders(connection: Connection, stream_ids: Collection[int]) -> None:
    """Remove the orders of streams that their targets lead now, each with its outcome.

    Part of each command that changes leaders, after it has.
    """
    query = select(moves).join(
        streams, and_(streams.c.stream_id == moves.c.stream_id, streams.c.leader == moves.c.to_node)
    )
    done = [to_order(*row) for row in select_in(connection, query, moves.c.stream_id, stream_ids)]
    update_streams(
        connection,
        {
            order.stream_id: {"preferred": outcome[0], "replicas": replicas_text(outcome[1])}
            for order in done
            if (outcome := order.outcome) is not None
        },
    )
    delete_orders(connection, [order.stream_id for order in done])


def cancel_moves(connection: Connection, stream_ids: Collection[int]) -> None:
    """Remove the orders of streams; one without an order is ignored."""
    _note_change(connection, stream_ids, next_change(connection))
    delete_orders(connection, stream_ids)


def list_moves(connection: Connection) -> Sequence[MoveOrder]:
    """Return all orders, by stream, those that have failed included."""
    rows = connection.execute(select(moves).order_by(moves.c.stream_id))
    return [to_order(*row) for row in rows]


def fail_move(connection: Connection, order: MoveOrder, failure: str) -> None:
    """Keep an order, with the reason why it is not carried out; one that was replaced or removed is ignored."""
    known = (moves.c.to_node == order.to_node, moves.c.reason == int(order.reason), moves.c.asked_ms == order.asked_ms)
    _fail(connection, and_(moves.c.stream_id == order.stream_id, *known), failure)


def _fail(connection: Connection, which: ColumnElement[bool], failure: str, change: int | None = None) -> None:
    failed = update(moves).where(which).values(failure=failure).returning(moves.c.stream_id)
    ids = connection.execute(failed).scalars().all()
    if ids:
        _note_change(connection, ids, next_change(connection) if change is None else change)


def leave_node(connection: Connection, node_id: int, reason: str, change: int) -> None:
    """Let orders follow a node's end: those to it fail, and those that were about leaving it are done.

    Part of each command that ends a node, before its streams get other leaders.
    """
    fail_orders_to(connection, node_id, reason, change)
    led = select(streams.c.stream_id).where(streams.c.leader == node_id)
    leaving = or_(moves.c.reason.in_(EVACUATIONS), moves.c.failure != "")
    _remove(connection, and_(moves.c.stream_id.in_(led), leaving), change)


def fail_orders_to(connection: Connection, node_id: int, reason: str, change: int) -> None:
    """Fail all orders to a node that can take nothing."""
    _fail(connection, and_(moves.c.to_node == node_id, moves.c.failure == ""), reason, change)


def cancel_drain(connection: Connection, node_id: int, change: int) -> None:
    """Remove the orders by which the node was being drained."""
    led = select(streams.c.stream_id).where(streams.c.leader == node_id)
    _remove(connection, and_(moves.c.stream_id.in_(led), moves.c.reason == int(MoveReason.DRAIN)), change)


def _remove(connection: Connection, which: ColumnElement[bool], change: int) -> None:
    ids = connection.execute(delete(moves).where(which).returning(moves.c.stream_id)).scalars().all()
    _note_change(connection, ids, change)


def ordered_leaders(connection: Connection, node_id: int, leaders: Collection[int]) -> Mapping[int, int]:
    """Return the targets, among `leaders`, of the orders that the node has not carried out, by stream."""
    mine = (streams.c.leader == node_id, moves.c.to_node.in_(leaders), moves.c.failure == "")
    query = select(moves.c.stream_id, moves.c.to_node).join(streams, streams.c.stream_id == moves.c.stream_id)
    return {row.stream_id: row.to_node for row in connection.execute(query.where(*mine))}


def delete_orders(connection: Connection, stream_ids: Collection[int]) -> None:
    """Remove the orders of streams: they are done, replaced or withdrawn, or the streams go away."""
    for piece in chunks(stream_ids):
        connection.execute(delete(moves).where(moves.c.stream_id.in_(piece)))


def _note_change(connection: Connection, stream_ids: Collection[int], change: int) -> None:
    for piece in chunks(stream_ids):
        connection.execute(update(streams).where(streams.c.stream_id.in_(piece)).values(changed=change))
