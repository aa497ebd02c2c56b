"""Statements about tables. Each function is the body of one transaction; `TABLES.md` describes what they keep true."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)

from anabranch.s3stream.catalog.life_cycle import LifeCycle
from anabranch.s3stream.catalog.manifest_state import TableRows
from anabranch.s3stream.catalog.rows import CHANGE, IDS, check_node, chunks, select_ids, select_in, take_ids
from anabranch.s3stream.catalog.schema import (
    partitions,
    streams,
    table_files,
    table_partitions,
    table_schemas,
    table_snapshots,
    tables,
    topics,
)
from anabranch.s3stream.catalog.table_plans import TableFacts, TablePlan, find_repeat, plan_table_commit
from anabranch.s3stream.catalog.table_values import (
    NamedTable,
    NewTable,
    NewTableFile,
    OffsetBounds,
    TableCommit,
    TableFile,
    TableFileKind,
    TableInfo,
    TableRetention,
    TableSnapshot,
    TableState,
    TableTotals,
    table_file_key,
)
from anabranch.s3stream.errors import AlreadyExists, NotFound
from anabranch.s3stream.model import NodeIdentity, ObjectState

FILE_COUNTER: Final = "table_file"
FILE_COLUMNS: Final = tuple(table_files.c[field] for field in TableFile.__dataclass_fields__)
TABLE_COLUMNS: Final = tuple(tables.c[field] for field in TableInfo.__dataclass_fields__)


def _literal(value: int) -> ColumnElement[int]:
    """Return a literal: SQLite uses a partial index only for a constant, not for a bound value."""
    return literal_column(str(int(value)), Integer)


ALL: Final = (tables, table_schemas, table_partitions, table_snapshots, table_files)
"""Rows refer to rows of those before theirs."""
IS_COMMITTED: Final = table_files.c.state == _literal(ObjectState.COMMITTED)
IS_UNUSED: Final = table_files.c.state != _literal(ObjectState.COMMITTED)
IS_LIVE_DATA: Final = (
    (table_files.c.kind == _literal(TableFileKind.DATA)) & IS_COMMITTED & (table_files.c.removed == _literal(0))
)


def _at_rest_query() -> Select[*tuple[Any, ...]]:
    older = table_snapshots.alias()
    return (
        select(*TABLE_COLUMNS)
        .join(
            table_snapshots,
            (table_snapshots.c.table_id == tables.c.table_id)
            & (table_snapshots.c.snapshot_id == tables.c.snapshot_id)
            & (table_snapshots.c.committed_ms <= bindparam("before")),
        )
        .where(exists().where(older.c.table_id == tables.c.table_id, older.c.version < table_snapshots.c.version))
        .order_by(tables.c.name)
    )


# Statements that a node runs some times a second are built once.

_FILES: Final = select(*FILE_COLUMNS).where(table_files.c.file_id.in_(bindparam(IDS, expanding=True)))
_OF_TOPIC: Final = select(*TABLE_COLUMNS).where(tables.c.topic_id == bindparam("id"))
_AT_REST: Final = _at_rest_query()


@dataclass(frozen=True, slots=True)
class NewTableFiles:
    """Files of a table to be prepared: as many as there are kinds."""

    kinds: Sequence[TableFileKind]
    writer_id: str
    deadline_ms: int


def create_table(connection: Connection, wanted: NewTable, now_ms: int) -> TableInfo:
    """Insert a table with its first schema; one that exists with the same id is a success."""
    known = tables.c.table_id == wanted.table_id
    found = connection.execute(select(*TABLE_COLUMNS).where(known)).first()
    if found is not None:
        return _to_table(found)
    of_topic = select(topics.c.name, topics.c.configs).where(topics.c.topic_id == wanted.topic_id)
    topic = connection.execute(of_topic).first()
    if topic is None:
        raise NotFound(f"topic id {wanted.topic_id.hex()} does not exist: it gets no table")
    configs = json.loads(topic.configs)
    for name, value in wanted.topic_configs.items():
        if configs.get(name) != value:
            raise NotFound(f"{name} of topic {topic.name} is no longer {value}: no table is made")
    taken = (tables.c.topic_id == wanted.topic_id) | (tables.c.name == wanted.name)
    other = connection.execute(select(tables.c.name, tables.c.topic_id).where(taken)).first()
    if other is not None:
        if other.topic_id == wanted.topic_id:
            raise AlreadyExists(f"table {other.name!r} of this topic exists")
        raise AlreadyExists(f"table {other.name!r} of another topic exists: drop it first")
    row = {
        "table_id": wanted.table_id,
        "topic_id": wanted.topic_id,
        "name": wanted.name,
        "store": wanted.store,
        "location": wanted.location,
        "retention": int(wanted.retention),
        "options": json.dumps(dict(wanted.options), sort_keys=True),
        "created_ms": now_ms,
        "version": 0,
        "metadata_file": 0,
        "snapshot_id": 0,
    }
    connection.execute(insert(tables).values(row))
    connection.execute(insert(table_schemas).values(table_id=wanted.table_id, schema_id=1, content=wanted.schema))
    return _to_table(connection.execute(select(*TABLE_COLUMNS).where(known)).one())


def set_options(connection: Connection, table_id: bytes, options: Mapping[str, str]) -> None:
    """Replace the options of a table. Raises NotFound."""
    text = json.dumps(dict(options), sort_keys=True)
    if connection.execute(update(tables).where(tables.c.table_id == table_id).values(options=text)).rowcount != 1:
        raise NotFound(f"table {table_id.hex()} does not exist")


def list_tables(connection: Connection) -> Sequence[TableInfo]:
    """Return all tables by name."""
    return [_to_table(row) for row in connection.execute(select(*TABLE_COLUMNS).order_by(tables.c.name))]


def list_tables_at_rest(connection: Connection, before_ms: int) -> Sequence[TableInfo]:
    """Return the tables with more than one snapshot whose current one was committed up to `before_ms`."""
    return [_to_table(row) for row in connection.execute(_AT_REST, {"before": before_ms})]


def find_table_of(connection: Connection, topic_id: bytes) -> TableInfo | None:
    """Return the table of a topic, None if it has none."""
    row = connection.execute(_OF_TOPIC, {"id": topic_id}).first()
    return None if row is None else _to_table(row)


def read_table(connection: Connection, table_id: bytes) -> TableState:
    """Return a table with its schemas, bounds and snapshots. Raises NotFound."""
    info = _get_table(connection, table_id)
    schemas = select(table_schemas.c.content).where(table_schemas.c.table_id == table_id)
    snapshots = select(*(table_snapshots.c[name] for name in TableSnapshot._fields))
    snapshots = snapshots.where(table_snapshots.c.table_id == table_id).order_by(table_snapshots.c.version)
    return TableState(
        info=info,
        schemas=connection.execute(schemas.order_by(table_schemas.c.schema_id)).scalars().all(),
        bounds=_bounds(connection, table_id),
        snapshots=[TableSnapshot(*row) for row in connection.execute(snapshots)],
    )


def count_data(connection: Connection) -> Mapping[bytes, TableTotals]:
    """Count the live data files of each table that has some."""
    sums = (func.sum(table_files.c[name]) for name in ("record_count", "size_bytes"))
    query = select(table_files.c.table_id, func.count(), *sums).where(IS_LIVE_DATA).group_by(table_files.c.table_id)
    return {table_id: TableTotals(*map(int, counts)) for table_id, *counts in connection.execute(query)}


def find_table(connection: Connection, name: str) -> NamedTable:
    """Return the table with a name. Raises NotFound."""
    row = connection.execute(select(*TABLE_COLUMNS).where(tables.c.name == name)).first()
    if row is None:
        raise NotFound(f"table {name!r} does not exist")
    info = _to_table(row)
    return NamedTable(info, find_files(connection, [info.metadata_file]).get(info.metadata_file))


def list_data_files(
    connection: Connection, table_id: bytes, idx: int, start_offset: int, limit: int
) -> Sequence[TableFile]:
    """Return the first live data files of a partition with an offset from `start_offset` on, in order."""
    mine = (IS_LIVE_DATA, table_files.c.table_id == table_id, table_files.c.idx == idx)
    begin = table_files.c.start_offset
    # The file that the offset lies inside of, or before, begins with the last start that is not above it.
    first = select(func.max(begin)).where(*mine, begin <= start_offset).scalar_subquery()
    query = select(*FILE_COLUMNS).where(*mine, begin >= func.coalesce(first, start_offset))
    query = query.where(table_files.c.end_offset > start_offset)
    return [_to_file(row) for row in connection.execute(query.order_by(table_files.c.start_offset).limit(limit))]


def list_live_files(connection: Connection, table_id: bytes, after: tuple[int, int], limit: int) -> Sequence[TableFile]:
    """Return the first live data files past a partition and start offset, in this order."""
    place = tuple_(table_files.c.idx, table_files.c.start_offset)
    query = select(*FILE_COLUMNS).where(IS_LIVE_DATA, table_files.c.table_id == table_id, place > after)
    query = query.order_by(table_files.c.idx, table_files.c.start_offset).limit(limit)
    return [_to_file(row) for row in connection.execute(query)]


def list_manifests(connection: Connection, table_id: bytes) -> Sequence[TableFile]:
    """Return the live manifests and the live manifest list, by the commit that has added them and id."""
    mine = (
        table_files.c.table_id == table_id,
        table_files.c.kind == int(TableFileKind.MANIFEST),
        IS_COMMITTED,
        table_files.c.removed == _literal(0),
    )
    query = select(*FILE_COLUMNS).where(*mine).order_by(table_files.c.added, table_files.c.file_id)
    return [_to_file(row) for row in connection.execute(query)]


def list_trimmed_files(connection: Connection, table_id: bytes, limit: int) -> Sequence[TableFile]:
    """Return live data files that are wholly before the starts of their streams, by partition and offset.

    None of a table that keeps its files.
    """
    query = (
        select(*FILE_COLUMNS)
        .join(tables, tables.c.table_id == table_files.c.table_id)
        .join(topics, topics.c.topic_id == tables.c.topic_id)
        .join(partitions, (partitions.c.topic == topics.c.name) & (partitions.c.idx == table_files.c.idx))
        .join(streams, streams.c.stream_id == partitions.c.stream_id)
        .where(IS_LIVE_DATA, tables.c.table_id == table_id, tables.c.retention == int(TableRetention.TOPIC))
        .where(table_files.c.end_offset <= streams.c.start_offset)
        .order_by(table_files.c.idx, table_files.c.start_offset)
        .limit(limit)
    )
    return [_to_file(row) for row in connection.execute(query)]


def prepare_files(
    connection: Connection, table_id: bytes, wanted: NewTableFiles, node: NodeIdentity
) -> Sequence[TableFile]:
    """Insert prepared files under new ids and keys, in the order of their kinds."""
    check_node(connection, node)
    table = _get_table(connection, table_id)
    if not wanted.kinds:
        return []
    first = take_ids(connection, FILE_COUNTER, len(wanted.kinds))
    fresh = {
        "table_id": table_id,
        "state": int(ObjectState.PREPARED),
        "store": table.store,
        "size_bytes": 0,
        "crc32c": 0,
        "idx": -1,
        "start_offset": 0,
        "end_offset": 0,
        "record_count": 0,
        "schema_id": 0,
        "node_id": node.node_id,
        "writer_id": wanted.writer_id,
        "upload_id": "",
        "deadline_ms": wanted.deadline_ms,
        "committed_ms": 0,
        "added": 0,
        "removed": 0,
    }
    ids = range(first, first + len(wanted.kinds))
    rows = [
        {"file_id": file_id, "kind": int(kind), "file_key": table_file_key(table.location, kind, file_id), **fresh}
        for file_id, kind in zip(ids, wanted.kinds, strict=True)
    ]
    connection.execute(insert(table_files), rows)
    found = find_files(connection, ids)
    return [found[file_id] for file_id in ids]


def commit_table(connection: Connection, commit: TableCommit) -> int:
    """Apply a commit's plan; one that was applied before succeeds and changes nothing. Returns the version it made."""
    found = find_files(connection, [*(item.file_id for item in commit.added), *commit.removed])
    repeated = find_repeat(commit, found)
    if repeated is not None:
        return repeated
    check_node(connection, commit.node)
    facts = _facts(connection, commit, found)
    plan = plan_table_commit(commit, facts)
    take_ids(connection, CHANGE, 1)  # a catalog that has forgotten the commit shows it
    if commit.schema:
        row = {"table_id": commit.table_id, "schema_id": facts.schema_id + 1, "content": commit.schema}
        connection.execute(insert(table_schemas).values(row))
    _remove_files(connection, [*commit.removed, facts.info.metadata_file], plan.version)
    _add_files(connection, commit, plan.version)
    _move_bounds(connection, commit.table_id, plan.bounds, facts.bounds.keys())
    pointer: dict[str, Any] = {"version": plan.version, "metadata_file": plan.metadata_file}
    if commit.snapshot_id:
        pointer["snapshot_id"] = commit.snapshot_id
        row = {"table_id": commit.table_id, "version": plan.version, "snapshot_id": commit.snapshot_id}
        connection.execute(insert(table_snapshots).values(**row, committed_ms=commit.now_ms))
    connection.execute(update(tables).where(tables.c.table_id == commit.table_id).values(pointer))
    _expire_snapshots(connection, commit, plan)
    return plan.version


def _facts(connection: Connection, commit: TableCommit, found: Mapping[int, TableFile]) -> TableFacts:
    table_id = commit.table_id
    info = _get_table(connection, table_id)
    newest = select(func.max(table_schemas.c.schema_id)).where(table_schemas.c.table_id == table_id)
    versions = select(table_snapshots.c.version).where(table_snapshots.c.table_id == table_id)
    members = (
        select(partitions.c.idx, streams.c.start_offset, streams.c.end_offset)
        .join(topics, topics.c.name == partitions.c.topic)
        .join(streams, streams.c.stream_id == partitions.c.stream_id)
        .where(topics.c.topic_id == info.topic_id)
    )
    return TableFacts(
        info=info,
        schema_id=connection.execute(newest).scalar_one(),
        snapshot_versions=connection.execute(versions.order_by(table_snapshots.c.version)).scalars().all(),
        files=found,
        bounds=_bounds(connection, table_id),
        streams={idx: OffsetBounds(*bounds) for idx, *bounds in connection.execute(members)},
    )


def _remove_files(connection: Connection, file_ids: Sequence[int], version: int) -> None:
    for piece in chunks(file_ids):
        connection.execute(update(table_files).where(table_files.c.file_id.in_(piece)).values(removed=version))


def _add_files(connection: Connection, commit: TableCommit, version: int) -> None:
    fields = [name for name in NewTableFile.__dataclass_fields__ if name != "file_id"]
    changed = update(table_files).where(table_files.c.file_id == bindparam("key"))
    changed = changed.values(
        **{name: bindparam(f"new_{name}") for name in fields},
        state=int(ObjectState.COMMITTED),
        deadline_ms=0,
        committed_ms=commit.now_ms,
        upload_id="",
        added=version,
    )
    rows = [{"key": item.file_id, **{f"new_{name}": getattr(item, name) for name in fields}} for item in commit.added]
    connection.execute(changed, rows)


def _move_bounds(
    connection: Connection, table_id: bytes, bounds: Mapping[int, OffsetBounds], known: Collection[int]
) -> None:
    values: dict[str, BindParameter[int]] = {
        "start_offset": bindparam("new_start"),
        "end_offset": bindparam("new_end"),
    }
    moved = [
        {"key": idx, "new_start": each.start_offset, "new_end": each.end_offset}
        for idx, each in bounds.items()
        if idx in known
    ]
    if moved:
        mine = (table_partitions.c.table_id == table_id, table_partitions.c.idx == bindparam("key"))
        connection.execute(update(table_partitions).where(*mine).values(values), moved)
    fresh = [{"table_id": table_id, "idx": idx, **each._asdict()} for idx, each in bounds.items() if idx not in known]
    if fresh:
        connection.execute(insert(table_partitions), fresh)


def _expire_snapshots(connection: Connection, commit: TableCommit, plan: TablePlan) -> None:
    """Delete expired snapshots, and destroy the files that none of the others names."""
    mine = table_snapshots.c.table_id == commit.table_id
    connection.execute(delete(table_snapshots).where(mine, table_snapshots.c.version < plan.oldest))
    unneeded = (
        table_files.c.table_id == commit.table_id,
        IS_COMMITTED,
        table_files.c.removed != _literal(0),
        table_files.c.removed <= plan.oldest,
    )
    destroyed = {"state": int(ObjectState.DESTROYED), "deadline_ms": commit.delete_after_ms}
    connection.execute(update(table_files).where(*unneeded).values(destroyed))


def drop_table(connection: Connection, table_id: bytes, delete_after_ms: int, *, keep_files: bool) -> None:
    """Delete a table's rows, and destroy its files, or leave those in the store that were committed."""
    drop_tables(connection, [table_id], delete_after_ms, keep_files=keep_files)


def drop_tables_of(connection: Connection, topic_ids: Collection[bytes], delete_after_ms: int) -> None:
    """Drop the tables of deleted topics with their files, unless a table keeps them."""
    query = select(tables.c.table_id).where(tables.c.retention == int(TableRetention.TOPIC))
    ids = [row[0] for row in select_in(connection, query, tables.c.topic_id, topic_ids)]
    if ids:
        drop_tables(connection, ids, delete_after_ms, keep_files=False)


def drop_tables(connection: Connection, ids: Sequence[bytes], delete_after_ms: int, *, keep_files: bool) -> None:
    """Drop several tables, as `drop_table`."""
    # An unanswered PUT of a prepared file may still land: it is deleted no earlier than it would have expired.
    later = case((table_files.c.deadline_ms > delete_after_ms, table_files.c.deadline_ms), else_=delete_after_ms)
    destroyed = {"state": int(ObjectState.DESTROYED), "deadline_ms": later}
    for piece in chunks(ids):
        theirs = table_files.c.table_id.in_(piece)
        if keep_files:
            # All that its last metadata names, older snapshots included.
            connection.execute(delete(table_files).where(theirs, IS_COMMITTED))
        not_yet = table_files.c.state != int(ObjectState.DESTROYED)
        connection.execute(update(table_files).where(theirs, not_yet).values(destroyed))
        for table in (table_snapshots, table_partitions, table_schemas, tables):
            connection.execute(delete(table).where(table.c.table_id.in_(piece)))


def list_files(connection: Connection, after: int, limit: int) -> Sequence[TableFile]:
    """Return the first files, of any table and in any state, with ids above `after`, by id."""
    query = select(*FILE_COLUMNS).where(table_files.c.file_id > after).order_by(table_files.c.file_id).limit(limit)
    return [_to_file(row) for row in connection.execute(query)]


def find_files(connection: Connection, file_ids: Collection[int]) -> dict[int, TableFile]:
    """Return the files that exist, by id."""
    return {row.file_id: _to_file(row) for row in select_ids(connection, _FILES, file_ids)}


def list_reapable_files(connection: Connection, now_ms: int, limit: int) -> Sequence[TableFile]:
    """Return prepared and destroyed files past their deadline that no unexpired snapshot names, by deadline."""
    named = exists().where(
        table_snapshots.c.table_id == table_files.c.table_id,
        table_snapshots.c.version >= table_files.c.added,
        table_snapshots.c.version < table_files.c.removed,
        table_files.c.added > 0,
    )
    query = (
        select(*FILE_COLUMNS)
        .where(IS_UNUSED, table_files.c.deadline_ms <= now_ms, ~named)
        .order_by(table_files.c.deadline_ms, table_files.c.file_id)
        .limit(limit)
    )
    return [_to_file(row) for row in connection.execute(query)]


LIFE_CYCLE: Final = LifeCycle("file", table_files, table_files.c.file_id, find_files)


def dump_tables(connection: Connection) -> Mapping[str, TableRows]:
    """Return all rows about tables, by the name of the catalog's table; none if no file was ever prepared."""
    found = {}
    for table in ALL:
        rows = connection.execute(select(table).order_by(*table.primary_key.columns))
        found[table.name] = TableRows(tuple(table.columns.keys()), [tuple(row) for row in rows])
    return found if any(each.rows for each in found.values()) else {}


def load_tables(connection: Connection, dumped: Mapping[str, TableRows]) -> None:
    """Insert the rows of `dump_tables`, of this schema or an older one."""
    for table in ALL:
        columns, rows = dumped.get(table.name, TableRows((), ()))
        for piece in chunks(rows):
            connection.execute(insert(table), [dict(zip(columns, row, strict=True)) for row in piece])


def _get_table(connection: Connection, table_id: bytes) -> TableInfo:
    row = connection.execute(select(*TABLE_COLUMNS).where(tables.c.table_id == table_id)).first()
    if row is None:
        raise NotFound(f"table id {table_id.hex()} does not exist: it was never created, or was dropped")
    return _to_table(row)


def _bounds(connection: Connection, table_id: bytes) -> Mapping[int, OffsetBounds]:
    columns = (table_partitions.c.idx, table_partitions.c.start_offset, table_partitions.c.end_offset)
    rows = connection.execute(select(*columns).where(table_partitions.c.table_id == table_id))
    return {idx: OffsetBounds(*bounds) for idx, *bounds in rows}


def _to_table(row: Row[*tuple[Any, ...]]) -> TableInfo:
    fields = dict(row._mapping)  # noqa: SLF001 - the name is public in SQLAlchemy
    fields["retention"] = TableRetention(fields["retention"])
    fields["options"] = json.loads(fields["options"])
    return TableInfo(**fields)


def _to_file(row: Row[*tuple[Any, ...]]) -> TableFile:
    fields = dict(row._mapping)  # noqa: SLF001 - the name is public in SQLAlchemy
    fields["kind"] = TableFileKind(fields["kind"])
    fields["state"] = ObjectState(fields["state"])
    return TableFile(**fields)
