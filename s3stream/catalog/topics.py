"""Statements about topics and streams. Each function is the body of one transaction."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import (
    Column,
    Connection,
    Row,
    Select,
    SelectBase,
    and_,
    case,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from anabranch.s3stream.catalog.placement import place_replicas, place_topic
from anabranch.s3stream.catalog.rows import (
    STREAM_COLUMNS,
    ChangeKind,
    check_running,
    chunks,
    destroy_if_dead,
    find_streams,
    fit_to_lead,
    next_change,
    replicas_text,
    running_nodes,
    select_in,
    split_ids,
    take_ids,
    to_order,
)
from anabranch.s3stream.catalog.schema import moves, partitions, ranges, streams, topics
from anabranch.s3stream.catalog.table_rows import drop_tables_of
from anabranch.s3stream.catalog.values import NewTopic, OpenStream, PartitionInfo, TopicInfo
from anabranch.s3stream.errors import (
    AlreadyExists,
    CatalogError,
    NotFound,
    OffsetOutOfRange,
    StreamFenced,
    StreamHeld,
    StreamNotFound,
)
from anabranch.s3stream.model import StreamInfo, StreamOwner

NOBODY = -1
NO_TIMESTAMP = -1


def create_topics(
    connection: Connection, wanted: Sequence[NewTopic], new_leaders: Sequence[int]
) -> Sequence[TopicInfo | AlreadyExists]:
    """Insert the topics with their partitions and streams; a topic that exists with the same id is a success."""
    for topic in wanted:
        if topic.partitions < 1:
            raise CatalogError(f"topic {topic.name!r} needs at least one partition, found {topic.partitions}")
    heads = select(topics.c.name, topics.c.topic_id)
    id_of: dict[str, bytes] = {}
    name_of: dict[bytes, str] = {}
    for piece in chunks(wanted):
        alike = or_(
            topics.c.name.in_([each.name for each in piece]), topics.c.topic_id.in_([each.topic_id for each in piece])
        )
        for name, topic_id in connection.execute(heads.where(alike)):
            id_of[name] = topic_id
            name_of[topic_id] = name
    refused: dict[int, AlreadyExists] = {}
    fresh: list[NewTopic] = []
    for place, topic in enumerate(wanted):
        if id_of.get(topic.name) == topic.topic_id:
            continue
        if topic.name in id_of:
            refused[place] = AlreadyExists(f"topic {topic.name!r} exists")
        elif topic.topic_id in name_of:
            taken = name_of[topic.topic_id]
            refused[place] = AlreadyExists(f"topic id {topic.topic_id.hex()} belongs to topic {taken!r}")
        else:
            fresh.append(topic)
            id_of[topic.name] = topic.topic_id
            name_of[topic.topic_id] = topic.name
    infos: dict[str, TopicInfo] = {}
    if fresh:
        change = next_change(connection)
        connection.execute(insert(topics), [{**_topic_row(topic), "changed": change} for topic in fresh])
        added = [
            _AddedStreams(each.name, 0, each.partitions, each.factor, each.leaders, each.replicas) for each in fresh
        ]
        partitions_of = _add_streams(connection, added, new_leaders, change)
        infos = {
            each.name: TopicInfo(each.name, each.topic_id, each.configs, partitions_of[each.name], each.internal)
            for each in fresh
        }
    there = [topic.name for place, topic in enumerate(wanted) if place not in refused and topic.name not in infos]
    if there:
        infos.update((info.name, info) for info in list_topics(connection, there))
    return [refused.get(place) or infos[topic.name] for place, topic in enumerate(wanted)]


def _topic_row(topic: NewTopic) -> Mapping[str, object]:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": int(topic.internal),
        "configs": _dump(topic.configs),
    }


def add_partitions(
    connection: Connection,
    topic_id: bytes,
    total: int,
    new_leaders: Sequence[int],
    leaders: Sequence[int] | None = None,
    replicas: Sequence[Sequence[int]] | None = None,
) -> TopicInfo:
    """Append partitions up to `total`, led by `leaders`, or placed over `new_leaders`, with as many replicas."""
    topic = get_topic_by_id(connection, topic_id)
    count = len(topic.partitions)
    if total < count:
        raise CatalogError(f"topic {topic.name!r} has {count} partitions already, more than the {total} asked for")
    if total > count:
        factor = max(1, len(topic.partitions[0].replicas))
        added = _AddedStreams(topic.name, count, total - count, factor, leaders, replicas)
        _add_streams(connection, [added], new_leaders, next_change(connection))
    return get_topic(connection, topic.name)


class _AddedStreams(NamedTuple):
    """New partitions of a topic."""

    topic: str
    first: int
    """Index of the first one."""
    partitions: int
    factor: int
    leaders: Sequence[int] | None
    replicas: Sequence[Sequence[int]] | None


def _add_streams(
    connection: Connection, wanted: Sequence[_AddedStreams], new_leaders: Sequence[int], change: int
) -> Mapping[str, list[PartitionInfo]]:
    """Insert partitions and their streams; return them by topic."""
    places = [(each.topic, idx) for each in wanted for idx in range(each.first, each.first + each.partitions)]
    running = running_nodes(connection)
    new_leaders = fit_to_lead(running, new_leaders) or new_leaders
    racks = {node_id: node.rack for node_id, node in running.items()}
    led = Counter(count_led(connection) if len(new_leaders) > 1 else {})
    may_serve = {node_id: node.rack for node_id, node in running.items() if not node.draining}
    leaders: list[int] = []
    replicas: list[Sequence[int]] = []
    for each in wanted:
        placed = each.leaders
        if placed is None:
            there = _count_led_of(connection, each.topic) if each.first and len(new_leaders) > 1 else {}
            placed = place_topic(each.partitions, new_leaders, there, led, racks)
        led.update(placed)
        leaders += placed
        factor = each.factor if each.leaders is None else 1
        replicas += each.replicas or place_replicas(placed, factor, may_serve, new_leaders)
    first = take_ids(connection, "stream", len(places))
    fresh = {
        "epoch": 0,
        "node_id": NOBODY,
        "leader_epoch": 0,
        "start_offset": 0,
        "deleted_offset": 0,
        "end_offset": 0,
        "peak_timestamp_ms": NO_TIMESTAMP,
        "snapshot": b"",
        "wal_id": "",
        "changed": change,
    }
    ids = range(first, first + len(places))
    rows: list[Mapping[str, Any]] = [
        {"stream_id": key, "leader": leader, "preferred": mine[0], "replicas": replicas_text(mine), **fresh}
        for key, leader, mine in zip(ids, leaders, replicas, strict=True)
    ]
    connection.execute(insert(streams), rows)
    connection.execute(
        insert(partitions),
        [{"topic": topic, "idx": idx, "stream_id": key} for (topic, idx), key in zip(places, ids, strict=True)],
    )
    added: dict[str, list[PartitionInfo]] = {each.topic: [] for each in wanted}
    for (topic, idx), row in zip(places, rows, strict=True):
        key, leader, preferred = row["stream_id"], row["leader"], row["preferred"]
        mine = split_ids(row["replicas"])
        added[topic].append(PartitionInfo(idx, key, leader, 0, NOBODY, preferred, replicas=mine))
    return added


def count_led(connection: Connection) -> Mapping[int, int]:
    """Return the number of partitions that each node leads."""
    query = select(streams.c.leader, func.count()).group_by(streams.c.leader)
    return {row[0]: row[1] for row in connection.execute(query)}


def _count_led_of(connection: Connection, topic: str) -> Mapping[int, int]:
    query = select(streams.c.leader, func.count()).join(partitions, partitions.c.stream_id == streams.c.stream_id)
    rows = connection.execute(query.where(partitions.c.topic == topic).group_by(streams.c.leader))
    return {row[0]: row[1] for row in rows}


def delete_topics(connection: Connection, topic_ids: Sequence[bytes], delete_after_ms: int) -> None:
    """Delete the topics, their streams and ranges, and destroy what held nothing else: objects, and files of tables."""
    names = [row[0] for row in select_in(connection, select(topics.c.name), topics.c.topic_id, topic_ids)]
    ids = [row[0] for row in select_in(connection, select(partitions.c.stream_id), partitions.c.topic, names)]
    if names:
        next_change(connection, ChangeKind.DELETION)
    touched = set(_object_ids(connection, ids))
    drop_tables_of(connection, topic_ids, delete_after_ms)
    for some_names in chunks(names):
        connection.execute(delete(partitions).where(partitions.c.topic.in_(some_names)))
        connection.execute(delete(topics).where(topics.c.name.in_(some_names)))
    for piece in chunks(ids):
        connection.execute(delete(moves).where(moves.c.stream_id.in_(piece)))
        connection.execute(delete(ranges).where(ranges.c.stream_id.in_(piece)))
        connection.execute(delete(streams).where(streams.c.stream_id.in_(piece)))
    destroy_if_dead(connection, touched, delete_after_ms)


def _object_ids(connection: Connection, stream_ids: Sequence[int]) -> Sequence[int]:
    rows = select_in(connection, select(ranges.c.object_id).distinct(), ranges.c.stream_id, stream_ids)
    return [row[0] for row in rows]


def alter_topic(
    connection: Connection, topic_id: bytes, change: Callable[[dict[str, str]], Mapping[str, str]]
) -> TopicInfo:
    """Give the topic the configs that `change` makes of those that it has."""
    topic = get_topic_by_id(connection, topic_id)
    configs = change(dict(topic.configs))
    values = {"configs": _dump(configs), "changed": next_change(connection)}
    connection.execute(update(topics).where(topics.c.topic_id == topic_id).values(values))
    return replace(topic, configs=configs)


def get_topic(connection: Connection, name: str) -> TopicInfo:
    """Return the topic with that name. Raises NotFound."""
    found = list_topics(connection, [name])
    if not found:
        raise NotFound(f"topic {name!r} does not exist")
    return found[0]


def get_topic_by_id(connection: Connection, topic_id: bytes) -> TopicInfo:
    """Return the topic with that id. Raises NotFound."""
    name = find_topic_by_id(connection, topic_id)
    if name is None:
        raise NotFound(f"topic id {topic_id.hex()} does not exist")
    return get_topic(connection, name)


def find_topic_by_id(connection: Connection, topic_id: bytes) -> str | None:
    """Return the name of the topic with that id, or None."""
    return connection.execute(select(topics.c.name).where(topics.c.topic_id == topic_id)).scalar_one_or_none()


def parse_configs(text: str) -> Mapping[str, str]:
    """Decode a topic's configs from the database."""
    configs: dict[str, str] = json.loads(text)
    return configs


def list_topics(connection: Connection, names: Collection[str] | SelectBase | None = None) -> Sequence[TopicInfo]:
    """Return all topics by name, or the existing ones of `names`, which may be a query, in any order."""
    query = (
        select(
            topics.c.name,
            topics.c.topic_id,
            topics.c.internal,
            case((partitions.c.idx == 0, topics.c.configs), else_=""),  # once is enough
            partitions.c.idx,
            partitions.c.stream_id,
            streams.c.leader,
            streams.c.leader_epoch,
            streams.c.node_id,
            streams.c.preferred,
            streams.c.replicas,
            moves.c.to_node,
            moves.c.reason,
            moves.c.asked_ms,
            moves.c.failure,
            moves.c.replicas,
        )
        .outerjoin(partitions, partitions.c.topic == topics.c.name)
        .outerjoin(streams, streams.c.stream_id == partitions.c.stream_id)
        .outerjoin(moves, moves.c.stream_id == partitions.c.stream_id)
        .order_by(topics.c.name, partitions.c.idx)
    )
    found: dict[str, TopicInfo] = {}
    members: dict[str, list[PartitionInfo]] = {}
    for name, topic_id, internal, configs, *partition in _rows(connection, query, topics.c.name, names):
        if name not in found:
            members[name] = []
            if partition[0] != 0:
                raise ValueError(f"topic {name!r} has no partition 0")  # the database is damaged
            found[name] = TopicInfo(name, topic_id, parse_configs(configs), members[name], internal=bool(internal))
        members[name].append(_to_partition(*partition))
    return list(found.values())


def _to_partition(
    index: int,
    stream_id: int,
    leader: int,
    leader_epoch: int,
    owner: int,
    preferred: int,
    replicas: str,
    to_node: int | None,
    *order: Any,
) -> PartitionInfo:
    return PartitionInfo(
        index,
        stream_id,
        leader,
        leader_epoch,
        owner,
        preferred,
        None if to_node is None else to_order(stream_id, to_node, *order),
        split_ids(replicas),
    )


def list_topic_configs(
    connection: Connection, topic_ids: Collection[bytes] | None = None
) -> Mapping[bytes, Mapping[str, str]]:
    """Return the configs of these topics, or all, by topic id, without topics that have none."""
    query = select(topics.c.topic_id, topics.c.configs).where(topics.c.configs != _dump({}))
    rows = _rows(connection, query, topics.c.topic_id, topic_ids)
    return {topic_id: parse_configs(configs) for topic_id, configs in rows}


def _rows(
    connection: Connection,
    query: Select[*tuple[Any, ...]],
    column: Column[Any],
    wanted: Collection[Any] | SelectBase | None,
) -> Iterable[Row[*tuple[Any, ...]]]:
    if isinstance(wanted, SelectBase):
        return connection.execute(query.where(column.in_(wanted)))
    return connection.execute(query) if wanted is None else select_in(connection, query, column, wanted)


def open_streams(connection: Connection, stream_ids: Sequence[int], owner: StreamOwner) -> Sequence[OpenStream]:
    """Give each stream its next epoch and leader epoch, and its owner: only if nobody or `owner` has it already.

    A stopped node may not own any: its log is drained, so no node would recover them.
    """
    node_id, wal_id = owner.node_id, owner.wal_id
    check_running(connection, owner.identity)
    nobodys = and_(streams.c.node_id == NOBODY, streams.c.wal_id == "")
    own = and_(streams.c.node_id == node_id, streams.c.wal_id.in_((wal_id, "")))
    change = next_change(connection)
    opened: dict[int, OpenStream] = {}
    for piece in chunks(stream_ids):
        statement = (
            update(streams)
            .where(streams.c.stream_id.in_(piece), streams.c.leader.in_((node_id, NOBODY)), or_(nobodys, own))
            .values(
                epoch=streams.c.epoch + 1,
                leader_epoch=streams.c.leader_epoch + 1,
                node_id=node_id,
                leader=node_id,
                wal_id=wal_id,
                changed=change,
            )
        )
        for *fields, leader_epoch in connection.execute(statement.returning(*STREAM_COLUMNS, streams.c.leader_epoch)):
            info = StreamInfo(*fields)
            opened[info.stream_id] = OpenStream(info, leader_epoch)
    refused = sorted(set(stream_ids) - opened.keys())
    if refused:
        _explain_refusal(connection, refused, len(stream_ids), node_id)
    return [opened[stream_id] for stream_id in stream_ids]


def _explain_refusal(connection: Connection, refused: Sequence[int], wanted: int, node_id: int) -> NoReturn:
    """Raise the error for streams that could not be opened: StreamNotFound or StreamHeld."""
    found = find_streams(connection, refused)
    missing = [stream_id for stream_id in refused if stream_id not in found]
    if missing:
        raise StreamNotFound(f"stream {missing[0]} does not exist ({len(missing)} of {wanted} missing)")
    info = found[refused[0]]
    which = f"stream {info.stream_id} ({len(refused)} of {wanted} refused)"
    if info.node_id == NOBODY:
        raise StreamHeld(f"{which}: another node leads it, not node {node_id}")
    log = f"log {info.wal_id}" if info.wal_id else "the log"
    raise StreamHeld(f"{which}: records from offset {info.end_offset} on may be in {log} of node {info.node_id}")


def trim_stream(
    connection: Connection, stream_id: int, epoch: int, new_start: int, delete_after_ms: int, *, asked: bool
) -> StreamInfo:
    """Move the start of a stream, drop the ranges before it, destroy the objects that held nothing else.

    `asked`: a client wants the records before it deleted, which is noted even if they are already.
    """
    info = find_streams(connection, [stream_id]).get(stream_id)
    if info is None:
        raise StreamNotFound(f"stream {stream_id} does not exist")
    if info.epoch != epoch:
        raise StreamFenced(f"stream {stream_id}: the trim's epoch {epoch} is not the stream's {info.epoch}")
    if new_start > info.end_offset:
        raise OffsetOutOfRange(f"stream {stream_id}: cannot trim to {new_start}, past the end {info.end_offset}")
    moved = {}
    if new_start > info.start_offset:
        moved["start_offset"] = new_start
    if asked and new_start > info.deleted_offset:
        moved["deleted_offset"] = new_start
    if not moved:
        return info
    connection.execute(update(streams).where(streams.c.stream_id == stream_id).values(moved))
    before = (ranges.c.stream_id == stream_id, ranges.c.end_offset <= new_start)
    touched = set(connection.execute(delete(ranges).where(*before).returning(ranges.c.object_id)).scalars())
    destroy_if_dead(connection, touched, delete_after_ms)
    return find_streams(connection, [stream_id])[stream_id]


def list_streams(connection: Connection, after: int, limit: int) -> Sequence[StreamInfo]:
    """Return a page of streams by id."""
    page = select(*STREAM_COLUMNS).where(streams.c.stream_id > after).order_by(streams.c.stream_id).limit(limit)
    return [StreamInfo(*row) for row in connection.execute(page)]


def _dump(configs: Mapping[str, str]) -> str:
    return json.dumps(dict(configs), sort_keys=True)
