"""Statements that read the state for a manifest, and number the manifests."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, insert, literal_column, select, update

from anabranch.s3stream.catalog.acls import list_acls
from anabranch.s3stream.catalog.configs import list_configs
from anabranch.s3stream.catalog.detach import list_detached
from anabranch.s3stream.catalog.manifest_state import BorrowedRange, CatalogState, StreamState, TopicState
from anabranch.s3stream.catalog.migration import current_level
from anabranch.s3stream.catalog.nodes import list_all_wals
from anabranch.s3stream.catalog.rows import CHANGE, UPLOADS, ChangeKind
from anabranch.s3stream.catalog.schema import (
    cluster,
    counters,
    nodes,
    objects,
    partitions,
    ranges,
    streams,
    topics,
)
from anabranch.s3stream.catalog.table_rows import dump_tables
from anabranch.s3stream.catalog.tokens import list_tokens
from anabranch.s3stream.catalog.topics import parse_configs
from anabranch.s3stream.model import ObjectState

MANIFEST_COUNTER: Final = "manifest"
"""Counter of the manifests of all nodes. The other rows of the table count ids, and changes."""


def read_state(connection: Connection) -> tuple[int, CatalogState]:
    """Return the number of the last manifest begun, 0 if there is none, and the state that a manifest holds."""
    found = {row.name: row.next for row in connection.execute(select(counters.c.name, counters.c.next))}
    newest = found.pop(MANIFEST_COUNTER, 0)
    for name in [name for name in found if name in (CHANGE, *ChangeKind) or name.startswith(UPLOADS)]:
        del found[name]
    catalog_id = connection.execute(select(cluster.c.catalog_id)).scalar_one()
    state = CatalogState(
        catalog_id=bytes.fromhex(catalog_id) or bytes(16),
        schema_version=current_level(connection),
        counters=found,
        nodes={row.node_id: row.epoch for row in connection.execute(select(nodes).order_by(nodes.c.node_id))},
        wals=list_all_wals(connection),
        topics=_list_topics(connection),
        detached=list_detached(connection),
        configs=list_configs(connection),
        acls=list_acls(connection),
        tokens=list_tokens(connection),
        streams=_list_streams(connection),
        borrowed=_list_borrowed(connection),
        committed=_list_committed(connection),
        prepared=connection.execute(
            select(objects.c.object_id).where(objects.c.state == ObjectState.PREPARED).order_by(objects.c.object_id)
        )
        .scalars()
        .all(),
        tables=dump_tables(connection),
    )
    return newest, state


def last_manifest(connection: Connection) -> int:
    """Return the number of the last manifest begun, 0 if there is none."""
    return (
        connection.execute(select(counters.c.next).where(counters.c.name == MANIFEST_COUNTER)).scalar_one_or_none() or 0
    )


def next_number(connection: Connection, above: int) -> int:
    """Return a new number for a manifest, higher than all before and than `above`."""
    newest = last_manifest(connection)
    number = max(newest, above) + 1
    if newest == 0:
        connection.execute(insert(counters).values(name=MANIFEST_COUNTER, next=number))
    else:
        connection.execute(update(counters).where(counters.c.name == MANIFEST_COUNTER).values(next=number))
    return number


def _list_topics(connection: Connection) -> Sequence[TopicState]:
    members: dict[str, list[int]] = defaultdict(list)
    query = select(partitions.c.topic, partitions.c.stream_id).order_by(partitions.c.topic, partitions.c.idx)
    for name, stream_id in connection.execute(query):
        members[name].append(stream_id)
    heads = select(topics.c.name, topics.c.topic_id, topics.c.internal, topics.c.configs).order_by(topics.c.name)
    return [
        TopicState(name, topic_id, bool(internal), parse_configs(configs), members[name])
        for name, topic_id, internal, configs in connection.execute(heads)
    ]


def _list_streams(connection: Connection) -> Sequence[StreamState]:
    columns = [streams.c[name] for name in StreamState._fields]
    return [StreamState(*row) for row in connection.execute(select(*columns).order_by(streams.c.stream_id))]


def _list_borrowed(connection: Connection) -> Sequence[BorrowedRange]:
    columns = [ranges.c[name] for name in BorrowedRange._fields]
    # A literal, not a bound value: SQLite uses the partial index only for a constant.
    query = select(*columns).where(ranges.c.source_stream_id != literal_column("0"))
    return sorted(BorrowedRange(*row) for row in connection.execute(query))


def _list_committed(connection: Connection) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    query = select(objects.c.node_id, objects.c.object_id).where(objects.c.state == ObjectState.COMMITTED)
    for node_id, object_id in connection.execute(query.order_by(objects.c.node_id, objects.c.object_id)):
        found[node_id].append(object_id)
    return dict(found)
