"""Statements about nodes, their write-ahead logs, and the catalog's own identity.

Each function is the body of one transaction.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, insert, inspect, select, update

from anabranch.s3stream.catalog.migration import current_level
from anabranch.s3stream.catalog.orders import cancel_drain, fail_orders_to, leave_node
from anabranch.s3stream.catalog.rows import CHANGE, ENDED, ChangeKind, check_node, next_change, uploads_counter
from anabranch.s3stream.catalog.schema import NEWEST, cluster, counters, nodes, streams, wals
from anabranch.s3stream.catalog.takeover import end_recovery, give_leadership, lead_owned, release_streams
from anabranch.s3stream.catalog.topics import NOBODY
from anabranch.s3stream.catalog.values import (
    NodeBeat,
    NodeHolder,
    NodeInfo,
    NodeListener,
    Pulse,
    Takeover,
    WalInfo,
    WalState,
)
from anabranch.s3stream.errors import CatalogError, NodeFenced, NotFound
from anabranch.s3stream.model import NodeIdentity

REMOVED_MAX: Final = -1
"""Upper bound of the lease end of a removed node: minus the time of its removal, or this."""
DEVICE: Final = "device"
"""The only kind of log so far: a block device or a file."""
UNKNOWN_ID: Final = bytes(16)
"""Identity of a catalog that was never given one."""

_NODE_COLUMNS: Final = (
    nodes.c.node_id,
    nodes.c.epoch,
    nodes.c.host,
    nodes.c.port,
    nodes.c.lease_until_ms,
    nodes.c.lease_ms,
    nodes.c.host_name,
    nodes.c.pid,
    nodes.c.lock_id,
    nodes.c.rack,
    nodes.c.internal_host,
    nodes.c.internal_port,
    nodes.c.draining,
    nodes.c.listeners,
)
_WAL_COLUMNS: Final = (
    wals.c.wal_id,
    wals.c.node_id,
    wals.c.node_epoch,
    wals.c.location,
    wals.c.state,
    wals.c.seen_ms,
    wals.c.takeover,
    wals.c.recoverer,
    wals.c.recoverer_epoch,
    wals.c.kind,
)

# Statements that every node runs some times a second are built once.

BEAT: Final = (
    update(nodes)
    .where(nodes.c.node_id == bindparam("own_id"), nodes.c.epoch == bindparam("own_epoch"))
    .values(lease_until_ms=bindparam("until_ms"), beat=nodes.c.beat + 1, beat_ms=bindparam("due_ms"))
)
READ_BEATS: Final = select(
    nodes.c.node_id,
    nodes.c.epoch,
    nodes.c.beat,
    nodes.c.lease_until_ms > ENDED,
    nodes.c.beat_ms,
    select(counters.c.next).where(counters.c.name == CHANGE).scalar_subquery().label("version"),
    select(counters.c.next).where(counters.c.name == bindparam("own_uploads")).scalar_subquery().label("uploads"),
)
_BEATEN = BEAT.returning(nodes.c.node_id).cte("own")
BEAT_AND_READ: Final = READ_BEATS.add_columns(select(func.count()).select_from(_BEATEN).scalar_subquery()).add_cte(
    _BEATEN
)


# the catalog itself


def is_blank(connection: Connection) -> bool:
    """Return whether nothing was ever registered: no schema exists, or no node, topic or object was ever created."""
    if not inspect(connection).has_table("schema_version"):
        return True
    if connection.execute(select(func.count()).select_from(nodes)).scalar_one():
        return False
    used = select(func.count()).where(counters.c.name.in_(("stream", "object")), counters.c.next > 1)
    return connection.execute(used).scalar_one() == 0


def adopt_secret(connection: Connection, new_secret: bytes) -> bytes:
    """Return the secret that the nodes of this catalog share: `new_secret` if there is none yet."""
    found = current_secret(connection)
    if not found:
        connection.execute(update(cluster).values(secret=new_secret.hex()))
    return found or new_secret


def current_secret(connection: Connection) -> bytes:
    """Return the secret that the nodes of this catalog share; empty if none has needed one."""
    found: str = connection.execute(select(cluster.c.secret)).scalar_one()
    return bytes.fromhex(found)


def replace_secret(connection: Connection, new_secret: bytes) -> None:
    """Let the nodes of this catalog share another secret."""
    if current_secret(connection) != new_secret:
        next_change(connection, ChangeKind.SECRET)
        connection.execute(update(cluster).values(secret=new_secret.hex()))


def adopt_cluster(connection: Connection, name: str, new_id: bytes | None) -> bytes:
    """Set the cluster's name and the catalog's id unless they are set; returns the id. Raises CatalogError."""
    found = connection.execute(select(cluster.c.catalog_id)).scalar_one_or_none()
    drawn = "" if new_id is None else new_id.hex()
    if found is None:
        connection.execute(insert(cluster).values(name=name, catalog_id=drawn, secret=""))
    elif not found:
        connection.execute(update(cluster).where(cluster.c.name == name).values(catalog_id=drawn))
    return check_cluster(connection, name)


def check_cluster(connection: Connection, name: str) -> bytes:
    """Return the catalog's id. Raises CatalogError unless the catalog belongs to that cluster."""
    row = connection.execute(select(cluster.c.name, cluster.c.catalog_id)).one_or_none()
    if row is None or row.name != name:
        owner = "no cluster yet" if row is None else f"cluster {row.name!r}"
        raise CatalogError(f"the catalog belongs to {owner}, not to {name!r}")
    return bytes.fromhex(row.catalog_id) or UNKNOWN_ID


# nodes


def register_node(connection: Connection, wanted: NodeInfo, after_epoch: int | None) -> NodeInfo:
    """Give the node its next epoch; with `after_epoch`, only if that is its last one."""
    if (level := current_level(connection)) > NEWEST:  # it was raised since the catalog was opened
        raise CatalogError(f"the cluster has level {level} now, and this program knows {NEWEST}: use a newer version")
    found = get_node(connection, wanted.node_id)
    epoch = 0 if found is None else found.epoch
    if after_epoch is not None and epoch != after_epoch:
        # A takeover raises the epoch, too, and leaves the holder, which the next process may equal: in containers
        # process ids repeat. But it ends the lease.
        is_own = found is not None and found.holder == wanted.holder and found.lease_until_ms > ENDED
        if found is not None and is_own and epoch == after_epoch + 1:
            return found  # a repeated command: the answer was lost
        raise NodeFenced(f"node {wanted.node_id} was registered by another process meanwhile, with epoch {epoch}")
    values = {
        "epoch": epoch + 1,
        "host": wanted.host,
        "port": wanted.port,
        "lease_until_ms": wanted.lease_until_ms,
        "lease_ms": wanted.lease_ms,
        "host_name": wanted.holder.host_name,
        "pid": wanted.holder.pid,
        "lock_id": wanted.holder.lock_id,
        "rack": wanted.rack,
        "internal_host": wanted.internal_host,
        "internal_port": wanted.internal_port,
        "beat": 0,
        "beat_ms": wanted.lease_ms // 3,
        "draining": 0,
        "listeners": json.dumps(wanted.listeners),
        "level": NEWEST,
        "level_epoch": epoch + 1,
    }
    change = next_change(connection)
    end_recovery(connection, wanted.node_id, change)
    if found is None:
        connection.execute(insert(nodes).values(node_id=wanted.node_id, **values))
    else:
        connection.execute(update(nodes).where(nodes.c.node_id == wanted.node_id).values(values))
    registered = get_node(connection, wanted.node_id)
    assert registered is not None, "it has just been written"
    return registered


def beat(connection: Connection, node: NodeIdentity, lease_until_ms: int, due_ms: int) -> Pulse:
    """Record the node's beat and when the next one is due, extend its lease, and return the beats of all nodes.

    One statement on PostgreSQL: other nodes' commands run beside it.
    """
    own = {"own_id": node.node_id, "own_epoch": node.epoch, "until_ms": lease_until_ms, "due_ms": due_ms}
    own_uploads = {"own_uploads": uploads_counter(node.node_id)}
    if connection.dialect.name == "postgresql":
        rows = connection.execute(BEAT_AND_READ, {**own, **own_uploads}).all()
        found = bool(rows) and bool(rows[0][-1])
    else:
        found = bool(connection.execute(BEAT, own).rowcount)
        rows = connection.execute(READ_BEATS, own_uploads).all()
    if not found:
        check_node(connection, node)
    beats = {key: NodeBeat(epoch, number, bool(has_lease), due) for key, epoch, number, has_lease, due, *_ in rows}
    return Pulse(beats, rows[0].version, rows[0].uploads or 0)


def stop_node(
    connection: Connection,
    node: NodeIdentity,
    drained_wal: str | None,
    successors: Sequence[int],
    now_ms: int,
) -> None:
    """End the lease; mark the node's log as drained, release its streams, and let the successors lead them."""
    check_node(connection, node)
    change = next_change(connection)
    connection.execute(update(nodes).where(nodes.c.node_id == node.node_id).values(lease_until_ms=ENDED))
    leave_node(connection, node.node_id, f"node {node.node_id} was stopped", change)
    if drained_wal is not None:
        set_wal_state(connection, drained_wal, WalState.DRAINED, now_ms)
        release_streams(connection, node.node_id, change)
        give_leadership(connection, node.node_id, successors, change)


def drain_node(connection: Connection, node_id: int, *, draining: bool) -> None:
    """Let the node get no partitions, or let it get them again."""
    row = (nodes.c.node_id == node_id, nodes.c.lease_until_ms > REMOVED_MAX)
    if not connection.execute(update(nodes).where(*row).values(draining=int(draining))).rowcount:
        raise NotFound(f"node {node_id} is not registered")
    change = next_change(connection)
    if draining:
        fail_orders_to(connection, node_id, f"node {node_id} is being drained", change)
    else:
        cancel_drain(connection, node_id, change)


def list_nodes(connection: Connection) -> Sequence[NodeInfo]:
    """Return the nodes that are not removed, by id."""
    query = select(*_NODE_COLUMNS).where(nodes.c.lease_until_ms > REMOVED_MAX).order_by(nodes.c.node_id)
    return [_to_node(row) for row in connection.execute(query)]


def get_node(connection: Connection, node_id: int) -> NodeInfo | None:
    """Return a node that was ever registered, removed or not."""
    row = connection.execute(select(*_NODE_COLUMNS).where(nodes.c.node_id == node_id)).one_or_none()
    return None if row is None else _to_node(row)


def observe_node(connection: Connection, node_id: int) -> tuple[NodeInfo, NodeBeat] | None:
    """Return a registered node with its last sign of life."""
    found = get_node(connection, node_id)
    if found is None or found.lease_until_ms <= REMOVED_MAX:
        return None
    number, due_ms = connection.execute(select(nodes.c.beat, nodes.c.beat_ms).where(nodes.c.node_id == node_id)).one()
    return found, NodeBeat(found.epoch, number, found.lease_until_ms > ENDED, due_ms)


def _to_node(row: Row[*tuple[Any, ...]]) -> NodeInfo:
    node_id, epoch, host, port, lease_until_ms, lease_ms, host_name, pid, lock_id, *place = row
    rack, internal_host, internal_port, draining, listeners = place
    return NodeInfo(
        node_id,
        epoch,
        host,
        port,
        lease_until_ms,
        lease_ms,
        NodeHolder(host_name, pid, lock_id),
        rack,
        internal_host,
        internal_port,
        draining=bool(draining),
        listeners=tuple(NodeListener(*each) for each in json.loads(listeners or "[]")),
    )


# their logs


def list_wals(connection: Connection, node_id: int) -> Sequence[WalInfo]:
    """Return every log that the node has used, in the order of their last use."""
    query = select(*_WAL_COLUMNS).where(wals.c.node_id == node_id).order_by(wals.c.node_epoch, wals.c.wal_id)
    return [_to_wal(row) for row in connection.execute(query)]


def list_all_wals(connection: Connection) -> Sequence[WalInfo]:
    """Return the logs of all nodes, by id."""
    return [_to_wal(row) for row in connection.execute(select(*_WAL_COLUMNS).order_by(wals.c.wal_id))]


def _to_wal(row: Row[*tuple[Any, ...]]) -> WalInfo:
    wal_id, node_id, node_epoch, location, state, seen_ms, takeover, *recoverer = row
    return WalInfo(wal_id, node_id, node_epoch, location, WalState(state), seen_ms, Takeover(takeover), *recoverer)


def open_wal(
    connection: Connection,
    wal_id: str,
    node: NodeIdentity,
    kind: str,
    location: str,
    takeover: Takeover,
    held: Collection[int] | None,
    now_ms: int,
) -> None:
    """Register the log that the node acknowledges into from now on.

    It holds records past the ends of the streams `held`. The node leads them, and owns no other streams.
    """
    check_node(connection, node)
    known = {wal.wal_id: wal for wal in list_wals(connection, node.node_id)}
    found = known.pop(wal_id, None)
    if found is not None and found.state is WalState.GIVEN_UP:
        raise CatalogError(f"the log {wal_id} of node {node.node_id} was given up")
    left = [wal for wal in known.values() if wal.state is WalState.OPEN]
    if left and count_open_streams(connection, node.node_id):
        raise CatalogError(f"the log {left[0].wal_id} of node {node.node_id} may hold records that are in no object")
    for wal in left:  # the node has no streams, so that the records in it are not needed
        set_wal_state(connection, wal.wal_id, WalState.DRAINED, now_ms)
    if held is not None and count_open_streams(connection, node.node_id):
        change = next_change(connection)
        release_streams(connection, node.node_id, change, kept=held)
        lead_owned(connection, node.node_id, change)
    adopted = (streams.c.node_id == node.node_id, streams.c.wal_id == "")
    connection.execute(update(streams).where(*adopted).values(wal_id=wal_id))
    values = {
        "node_id": node.node_id,
        "node_epoch": node.epoch,
        "kind": kind,
        "location": location,
        "state": int(WalState.OPEN),
        "seen_ms": now_ms,
        "takeover": takeover,
        "recoverer": NOBODY,
        "recoverer_epoch": 0,
    }
    if found is None:
        connection.execute(insert(wals).values(wal_id=wal_id, **values))
    else:
        connection.execute(update(wals).where(wals.c.wal_id == wal_id).values(values))


def reclaim_streams(connection: Connection, node: NodeIdentity, wal_id: str, claimed_epoch: int) -> None:
    """Own again the node's streams without owner, if its log was claimed after the newest claim known here.

    The catalog is an older copy, from after a clean stop: the node has opened streams since, and the log has records.
    """
    check_node(connection, node)
    known = connection.execute(select(wals.c.node_epoch).where(wals.c.wal_id == wal_id)).scalar_one_or_none()
    if known is None or known < claimed_epoch:
        free = (streams.c.node_id == NOBODY, streams.c.leader == node.node_id)
        connection.execute(update(streams).where(*free).values(node_id=node.node_id, changed=next_change(connection)))


def count_open_streams(connection: Connection, node_id: int) -> int:
    """Count the streams that the node opened last: records past their ends may be in its log."""
    query = select(func.count()).select_from(streams).where(streams.c.node_id == node_id)
    return connection.execute(query).scalar_one()


def next_stream_id(connection: Connection) -> int:
    """Return the id that the next stream will get."""
    query = select(counters.c.next).where(counters.c.name == "stream")
    found: int = connection.execute(query).scalar_one()
    return found


def set_wal_state(connection: Connection, wal_id: str, state: WalState, now_ms: int) -> None:
    """Change the state of a log."""
    connection.execute(update(wals).where(wals.c.wal_id == wal_id).values(state=int(state), seen_ms=now_ms))
