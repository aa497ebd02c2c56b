"""Restores a catalog: inserts a rebuilt one into an empty database, or advances an older copy.

Each function is the body of one transaction.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, func, insert, select, update

from anabranch.s3stream.catalog.acls import insert_acls
from anabranch.s3stream.catalog.manifest_rows import MANIFEST_COUNTER
from anabranch.s3stream.catalog.manifest_state import TableRows, TopicState
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.rows import CHANGE, ENDED, chunks, count_uploads, replicas_text, set_uploads
from anabranch.s3stream.catalog.schema import (
    cluster,
    configs,
    counters,
    detached_partitions,
    detached_topics,
    nodes,
    objects,
    partitions,
    ranges,
    streams,
    topics,
    wals,
)
from anabranch.s3stream.catalog.table_rows import FILE_COUNTER, load_tables
from anabranch.s3stream.catalog.tokens import insert_tokens
from anabranch.s3stream.catalog.topics import NO_TIMESTAMP, NOBODY
from anabranch.s3stream.catalog.values import KEPT_FOREVER, AclRow, DetachedTopic, TokenRow, WalInfo
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import ObjectInfo, StreamRange

EMPTY: Final = (nodes, topics, detached_topics, streams, objects, wals)
"""Tables of which at least one has rows in a catalog that was used."""


class RestoredRange(NamedTuple):
    """A range of a stream, and the object that holds it."""

    object_id: int
    range: StreamRange
    source_stream_id: int
    """Stream id under which the object stores it; 0: the same stream."""


class RestoredStream(NamedTuple):
    """A stream with its snapshot and ranges."""

    stream_id: int
    epoch: int
    node_id: int
    leader: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    snapshot: bytes
    preferred: int
    replicas: tuple[int, ...]
    """Empty: the leader only."""
    ranges: Sequence[RestoredRange]


class RecoveredTopic(NamedTuple):
    """A new topic for a stream whose topic is unknown."""

    name: str
    topic_id: bytes
    stream_id: int


@dataclass(frozen=True, slots=True)
class CatalogContents:
    """All rows of a catalog, as values."""

    cluster: str
    catalog_id: bytes
    counters: Mapping[str, int]
    manifest: int
    """Number of the newest manifest."""
    progress: CatalogProgress
    """Numbers at which the catalog begins."""
    nodes: Mapping[int, int]
    """Epoch by node id."""
    wals: Sequence[WalInfo]
    topics: Sequence[TopicState]
    new_topics: Sequence[RecoveredTopic]
    detached: Sequence[DetachedTopic]
    configs: Mapping[tuple[str, str], Mapping[str, str]]
    acls: Sequence[AclRow]
    tokens: Sequence[TokenRow]
    streams: Sequence[RestoredStream]
    objects: Sequence[ObjectInfo]
    tables: Mapping[str, TableRows] = field(default_factory=dict)
    """All about topics' tables, by the name of the catalog's table."""


def is_empty(connection: Connection) -> bool:
    """Return whether the catalog, of this program's schema, is empty."""
    return not any(connection.execute(select(func.count()).select_from(table)).scalar_one() for table in EMPTY)


def restore(connection: Connection, wanted: CatalogContents) -> None:
    """Insert all rows. Raises CatalogError when the catalog is not empty."""
    if not is_empty(connection):
        raise CatalogError("the catalog is not empty: nothing was changed")
    connection.execute(update(cluster).values(catalog_id=wanted.catalog_id.hex()))
    for name, value in wanted.counters.items():
        _set_counter(connection, name, value)
    connection.execute(insert(counters).values(name=MANIFEST_COUNTER, next=wanted.manifest))
    _set_counter(connection, CHANGE, wanted.progress.change)
    for node_id, number in wanted.progress.uploads.items():
        set_uploads(connection, node_id, number)
    _insert(connection, nodes, (_node_row(*item) for item in wanted.nodes.items()))
    _insert(connection, wals, (_wal_row(wal) for wal in wanted.wals))
    _insert(connection, objects, (_object_row(info) for info in wanted.objects))
    _insert(connection, streams, (_stream_row(each) for each in wanted.streams))
    kinds = {info.object_id: int(info.kind) for info in wanted.objects}
    _insert(connection, ranges, (row for each in wanted.streams for row in _range_rows(each, kinds)))
    _insert(connection, topics, _topic_rows(wanted))
    _insert(connection, partitions, _partition_rows(wanted))
    _insert(connection, detached_topics, (_detached_row(topic) for topic in wanted.detached))
    _insert(
        connection,
        detached_partitions,
        (
            {"topic_id": topic.topic_id, "idx": index, "stream_id": stream_id}
            for topic in wanted.detached
            for index, stream_id in enumerate(topic.stream_ids)
        ),
    )
    _insert(
        connection,
        configs,
        ({"kind": kind, "name": name, "entries": _dump(entries)} for (kind, name), entries in wanted.configs.items()),
    )
    insert_acls(connection, wanted.acls)
    insert_tokens(connection, wanted.tokens)
    load_tables(connection, wanted.tables)


def _insert(connection: Connection, table: Table, rows: Iterator[Mapping[str, Any]]) -> None:
    for piece in chunks(rows):
        connection.execute(insert(table), [dict(row) for row in piece])


def _dump(entries: Mapping[str, str]) -> str:
    return json.dumps(dict(entries), sort_keys=True)


def _node_row(node_id: int, epoch: int) -> Mapping[str, Any]:
    return {
        "node_id": node_id,
        "epoch": epoch,
        "host": "",
        "port": 0,
        "lease_until_ms": ENDED,
        "lease_ms": 0,
        "host_name": "",
        "pid": 0,
        "lock_id": "",
    }


def _wal_row(wal: WalInfo) -> Mapping[str, Any]:
    return {
        "wal_id": wal.wal_id,
        "node_id": wal.node_id,
        "node_epoch": wal.node_epoch,
        "kind": wal.kind,
        "location": wal.location,
        "state": int(wal.state),
        "seen_ms": wal.seen_ms,
        "takeover": wal.takeover,
        "recoverer": NOBODY,
        "recoverer_epoch": 0,
    }


def _object_row(info: ObjectInfo) -> Mapping[str, Any]:
    row = {name: getattr(info, name) for name in ObjectInfo.__dataclass_fields__}
    return {**row, "kind": int(info.kind), "state": int(info.state), "cleaned": int(info.cleaned), "upload_id": ""}


def _stream_row(each: RestoredStream) -> Mapping[str, Any]:
    row = {name: getattr(each, name) for name in RestoredStream._fields if name != "ranges"}
    peak = max((item.range.max_timestamp_ms for item in each.ranges), default=NO_TIMESTAMP)
    # Who moved the start is unknown: DeleteRecords may have.
    return {
        **row,
        "replicas": replicas_text(each.replicas),
        "peak_timestamp_ms": peak,
        "deleted_offset": each.start_offset,
    }


def _range_rows(each: RestoredStream, kinds: Mapping[int, int]) -> Iterator[Mapping[str, Any]]:
    peak = NO_TIMESTAMP
    for object_id, span, source_stream_id in each.ranges:
        peak = max(peak, span.max_timestamp_ms)
        row = {name: getattr(span, name) for name in StreamRange.__dataclass_fields__}
        yield {
            **row,
            "object_id": object_id,
            "kind": kinds[object_id],
            "peak_timestamp_ms": peak,
            "source_stream_id": source_stream_id,
        }


def _topic_rows(wanted: CatalogContents) -> Iterator[Mapping[str, Any]]:
    for topic in wanted.topics:
        yield {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "internal": int(topic.internal),
            "configs": _dump(topic.configs),
        }
    for made in wanted.new_topics:
        yield {"name": made.name, "topic_id": made.topic_id, "internal": 0, "configs": _dump(KEPT_FOREVER)}


def _partition_rows(wanted: CatalogContents) -> Iterator[Mapping[str, Any]]:
    for topic in wanted.topics:
        for index, stream_id in enumerate(topic.stream_ids):
            yield {"topic": topic.name, "idx": index, "stream_id": stream_id}
    for made in wanted.new_topics:
        yield {"topic": made.name, "idx": 0, "stream_id": made.stream_id}


def _detached_row(topic: DetachedTopic) -> Mapping[str, Any]:
    return {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "internal": int(topic.internal),
        "configs": _dump(topic.configs),
        "detached_ms": topic.detached_ms,
    }


@dataclass(frozen=True, slots=True)
class Advance:
    """Increments for an older copy of a catalog, so that it reuses no id or epoch that was given out after the copy."""

    object_id: int
    """Lower bound of the next object's id."""
    manifest: int
    """Number of the newest manifest."""
    progress: CatalogProgress
    """Lower bounds: of the number of the last change, and of the uploads of the nodes."""
    node_epochs: Mapping[int, int]
    """Lower bounds of the nodes' epochs, by node id."""
    epochs_skipped: int
    producer_ids_skipped: int
    table_file_ids_skipped: int


def advance(connection: Connection, wanted: Advance) -> None:
    """Increase counters and epochs; none decreases."""
    found = {row.name: row.next for row in connection.execute(select(counters))}
    _set_counter(connection, "object", max(found["object"], wanted.object_id))
    _set_counter(connection, "producer", found["producer"] + wanted.producer_ids_skipped)
    _set_counter(connection, FILE_COUNTER, found[FILE_COUNTER] + wanted.table_file_ids_skipped)
    _set_counter(connection, CHANGE, max(found[CHANGE], wanted.progress.change))
    for node_id, number in wanted.progress.uploads.items():
        set_uploads(connection, node_id, max(number, count_uploads(connection, node_id)))
    if MANIFEST_COUNTER in found:
        _set_counter(connection, MANIFEST_COUNTER, max(found[MANIFEST_COUNTER], wanted.manifest))
    else:
        connection.execute(insert(counters).values(name=MANIFEST_COUNTER, next=wanted.manifest))
    skipped = wanted.epochs_skipped
    connection.execute(
        update(streams).values(epoch=streams.c.epoch + skipped, leader_epoch=streams.c.leader_epoch + skipped)
    )
    for node_id, epoch in connection.execute(select(nodes.c.node_id, nodes.c.epoch)).all():
        least = max(epoch, wanted.node_epochs.get(node_id, 0)) + skipped
        connection.execute(update(nodes).where(nodes.c.node_id == node_id).values(epoch=least))


def _set_counter(connection: Connection, name: str, value: int) -> None:
    connection.execute(update(counters).where(counters.c.name == name).values(next=value))
