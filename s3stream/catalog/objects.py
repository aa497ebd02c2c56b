"""Statements about objects and ranges. Each function is the body of one transaction."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    Connection,
    Integer,
    Select,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)

from anabranch.s3stream.catalog.life_cycle import LifeCycle
from anabranch.s3stream.catalog.plans import (
    CommitPlan,
    CommittedStream,
    LiveRange,
    NewRange,
    check_repeat,
    is_repeat,
    plan_compaction,
    plan_upload,
)
from anabranch.s3stream.catalog.rows import (
    IDS,
    LOCATION_COLUMNS,
    OBJECT_COLUMNS,
    RANGE_COLUMNS,
    add_upload,
    check_node,
    chunks,
    count_uploads,
    destroy_if_dead,
    find_objects,
    select_ids,
    select_in,
    take_ids,
    to_location,
    to_object,
    update_streams,
)
from anabranch.s3stream.catalog.schema import counters, objects, ranges, streams
from anabranch.s3stream.catalog.values import CompactionCommit, UploadCommit
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import (
    NewObject,
    NodeIdentity,
    ObjectInfo,
    ObjectKind,
    ObjectState,
    RangeLocation,
    StreamRange,
)

OFFSET_MAX: Final = 2**63 - 1
LOCATED: Final = select(*LOCATION_COLUMNS).join(objects, objects.c.object_id == ranges.c.object_id)
IS_STREAM_OBJECT: Final = ranges.c.kind == literal_column(str(int(ObjectKind.SO)), Integer)
"""A literal, not a bound value: SQLite uses the partial index only for a constant."""
LIFE_CYCLE: Final = LifeCycle("object", objects, objects.c.object_id, find_objects)
UNUSED: Final = (ObjectState.PREPARED, ObjectState.DESTROYED)


def _ranges_query() -> Select[*tuple[Any, ...]]:
    mine = ranges.c.stream_id == bindparam("stream")
    end: BindParameter[int] = bindparam("end")
    last = select(func.min(ranges.c.end_offset)).where(mine, ranges.c.end_offset >= end).scalar_subquery()
    return (
        LOCATED.where(mine, ranges.c.end_offset > bindparam("start"))
        .where(ranges.c.end_offset <= func.coalesce(last, OFFSET_MAX), ranges.c.start_offset < end)
        .order_by(ranges.c.end_offset)
        .limit(bindparam("most", type_=Integer))
    )


def _time_query() -> Select[*tuple[Any, ...]]:
    mine = ranges.c.stream_id == bindparam("stream")
    timestamp: BindParameter[int] = bindparam("timestamp")
    first = (
        select(ranges.c.end_offset)
        .where(mine, ranges.c.peak_timestamp_ms >= timestamp)
        .order_by(ranges.c.peak_timestamp_ms, ranges.c.end_offset)
        .limit(1)
        .scalar_subquery()
    )
    return (
        LOCATED.where(mine, ranges.c.end_offset >= first, ranges.c.max_timestamp_ms >= timestamp)
        .order_by(ranges.c.end_offset)
        .limit(1)
    )


# Built once: on the path of cold reads, and some times a second, building a statement would cost more than running it.
RANGES_QUERY: Final = _ranges_query()
TIME_QUERY: Final = _time_query()
STREAM_OBJECTS: Final = LOCATED.where(ranges.c.stream_id == bindparam("stream"), IS_STREAM_OBJECT).order_by(
    ranges.c.end_offset
)
REAPABLE: Final = (
    select(*OBJECT_COLUMNS, objects.c.upload_id)
    .where(objects.c.state.in_(UNUSED), objects.c.deadline_ms <= bindparam("now"))
    .order_by(objects.c.deadline_ms, objects.c.object_id)
    .limit(bindparam("most", type_=Integer))
)
_LOCATED_BY_ID: Final = LOCATED.where(ranges.c.object_id.in_(bindparam(IDS, expanding=True)))


def find_ranges(connection: Connection, stream_id: int, start: int, end: int, limit: int) -> Sequence[RangeLocation]:
    """Return the ranges that overlap [start, end).

    The last one is the first that ends at or past `end`. It is looked up separately and bounds the scan of the key.
    """
    asked = {"stream": stream_id, "start": start, "end": end, "most": limit}
    return [to_location(row) for row in connection.execute(RANGES_QUERY, asked)]


def find_time(connection: Connection, stream_id: int, timestamp_ms: int) -> RangeLocation | None:
    """Return the first range that reaches the timestamp.

    The index of peaks finds the start of the scan in one descent. That range reaches the timestamp unless the data that
    set its peak was trimmed or split off; then the scan continues from there.
    """
    row = connection.execute(TIME_QUERY, {"stream": stream_id, "timestamp": timestamp_ms}).first()
    return None if row is None else to_location(row)


def prepare_objects(
    connection: Connection,
    count: int,
    *,
    node: NodeIdentity,
    writer_id: str,
    store: str,
    deadline_ms: int,
    oldest_data_ms: int,
    cleaned: bool,
) -> Sequence[int]:
    """Insert `count` prepared objects under new ids."""
    check_node(connection, node)
    if count < 1:
        return []
    first = take_ids(connection, "object", count)
    fresh = {
        "kind": ObjectKind.SSO,  # the commit sets it
        "state": ObjectState.PREPARED,
        "store": store,
        "size_bytes": 0,
        "node_id": node.node_id,
        "writer_id": writer_id,
        "deadline_ms": deadline_ms,
        "committed_ms": 0,
        "upload_id": "",
        "oldest_data_ms": oldest_data_ms,
        "cleaned": int(cleaned),
    }
    ids = range(first, first + count)
    connection.execute(insert(objects), [{"object_id": object_id, **fresh} for object_id in ids])
    return list(ids)


def commit_upload(connection: Connection, commit: UploadCommit) -> int:
    """Apply an upload's plan; a commit that was applied before succeeds and changes nothing.

    Returns the number of uploads that the node has committed.
    """
    found = find_objects(connection, [item.object_id for item in commit.objects])
    if is_repeat(commit.objects, found):
        held: dict[int, list[StreamRange]] = {}
        for row in _held_ranges(connection, found.keys()):
            held.setdefault(row.object_id, []).append(row.range)
        check_repeat(commit, held)
        return count_uploads(connection, commit.node.node_id)
    check_node(connection, commit.node)
    states = _stream_states(
        connection, {*commit.snapshots, *(span.stream_id for item in commit.objects for span in item.ranges)}
    )
    plan = plan_upload(commit, found, states, _next_stream_id(connection))
    _commit_objects(connection, commit.objects, plan, commit.now_ms)
    _insert_ranges(connection, plan.ranges)
    update_streams(connection, _stream_changes(plan))
    return add_upload(connection, commit.node.node_id)


def _stream_changes(plan: CommitPlan) -> dict[int, dict[str, Any]]:
    """Return the changed columns by stream."""
    changes: dict[int, dict[str, Any]] = {
        key: {"end_offset": state.end_offset, "peak_timestamp_ms": state.peak_timestamp_ms}
        for key, state in plan.ends.items()
    }
    for key, snapshot in plan.snapshots.items():
        changes.setdefault(key, {})["snapshot"] = snapshot
    return changes


def commit_compaction(connection: Connection, commit: CompactionCommit) -> None:
    """Apply a compaction's plan; a commit that was applied before succeeds and changes nothing."""
    output_ids = [item.object_id for item in commit.outputs]
    if set(output_ids) & set(commit.inputs):
        raise CatalogError(f"compaction: objects {sorted(set(output_ids) & set(commit.inputs))} are input and output")
    found = find_objects(connection, {*commit.inputs, *output_ids})
    if is_repeat(commit.outputs, found):
        return
    check_node(connection, commit.node)
    held = _held_ranges(connection, commit.inputs)
    if commit.streams is not None:
        held = [row for row in held if row.range.stream_id in commit.streams]
    wanted = {row.range.stream_id for row in held} | {span.stream_id for o in commit.outputs for span in o.ranges}
    states = _stream_states(connection, wanted)
    plan = plan_compaction(commit, found, held, states, _next_stream_id(connection))
    _delete_swapped(connection, commit, held)
    destroy_if_dead(connection, commit.inputs, commit.delete_after_ms)
    _commit_objects(connection, commit.outputs, plan, commit.now_ms)
    _insert_ranges(connection, plan.ranges)


def _delete_swapped(connection: Connection, commit: CompactionCommit, held: Sequence[LiveRange]) -> None:
    if commit.streams is None:
        for piece in chunks(commit.inputs):
            connection.execute(delete(ranges).where(ranges.c.object_id.in_(piece)))
    elif held:
        row = (ranges.c.stream_id == bindparam("stream"), ranges.c.end_offset == bindparam("end"))
        keys = [{"stream": each.range.stream_id, "end": each.range.end_offset} for each in held]
        connection.execute(delete(ranges).where(*row), keys)


def _held_ranges(connection: Connection, object_ids: Collection[int]) -> list[LiveRange]:
    """Return the live ranges of the objects, by stream and offset."""
    query = select(ranges.c.object_id, *RANGE_COLUMNS, ranges.c.peak_timestamp_ms)
    rows = select_in(connection, query, ranges.c.object_id, object_ids)
    held = [LiveRange(row[0], StreamRange(*row[1:-1]), row[-1]) for row in rows]
    return sorted(held, key=lambda row: (row.range.stream_id, row.range.start_offset))


def _stream_states(connection: Connection, ids: Collection[int]) -> dict[int, CommittedStream]:
    columns = (streams.c[field] for field in ("stream_id", *CommittedStream._fields))
    rows = select_in(connection, select(*columns), streams.c.stream_id, ids)
    return {row[0]: CommittedStream(*row[1:]) for row in rows}


def _next_stream_id(connection: Connection) -> int:
    next_id: int = connection.execute(select(counters.c.next).where(counters.c.name == "stream")).scalar_one()
    return next_id


def _commit_objects(connection: Connection, items: Sequence[NewObject], plan: CommitPlan, now_ms: int) -> None:
    if not items:
        return
    changed = update(objects).where(objects.c.object_id == bindparam("key"))
    changed = changed.values(
        kind=bindparam("new_kind"),
        state=bindparam("new_state"),
        size_bytes=bindparam("new_size"),
        # One without ranges is deleted no earlier than a prepared one: an unanswered PUT of it may still land.
        deadline_ms=case((bindparam("new_state") == ObjectState.DESTROYED, objects.c.deadline_ms), else_=0),
        committed_ms=now_ms,
        upload_id="",
        oldest_data_ms=case((objects.c.oldest_data_ms == 0, now_ms), else_=objects.c.oldest_data_ms),
    )
    dead = plan.dead_objects
    connection.execute(
        changed,
        [
            {
                "key": item.object_id,
                "new_kind": item.kind,
                "new_state": ObjectState.DESTROYED if item.object_id in dead else ObjectState.COMMITTED,
                "new_size": item.size_bytes,
            }
            for item in items
        ],
    )


def _insert_ranges(connection: Connection, rows: Sequence[NewRange]) -> None:
    if rows:
        connection.execute(
            insert(ranges),
            [
                {
                    "object_id": row.object_id,
                    "kind": row.kind,
                    "peak_timestamp_ms": row.peak_timestamp_ms,
                    "stream_id": row.range.stream_id,
                    "start_offset": row.range.start_offset,
                    "end_offset": row.range.end_offset,
                    "record_count": row.range.record_count,
                    "size_bytes": row.range.size_bytes,
                    "max_timestamp_ms": row.range.max_timestamp_ms,
                    "source_stream_id": 0,
                }
                for row in rows
            ],
        )


def last_commits(connection: Connection) -> Mapping[int, int]:
    """Return the time of the newest committed object of each node, in ms since 1970, by node id."""
    query = select(objects.c.node_id, func.max(objects.c.committed_ms)).where(objects.c.state == ObjectState.COMMITTED)
    return {row[0]: row[1] for row in connection.execute(query.group_by(objects.c.node_id))}


def list_node_ssos(connection: Connection, node_id: int, limit: int) -> Sequence[ObjectInfo]:
    """Return the node's newest committed stream set objects, oldest first."""
    query = (
        select(*OBJECT_COLUMNS)
        .where(
            objects.c.node_id == node_id,
            objects.c.kind == ObjectKind.SSO,
            objects.c.state == ObjectState.COMMITTED,
        )
        .order_by(objects.c.object_id.desc())
        .limit(limit)
    )
    return [to_object(row) for row in connection.execute(query)][::-1]


def list_stream_objects(connection: Connection, stream_id: int) -> Sequence[RangeLocation]:
    """Return the stream's ranges in stream objects, in offset order."""
    return [to_location(row) for row in connection.execute(STREAM_OBJECTS, {"stream": stream_id})]


def list_compactable_streams(connection: Connection, node_id: int, objects_min: int, limit: int) -> Sequence[int]:
    """Return the streams that the node leads, and that have the most stream objects."""
    count = func.count()
    query = (
        select(ranges.c.stream_id)
        .join(streams, streams.c.stream_id == ranges.c.stream_id)
        .where(IS_STREAM_OBJECT, streams.c.leader == node_id)
        .group_by(ranges.c.stream_id)
        .having(count >= objects_min)
        .order_by(count.desc(), ranges.c.stream_id)
        .limit(limit)
    )
    return connection.execute(query).scalars().all()


def shared_objects(connection: Connection) -> frozenset[int]:
    """Return the stream objects that ranges of several streams refer to. The index of clones keeps this cheap."""
    other = ranges.alias()
    query = (
        select(ranges.c.object_id)
        .distinct()
        .where(ranges.c.source_stream_id != literal_column("0", Integer), IS_STREAM_OBJECT)
        .where(exists().where(other.c.object_id == ranges.c.object_id, other.c.stream_id != ranges.c.stream_id))
    )
    return frozenset(connection.execute(query).scalars())


def stream_bytes(connection: Connection, stream_ids: Collection[int]) -> Mapping[int, int]:
    """Return the bytes of each stream's live ranges."""
    query = select(ranges.c.stream_id, func.sum(ranges.c.size_bytes)).group_by(ranges.c.stream_id)
    sizes = {row[0]: int(row[1]) for row in select_in(connection, query, ranges.c.stream_id, stream_ids)}
    return {stream_id: sizes.get(stream_id, 0) for stream_id in stream_ids}


def object_ranges(connection: Connection, object_ids: Collection[int]) -> Mapping[int, Sequence[RangeLocation]]:
    """Return the live ranges of each existing object, by stream and offset."""
    located: dict[int, list[RangeLocation]] = {key: [] for key in find_objects(connection, object_ids)}
    for row in select_ids(connection, _LOCATED_BY_ID, object_ids):
        location = to_location(row)
        located[location.object.object_id].append(location)
    for locations in located.values():
        locations.sort(key=lambda item: (item.range.stream_id, item.range.start_offset))
    return located


def list_reapable(connection: Connection, now_ms: int, limit: int) -> Sequence[tuple[ObjectInfo, str]]:
    """Return prepared and destroyed objects past their deadline, by deadline."""
    rows = connection.execute(REAPABLE, {"now": now_ms, "most": limit})
    return [(to_object(row[:-1]), row[-1]) for row in rows]


def count_committed(connection: Connection) -> Mapping[str, int]:
    """Count the committed objects in each store."""
    query = select(objects.c.store, func.count()).where(objects.c.state == ObjectState.COMMITTED)
    return {row[0]: row[1] for row in connection.execute(query.group_by(objects.c.store))}


def count_objects(connection: Connection) -> Mapping[str, tuple[int, int]]:
    """Return count and bytes of each kind in each state."""
    total = func.coalesce(func.sum(objects.c.size_bytes), 0)
    query = select(objects.c.kind, objects.c.state, func.count(), total).group_by(objects.c.kind, objects.c.state)
    return {
        f"{ObjectKind(kind).name} {ObjectState(state).name.lower()}": (count, int(size))
        for kind, state, count, size in connection.execute(query)
    }


def list_objects(connection: Connection, after: int, limit: int) -> Sequence[ObjectInfo]:
    """Return a page of objects by id."""
    page = select(*OBJECT_COLUMNS).where(objects.c.object_id > after).order_by(objects.c.object_id).limit(limit)
    return [to_object(row) for row in connection.execute(page)]
