"""Conversion of rows to values, and statements that several commands share."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import Column, Connection, Row, Select, bindparam, exists, func, insert, select, update

from anabranch.s3stream.catalog.schema import counters, nodes, objects, ranges, streams
from anabranch.s3stream.catalog.values import MoveOrder, MoveReason
from anabranch.s3stream.errors import NodeFenced, NodeStopped
from anabranch.s3stream.model import (
    NodeIdentity,
    ObjectInfo,
    ObjectKind,
    ObjectState,
    RangeLocation,
    StreamInfo,
    StreamRange,
)

Item = TypeVar("Item")


class ChangeKind(StrEnum):
    """Changes that leave no row behind that has their number; each is the counter of the last one."""

    DELETION = "last_deletion"
    """Topics were deleted or detached."""
    CONFIG = "last_config"
    """Configs of other things than topics."""
    ACL = "last_acl"
    """Access control lists."""
    TOKEN = "last_token"  # noqa: S105 - the name of a counter
    """Delegation tokens."""
    SECRET = "last_secret"  # noqa: S105 - the name of a counter
    """The secret that the nodes share."""


CHANGE: Final = "change"
"""Counter of the changes that other nodes must see."""
CHANGE_CHANNEL: Final = "anabranch_change"
"""Channel of PostgreSQL on which each of them is announced."""
LAST_CHANGE: Final = "last change"
"""Key of a connection's notes: the number of the last change in the command that it runs."""
UPLOADS: Final = "upload/"
"""Beginning of the names of counters, one for each node id, of the uploads that were committed for the node."""
ENDED: Final = 0
"""End of the lease of a node that has stopped cleanly, or is dead and was taken over."""
CHUNK: Final = 5_000
"""Ids per statement: below SQLite's 32,766 variables and PostgreSQL's 65,535."""

OBJECT_COLUMNS: Final = tuple(objects.c[field] for field in ObjectInfo.__dataclass_fields__)
RANGE_COLUMNS: Final = tuple(ranges.c[field] for field in StreamRange.__dataclass_fields__)
LOCATION_COLUMNS: Final = (*RANGE_COLUMNS, *OBJECT_COLUMNS, ranges.c.source_stream_id)
STREAM_COLUMNS: Final = tuple(streams.c[field] for field in StreamInfo.__dataclass_fields__)

# Statements that a node runs some times a second are built once: to build one takes longer than to run it.

IDS: Final = "ids"
"""Parameter of statements that `select_ids` runs."""
COUNTERS: Final = select(counters.c.name, counters.c.next)
_OBJECTS: Final = select(*OBJECT_COLUMNS).where(objects.c.object_id.in_(bindparam(IDS, expanding=True)))
_STREAMS: Final = select(*STREAM_COLUMNS).where(streams.c.stream_id.in_(bindparam(IDS, expanding=True)))
_EPOCH: Final = select(nodes.c.epoch, nodes.c.lease_until_ms).where(nodes.c.node_id == bindparam("id"))
_COUNTER: Final = select(counters.c.next).where(counters.c.name == bindparam("counter"))
_TAKE: Final = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(next=counters.c.next + bindparam("count"))
    .returning(counters.c.next)
)
_CHANGED: Final = (
    update(counters)
    .where(counters.c.name.in_(bindparam("named", expanding=True)))
    .values(next=select(counters.c.next).where(counters.c.name == CHANGE).scalar_subquery() + 1)
    .returning(counters.c.next)
)
_CHANGED_AND_TOLD: Final = _CHANGED.returning(func.pg_notify(CHANGE_CHANNEL, ""))


def chunks(items: Iterable[Item]) -> Iterator[Sequence[Item]]:
    """Split into chunks that fit one statement."""
    iterator = iter(items)
    while piece := list(islice(iterator, CHUNK)):
        yield piece


def select_in(
    connection: Connection, query: Select[*tuple[Any, ...]], column: Column[Item], ids: Collection[Item]
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the rows of `query` whose `column` is one of `ids`, in the query's order within each chunk of ids."""
    return select_ids(connection, query.where(column.in_(bindparam(IDS, expanding=True))), ids)


def select_ids(
    connection: Connection, query: Select[*tuple[Any, ...]], ids: Collection[Any]
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the rows of a query that has the parameter `IDS`, in its order within each chunk of ids."""
    for piece in chunks(ids):
        yield from connection.execute(query, {IDS: piece})


def to_object(values: Sequence[Any]) -> ObjectInfo:
    """Convert a row of OBJECT_COLUMNS."""
    object_id, kind, state, store, size, node_id, writer_id, deadline_ms, committed_ms, oldest_data_ms, cleaned = values
    return ObjectInfo(
        object_id,
        ObjectKind(kind),
        ObjectState(state),
        store,
        size,
        node_id,
        writer_id,
        deadline_ms,
        committed_ms,
        oldest_data_ms,
        bool(cleaned),
    )


def to_location(row: Sequence[Any]) -> RangeLocation:
    """Convert a row of LOCATION_COLUMNS."""
    width = len(RANGE_COLUMNS)
    return RangeLocation(StreamRange(*row[:width]), to_object(row[width:-1]), row[-1])


def to_order(stream_id: int, to_node: int, reason: int, asked_ms: int, failure: str, replicas: str) -> MoveOrder:
    """Convert a row of `moves`."""
    return MoveOrder(stream_id, to_node, MoveReason(reason), asked_ms, failure, split_ids(replicas))


def find_objects(connection: Connection, ids: Collection[int]) -> dict[int, ObjectInfo]:
    """Return the objects that exist, by id."""
    return {row[0]: to_object(row) for row in select_ids(connection, _OBJECTS, ids)}


def find_streams(connection: Connection, ids: Collection[int]) -> dict[int, StreamInfo]:
    """Return the streams that exist, by id."""
    return {row[0]: StreamInfo(*row) for row in select_ids(connection, _STREAMS, ids)}


def join_ids(node_ids: Iterable[int]) -> str:
    """Encode node ids for a text column."""
    return ",".join(map(str, node_ids))


def split_ids(text: str) -> tuple[int, ...]:
    """Decode the output of `join_ids`."""
    return tuple(map(int, text.split(","))) if text else ()


def replicas_text(replicas: Sequence[int]) -> str:
    """Encode the replicas of a stream: empty for one, which is the leader whoever that is."""
    return join_ids(replicas) if len(replicas) > 1 else ""


def read_racks(connection: Connection) -> Mapping[int, str]:
    """Return the racks of all nodes by id."""
    return {row.node_id: row.rack for row in connection.execute(select(nodes.c.node_id, nodes.c.rack))}


def take_ids(connection: Connection, counter: str, count: int) -> int:
    """Advance a counter by `count`; returns its value before."""
    result: int = connection.execute(_TAKE, {"counter": counter, "count": count}).scalar_one()
    return result - count


def uploads_counter(node_id: int) -> str:
    """Return the name of the counter of a node's uploads. There is none before the first upload."""
    return f"{UPLOADS}{node_id}"


def count_uploads(connection: Connection, node_id: int) -> int:
    """Return how many uploads the catalog has committed for the node."""
    return connection.execute(_COUNTER, {"counter": uploads_counter(node_id)}).scalar_one_or_none() or 0


def add_upload(connection: Connection, node_id: int) -> int:
    """Count one more upload that the catalog has committed for the node; return how many there are now."""
    name = uploads_counter(node_id)
    number = connection.execute(_TAKE, {"counter": name, "count": 1}).scalar_one_or_none()
    if number is None:
        connection.execute(insert(counters).values(name=name, next=1))
    return number or 1


def set_uploads(connection: Connection, node_id: int, number: int) -> None:
    """Set how many uploads the catalog has committed for the node."""
    name = uploads_counter(node_id)
    if not connection.execute(update(counters).where(counters.c.name == name).values(next=number)).rowcount:
        connection.execute(insert(counters).values(name=name, next=number))


def next_change(connection: Connection, kind: ChangeKind | None = None) -> int:
    """Return the number of a change that other nodes must see, and wake them when it is committed."""
    statement = _CHANGED_AND_TOLD if connection.dialect.name == "postgresql" else _CHANGED
    number: int = (
        connection.execute(statement, {"named": [CHANGE, *([] if kind is None else [kind])]}).scalars().all()[0]
    )
    connection.info[LAST_CHANGE] = number
    return number


def check_node(connection: Connection, node: NodeIdentity) -> int:
    """Raise NodeFenced unless this is the node's newest epoch; return the end of its lease."""
    found = connection.execute(_EPOCH, {"id": node.node_id}).one_or_none()
    if found is None:
        raise NodeFenced(f"node {node.node_id} is not registered")
    if found.epoch != node.epoch:
        raise NodeFenced(f"node {node.node_id}: epoch {node.epoch} is not the registered {found.epoch}")
    until_ms: int = found.lease_until_ms
    return until_ms


def check_running(connection: Connection, node: NodeIdentity) -> None:
    """Raise NodeFenced unless this is the node's newest epoch, NodeStopped when the node has stopped in it."""
    if check_node(connection, node) <= ENDED:
        raise NodeStopped(f"node {node.node_id} has stopped: it opens no streams")


class RunningNode(NamedTuple):
    """A node that has not stopped cleanly."""

    draining: bool
    rack: str


def running_nodes(connection: Connection) -> Mapping[int, RunningNode]:
    """Return the nodes that have not stopped cleanly, by id."""
    query = select(nodes.c.node_id, nodes.c.draining, nodes.c.rack).where(nodes.c.lease_until_ms > ENDED)
    return {row[0]: RunningNode(bool(row[1]), row[2]) for row in connection.execute(query.order_by(nodes.c.node_id))}


def fit_to_lead(running: Mapping[int, RunningNode], wanted: Sequence[int]) -> Sequence[int]:
    """Return those of the nodes that may get partitions: they run, and are not being drained, unless all are.

    The caller may not have seen either yet.
    """
    found = [node_id for node_id in wanted if node_id in running]
    return [node_id for node_id in found if not running[node_id].draining] or found


def destroy_if_dead(connection: Connection, ids: Collection[int], deadline_ms: int) -> None:
    """Mark the committed objects among `ids` without live ranges as destroyed."""
    alive = exists().where(ranges.c.object_id == objects.c.object_id)
    for piece in chunks(ids):
        connection.execute(
            update(objects)
            .where(objects.c.object_id.in_(piece), objects.c.state == ObjectState.COMMITTED, ~alive)
            .values(state=ObjectState.DESTROYED, deadline_ms=deadline_ms)
        )


def update_streams(connection: Connection, changes: Mapping[int, Mapping[str, Any]]) -> None:
    """Set columns of many streams, with one statement for all streams that change the same columns."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for key, change in changes.items():
        alike[tuple(change)].append(key)
    for names, keys in alike.items():
        statement = update(streams).where(streams.c.stream_id == bindparam("key"))
        statement = statement.values({name: bindparam(f"new_{name}") for name in names})
        rows = [{"key": key, **{f"new_{name}": value for name, value in changes[key].items()}} for key in keys]
        connection.execute(statement, rows)
