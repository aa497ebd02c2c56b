"""Statements about nodes that do not return: the loss of their logs is accepted, their registration is removed.

A caller has found a node dead, and names the registration that it has `seen`. If the registration has changed since,
the node lives, or another one acts for it, and nothing is changed. Each function is the body of one transaction.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlalchemy import Connection, func, select, update

from anabranch.s3stream.catalog.nodes import (
    REMOVED_MAX,
    count_open_streams,
    get_node,
    list_wals,
    set_wal_state,
)
from anabranch.s3stream.catalog.orders import fail_orders_to, leave_node
from anabranch.s3stream.catalog.rows import ENDED, chunks, next_change
from anabranch.s3stream.catalog.schema import nodes, objects, streams
from anabranch.s3stream.catalog.takeover import give_leadership, release_streams
from anabranch.s3stream.catalog.topics import NOBODY
from anabranch.s3stream.catalog.values import NodeInfo, WalState
from anabranch.s3stream.errors import NodeInUse, NotFound
from anabranch.s3stream.model import ObjectKind, ObjectState


def give_up_wal(connection: Connection, wal_id: str, seen: NodeInfo, leaders: Sequence[int], now_ms: int) -> None:
    """Accept the loss of an open log: the node's streams lose their owner, and its partitions get other leaders."""
    state = {wal.wal_id: wal.state for wal in list_wals(connection, seen.node_id)}.get(wal_id)
    _check_unchanged(connection, seen, repeated=state is WalState.GIVEN_UP)
    if state is None or state is WalState.DRAINED:
        raise NotFound(f"node {seen.node_id} has no log {wal_id} that may hold records")
    if state is not WalState.GIVEN_UP:
        change = next_change(connection)
        set_wal_state(connection, wal_id, WalState.GIVEN_UP, now_ms)
        release_streams(connection, seen.node_id, change)
        leave_node(connection, seen.node_id, f"node {seen.node_id} has died", change)
        give_leadership(connection, seen.node_id, leaders, change)
        _fence(connection, seen)


def give_up_streams(
    connection: Connection, stream_ids: Collection[int], seen: NodeInfo, leaders: Sequence[int]
) -> None:
    """Accept the loss of these streams' records that only the node's log has; it remains the log of its other streams.

    When the log returns, its records of these streams are void.
    """
    wanted = set(stream_ids)
    owned = connection.execute(select(streams.c.stream_id).where(streams.c.node_id == seen.node_id)).scalars()
    given_up = sorted(wanted.intersection(owned))
    _check_unchanged(connection, seen, repeated=not given_up)
    if not given_up:
        return
    change = next_change(connection)
    for piece in chunks(given_up):
        free = {"node_id": NOBODY, "wal_id": "", "changed": change}
        connection.execute(update(streams).where(streams.c.stream_id.in_(piece)).values(free))
    leave_node(connection, seen.node_id, f"node {seen.node_id} has died", change)
    give_leadership(connection, seen.node_id, leaders, change, only=wanted)
    _fence(connection, seen)


def remove_node(connection: Connection, seen: NodeInfo, heir: int, now_ms: int) -> int:
    """Remove a dead node's registration, and let `heir` lead what it led, and compact its objects.

    Returns the number of these objects.
    The row keeps the epoch, which never falls, and which fences the node.
    """
    node_id = seen.node_id
    removed = min(REMOVED_MAX, -now_ms)
    found = get_node(connection, node_id)
    if found == replace(seen, epoch=seen.epoch + 1, lease_until_ms=removed):
        return 0  # a repeated command
    if found is None or found.lease_until_ms <= REMOVED_MAX:
        raise NotFound(f"node {node_id} is not registered")
    if found != seen:
        raise NodeInUse(f"node {node_id} is alive: it was registered, or its lease renewed, meanwhile")
    live = [wal for wal in list_wals(connection, node_id) if wal.is_live]
    if live and (owned := count_open_streams(connection, node_id)):
        raise NodeInUse(
            f"the log of node {node_id}, {live[-1].location}, may hold records of {owned} partitions that are in no "
            f"object: start the node, or accept their loss with `anabranch node give-up {node_id}`"
        )
    other = get_node(connection, heir)
    if heir == node_id or other is None or other.lease_until_ms <= REMOVED_MAX:
        raise NotFound(f"node {heir}, which is to compact the objects of node {node_id}, is not registered")
    change = next_change(connection)
    release_streams(connection, node_id, change)
    give_leadership(connection, node_id, [heir], change)
    led = connection.execute(select(func.count()).select_from(streams).where(streams.c.leader == node_id)).scalar_one()
    if led:
        raise NodeInUse(
            f"node {node_id} leads {led} partitions, and node {heir}, which is to lead them, does not run: start it, "
            "and repeat"
        )
    for wal in live:  # as in `open_wal`: the node has no streams, so that the records in it are not needed
        set_wal_state(connection, wal.wal_id, WalState.DRAINED, now_ms)
    fail_orders_to(connection, node_id, f"node {node_id} was removed", change)
    row = nodes.c.node_id == node_id
    connection.execute(update(nodes).where(row).values(epoch=nodes.c.epoch + 1, lease_until_ms=removed))
    return _inherit(connection, node_id, heir)


def _inherit(connection: Connection, node_id: int, heir: int) -> int:
    """Let another node compact the node's stream set objects. They keep their writer."""
    left = (
        objects.c.node_id == node_id,
        objects.c.kind == int(ObjectKind.SSO),
        objects.c.state == int(ObjectState.COMMITTED),
    )
    return connection.execute(update(objects).where(*left).values(node_id=heir)).rowcount


def _check_unchanged(connection: Connection, seen: NodeInfo, *, repeated: bool) -> None:
    """Raise NodeInUse unless the registration is as seen, or as this command leaves it if it may be a repeated one.

    A takeover leaves it the same way: without a sign of a first execution the log may just be recovered.
    """
    found = get_node(connection, seen.node_id)
    if found != seen and not (repeated and found == _fenced(seen)):
        raise NodeInUse(f"node {seen.node_id} is alive: it was registered, or its lease renewed, meanwhile")


def _fenced(seen: NodeInfo) -> NodeInfo:
    return replace(seen, epoch=seen.epoch + 1, lease_until_ms=ENDED)


def _fence(connection: Connection, seen: NodeInfo) -> None:
    """Fence the node: a process that was only paused or cut off must not go on as if it led these partitions."""
    fenced = _fenced(seen)
    values = {"epoch": fenced.epoch, "lease_until_ms": fenced.lease_until_ms}
    connection.execute(update(nodes).where(nodes.c.node_id == seen.node_id).values(values))
