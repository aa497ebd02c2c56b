"""Statements about dead nodes: who recovers their logs, and who leads their partitions.

One rule says whether the log of a node may hold something of a stream: the node owns the stream, and has a live log.
So a node without a live log owns nothing: whatever takes the last one away, or finds none, releases its streams.

A recoverer raises the dead node's epoch and acts under it, so that commits of the dead process, of an earlier recoverer
and of a process that returns exclude each other. Each function is the body of one transaction, or a part of one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Final

from sqlalchemy import Connection, select, update

from anabranch.s3stream.catalog.orders import leave_node, ordered_leaders, settle_orders
from anabranch.s3stream.catalog.placement import place_successors
from anabranch.s3stream.catalog.rows import (
    ENDED,
    check_node,
    chunks,
    fit_to_lead,
    next_change,
    running_nodes,
    split_ids,
)
from anabranch.s3stream.catalog.schema import nodes, streams, wals
from anabranch.s3stream.catalog.topics import NOBODY, count_led
from anabranch.s3stream.catalog.values import NodeBeat, WalState
from anabranch.s3stream.errors import CatalogError, NodeInUse
from anabranch.s3stream.model import NodeIdentity

LIVE: Final = (int(WalState.OPEN), int(WalState.FENCED))
"""States of a log that may hold records that are in no object."""


def take_over(
    connection: Connection,
    node_id: int,
    seen: NodeBeat,
    wal_id: str | None,
    recoverer: NodeIdentity,
    leaders: Sequence[int],
    now_ms: int,
    *,
    even_if_alive: bool,
) -> int:
    """Fence a node that has not beaten since `seen`, and place its partitions over `leaders`; return its new epoch.

    `recoverer` recovers its log `wal_id`, which the caller has open; None: there is none.
    `even_if_alive`: the node may have beaten since, in the same epoch.
    """
    check_node(connection, recoverer)
    row = connection.execute(select(nodes.c.epoch, nodes.c.beat).where(nodes.c.node_id == node_id)).one_or_none()
    epoch: int = 0 if row is None else row.epoch
    live = (wals.c.node_id == node_id, wals.c.state.in_(LIVE))
    logs = connection.execute(select(wals.c.wal_id, wals.c.recoverer, wals.c.recoverer_epoch).where(*live)).all()
    if epoch == seen.epoch + 1 and logs and all((log.recoverer, log.recoverer_epoch) == recoverer for log in logs):
        return epoch  # a repeated command: the answer was lost
    if row is None or epoch != seen.epoch or (row.beat != seen.beat and not even_if_alive):
        raise NodeInUse(f"node {node_id} is alive, or another one has taken it over")
    if {log.wal_id for log in logs} != ({wal_id} if wal_id is not None else set()):
        raise CatalogError(f"node {node_id} has another log ({', '.join(log.wal_id for log in logs) or 'none'})")
    change = next_change(connection)
    connection.execute(
        update(nodes).where(nodes.c.node_id == node_id).values(epoch=epoch + 1, lease_until_ms=ENDED, beat=0)
    )
    fenced = {"state": int(WalState.FENCED), "recoverer": recoverer.node_id, "recoverer_epoch": recoverer.epoch}
    connection.execute(update(wals).where(*live).values(**fenced, seen_ms=now_ms))
    if not logs:
        release_streams(connection, node_id, change)
    leave_node(connection, node_id, f"node {node_id} has died", change)
    give_leadership(connection, node_id, leaders, change)
    return epoch + 1


def release_streams(connection: Connection, node_id: int, change: int, *, kept: Collection[int] = ()) -> None:
    """Remove the owner of the node's streams, except `kept`: its log holds nothing of them. They keep their leader."""
    owned = connection.execute(select(streams.c.stream_id).where(streams.c.node_id == node_id)).scalars()
    for piece in chunks(sorted(set(owned).difference(kept))):
        free = {"node_id": NOBODY, "wal_id": "", "changed": change}
        connection.execute(update(streams).where(streams.c.stream_id.in_(piece)).values(free))


def give_leadership(
    connection: Connection,
    node_id: int,
    leaders: Sequence[int],
    change: int,
    *,
    only: Collection[int] | None = None,
) -> None:
    """Place the partitions that the node leads over `leaders`, if any of them runs: those that lead the fewest first.

    A partition with an order to move goes to its target, another one to one of its replicas if there is any.
    `only`: restricts it to these streams.
    """
    leaders = fit_to_lead(running_nodes(connection), leaders) if leaders else ()
    mine = select(streams.c.stream_id, streams.c.replicas).where(streams.c.leader == node_id)
    rows = connection.execute(mine.order_by(streams.c.stream_id)).all() if leaders else ()
    replicas = {row.stream_id: split_ids(row.replicas) for row in rows if only is None or row.stream_id in only}
    ids = list(replicas)
    if not ids:
        return
    orders = ordered_leaders(connection, node_id, leaders)
    ordered = {stream_id: orders[stream_id] for stream_id in ids if stream_id in orders}
    given: dict[int, list[int]] = defaultdict(list)
    for stream_id, leader in ordered.items():
        given[leader].append(stream_id)
    free = [stream_id for stream_id in ids if stream_id not in ordered]
    led = Counter(count_led(connection))
    led.update(ordered.values())
    placed = place_successors([replicas[stream_id] for stream_id in free], leaders, led)
    for stream_id, leader in zip(free, placed, strict=True):
        given[leader].append(stream_id)
    for leader, some in given.items():
        for piece in chunks(some):
            values = {"leader": leader, "leader_epoch": streams.c.leader_epoch + 1, "changed": change}
            connection.execute(update(streams).where(streams.c.stream_id.in_(piece)).values(values))
    settle_orders(connection, ids)


def release_recovered(
    connection: Connection, node: NodeIdentity, wal_id: str, kept: Collection[int], now_ms: int
) -> None:
    """Leave the dead node's streams without owner, except `kept`: its log has nothing past their ends.

    Without any that is kept the log is drained.
    """
    check_node(connection, node)
    release_streams(connection, node.node_id, next_change(connection), kept=kept)
    # The recoverer has claimed the log in this epoch: a copy from before lacks what it has voided.
    values = {"node_epoch": node.epoch, "seen_ms": now_ms}
    if not kept:
        values["state"] = int(WalState.DRAINED)
    connection.execute(update(wals).where(wals.c.wal_id == wal_id).values(values))


def return_streams(connection: Connection, node: NodeIdentity) -> None:
    """Let a dead node lead what it owns again, and wait for it: a part of its log cannot be recovered."""
    check_node(connection, node)
    end_recovery(connection, node.node_id, next_change(connection))


def end_recovery(connection: Connection, node_id: int, change: int) -> None:
    """End the recovery of the node's log, if there is one: the node leads what it owns."""
    fenced = (wals.c.node_id == node_id, wals.c.state == int(WalState.FENCED))
    reopened = {"state": int(WalState.OPEN), "recoverer": NOBODY, "recoverer_epoch": 0}
    if connection.execute(update(wals).where(*fenced).values(reopened)).rowcount:
        lead_owned(connection, node_id, change)


def lead_owned(connection: Connection, node_id: int, change: int) -> None:
    """Make the node lead the streams that it owns: no other node may open them."""
    lost = (streams.c.node_id == node_id, streams.c.leader != node_id)
    values = {"leader": node_id, "leader_epoch": streams.c.leader_epoch + 1, "changed": change}
    connection.execute(update(streams).where(*lost).values(values))
