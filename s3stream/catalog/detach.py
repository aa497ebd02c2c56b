"""Statements that detach, attach and clone topics. Each function is the body of one transaction; no data is touched.

Invariants:

- An object lives as long as any range refers to it. A detached topic keeps its streams and their ranges; a clone gets
  separate streams with a copy of the ranges, each with the stream id under which the object stores the data. From then
  on the two are trimmed, compacted and deleted independently.
- Detaching increments the epochs of the streams: a writer that still has one of them open is fenced.
- No record that is only in a log is lost silently: the caller passes the ends up to which it has uploaded, and the
  committed ends must equal them.
- A repeated command succeeds again, even from a node that has been fenced since: its first answer was lost, and the
  node must not take the fence for a refusal.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, case, delete, insert, literal, select, update

from anabranch.s3stream.catalog.orders import delete_orders
from anabranch.s3stream.catalog.placement import led_by
from anabranch.s3stream.catalog.rows import (
    ChangeKind,
    check_node,
    chunks,
    find_streams,
    next_change,
    read_racks,
    replicas_text,
    select_in,
    split_ids,
    take_ids,
)
from anabranch.s3stream.catalog.schema import detached_partitions, detached_topics, partitions, ranges, streams, topics
from anabranch.s3stream.catalog.topics import NOBODY, find_topic_by_id, get_topic, parse_configs
from anabranch.s3stream.catalog.values import DetachedTopic, TopicInfo
from anabranch.s3stream.errors import AlreadyExists, EndMoved, NotFound, StreamFenced
from anabranch.s3stream.model import NodeIdentity


def detach_topic(
    connection: Connection,
    name: str,
    topic_id: bytes,
    *,
    ends: Mapping[int, int],
    node: NodeIdentity,
    now_ms: int,
) -> None:
    """Move the topic to the detached topics and fence its streams."""
    row = connection.execute(select(topics).where(topics.c.name == name, topics.c.topic_id == topic_id)).first()
    if row is None and _find_detached(connection, topic_id) is not None:
        return
    check_node(connection, node)
    if row is None:
        raise NotFound(f"topic {name!r} with id {topic_id.hex()} does not exist")
    info = get_topic(connection, name)
    stream_ids = [partition.stream_id for partition in info.partitions]
    _check_ends(connection, stream_ids, ends, node.node_id)
    connection.execute(
        insert(detached_topics).values(
            topic_id=topic_id, name=name, internal=row.internal, configs=row.configs, detached_ms=now_ms
        )
    )
    connection.execute(
        insert(detached_partitions),
        [{"topic_id": topic_id, "idx": each.index, "stream_id": each.stream_id} for each in info.partitions],
    )
    connection.execute(delete(partitions).where(partitions.c.topic == name))
    connection.execute(delete(topics).where(topics.c.name == name))
    change = next_change(connection, ChangeKind.DELETION)
    fenced = {"epoch": streams.c.epoch + 1, "node_id": NOBODY, "wal_id": "", "leader": NOBODY, "changed": change}
    for piece in chunks(stream_ids):
        connection.execute(update(streams).where(streams.c.stream_id.in_(piece)).values(fenced))
    delete_orders(connection, stream_ids)


def attach_topic(connection: Connection, topic_id: bytes, name: str, node: NodeIdentity) -> TopicInfo:
    """Move a detached topic back under a name; its id stays the same."""
    attached = find_topic_by_id(connection, topic_id)
    if attached == name:
        return get_topic(connection, name)
    check_node(connection, node)
    if attached is not None:
        raise AlreadyExists(f"topic id {topic_id.hex()} is attached already, as {attached!r}")
    found = _find_detached(connection, topic_id)
    if found is None:
        raise NotFound(f"no topic with id {topic_id.hex()} is detached")
    _check_free(connection, name)
    mine = detached_partitions.c.topic_id == topic_id
    columns = (literal(name), detached_partitions.c.idx, detached_partitions.c.stream_id)
    row = connection.execute(select(detached_topics).where(detached_topics.c.topic_id == topic_id)).one()
    change = next_change(connection)
    head = {"name": name, "topic_id": topic_id, "internal": row.internal, "configs": row.configs, "changed": change}
    connection.execute(insert(topics).values(head))
    connection.execute(insert(partitions).from_select(["topic", "idx", "stream_id"], select(*columns).where(mine)))
    connection.execute(delete(detached_partitions).where(mine))
    connection.execute(delete(detached_topics).where(detached_topics.c.topic_id == topic_id))
    for piece in chunks(found.stream_ids):
        values = {"leader": node.node_id, "preferred": node.node_id, "changed": change}
        led = update(streams).where(streams.c.stream_id.in_(piece)).values(values)
        connection.execute(led)
    racks = read_racks(connection)
    held = select(streams.c.stream_id, streams.c.replicas).where(streams.c.replicas != "")
    for row in select_in(connection, held, streams.c.stream_id, found.stream_ids):
        replicas = replicas_text(led_by(split_ids(row.replicas), node.node_id, racks))
        connection.execute(update(streams).where(streams.c.stream_id == row.stream_id).values(replicas=replicas))
    return get_topic(connection, name)


def clone_topic(
    connection: Connection,
    name: str,
    new_name: str,
    topic_id: bytes,
    *,
    ends: Mapping[int, int],
    node: NodeIdentity,
) -> TopicInfo:
    """Insert a topic whose streams begin as copies of another's: bounds, state and ranges."""
    taken = find_topic_by_id(connection, topic_id)
    if taken == new_name:
        return get_topic(connection, new_name)
    check_node(connection, node)
    if taken is not None:
        raise AlreadyExists(f"topic id {topic_id.hex()} belongs to topic {taken!r}")
    _check_free(connection, new_name)
    original = get_topic(connection, name)
    stream_ids = [partition.stream_id for partition in original.partitions]
    _check_ends(connection, stream_ids, ends, None)
    configs = connection.execute(select(topics.c.configs).where(topics.c.name == name)).scalar_one()
    change = next_change(connection)
    head = {"name": new_name, "topic_id": topic_id, "internal": 0, "configs": configs, "changed": change}
    connection.execute(insert(topics).values(head))
    first = take_ids(connection, "stream", len(stream_ids))
    racks = read_racks(connection)
    for partition in original.partitions:
        new_id = first + partition.index
        replicas = replicas_text(led_by(partition.replicas, node.node_id, racks))
        _clone_stream(connection, partition.stream_id, new_id, node.node_id, replicas, change)
        connection.execute(insert(partitions).values(topic=new_name, idx=partition.index, stream_id=new_id))
    return get_topic(connection, new_name)


def _clone_stream(connection: Connection, stream_id: int, new_id: int, leader: int, replicas: str, change: int) -> None:
    # Leader epochs continue from the original's, because its batches contain them.
    own: dict[str, ColumnElement[Any]] = {
        "stream_id": literal(new_id),
        "epoch": literal(0),
        "node_id": literal(NOBODY),
        "wal_id": literal(""),
        "leader": literal(leader),
        "preferred": literal(leader),
        "replicas": literal(replicas),
        "changed": literal(change),
    }
    _copy_rows(connection, streams, stream_id, own)
    source = case((ranges.c.source_stream_id == 0, ranges.c.stream_id), else_=ranges.c.source_stream_id)
    _copy_rows(connection, ranges, stream_id, {"stream_id": literal(new_id), "source_stream_id": source})


def _copy_rows(connection: Connection, table: Table, stream_id: int, own: Mapping[str, ColumnElement[Any]]) -> None:
    """Copy a stream's rows of a table, with the columns in `own` replaced."""
    names = [column.name for column in table.columns]
    columns = [own.get(column.name, column) for column in table.columns]
    rows = select(*columns).where(table.c.stream_id == stream_id)
    connection.execute(insert(table).from_select(names, rows))


def list_detached(connection: Connection, topic_id: bytes | None = None) -> Sequence[DetachedTopic]:
    """Return all detached topics, or the one with `topic_id`."""
    heads = select(detached_topics).order_by(detached_topics.c.name, detached_topics.c.detached_ms.desc())
    parts = select(detached_partitions).order_by(detached_partitions.c.topic_id, detached_partitions.c.idx)
    if topic_id is not None:
        heads = heads.where(detached_topics.c.topic_id == topic_id)
        parts = parts.where(detached_partitions.c.topic_id == topic_id)
    members: dict[bytes, list[int]] = {}
    for row in connection.execute(parts):
        members.setdefault(row.topic_id, []).append(row.stream_id)
    return [
        DetachedTopic(
            row.name,
            row.topic_id,
            parse_configs(row.configs),
            members[row.topic_id],
            internal=bool(row.internal),
            detached_ms=row.detached_ms,
        )
        for row in connection.execute(heads)
    ]


def _find_detached(connection: Connection, topic_id: bytes) -> DetachedTopic | None:
    found = list_detached(connection, topic_id)
    return found[0] if found else None


def _check_free(connection: Connection, name: str) -> None:
    if connection.execute(select(topics.c.name).where(topics.c.name == name)).first() is not None:
        raise AlreadyExists(f"topic {name!r} exists")


def _check_ends(
    connection: Connection, stream_ids: Sequence[int], ends: Mapping[int, int], node_id: int | None
) -> None:
    """Check that the streams end at `ends`; with `node_id`, also that no other node has one of them open."""
    for stream_id, info in find_streams(connection, stream_ids).items():
        if node_id is not None and info.node_id not in {node_id, NOBODY}:
            raise StreamFenced(f"stream {stream_id} is open on node {info.node_id}, not on node {node_id}")
        if ends.get(stream_id) != info.end_offset:
            raise EndMoved(f"stream {stream_id} ends at {info.end_offset}, expected {ends.get(stream_id)}")
