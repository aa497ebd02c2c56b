"""Statements by which a node follows changes that other nodes make. Each function is the body of one transaction."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from anabranch.s3stream.catalog.nodes import list_nodes
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.rows import CHANGE, COUNTERS, UPLOADS, ChangeKind
from anabranch.s3stream.catalog.schema import counters, detached_topics, partitions, streams, topics
from anabranch.s3stream.catalog.topics import list_topics
from anabranch.s3stream.catalog.values import CatalogChanges, TopicInfo


def read_changes(connection: Connection, seen: int) -> CatalogChanges | None:
    """Return what has changed since the change with the number `seen`; None if nothing has."""
    last: dict[str, int] = dict(connection.execute(COUNTERS).all())
    version = last[CHANGE]
    if version == seen:
        return None
    removed = last[ChangeKind.DELETION] > seen
    return CatalogChanges(
        version=version,
        nodes=list_nodes(connection),
        topics=_changed_topics(connection, seen),
        topic_ids=frozenset(connection.execute(select(topics.c.topic_id)).scalars()) if removed else None,
        detached_ids=frozenset(connection.execute(select(detached_topics.c.topic_id)).scalars()) if removed else (),
        configs_changed=last[ChangeKind.CONFIG] > seen,
        acls_changed=last[ChangeKind.ACL] > seen,
        tokens_changed=last[ChangeKind.TOKEN] > seen,
        secret_changed=last[ChangeKind.SECRET] > seen,
    )


def last_change(connection: Connection) -> int:
    """Return the number of the last change."""
    number: int = connection.execute(select(counters.c.next).where(counters.c.name == CHANGE)).scalar_one()
    return number


def read_progress(connection: Connection) -> CatalogProgress:
    """Return how far the catalog has come."""
    found: dict[str, int] = dict(connection.execute(COUNTERS).all())
    uploads = {int(name.removeprefix(UPLOADS)): number for name, number in found.items() if name.startswith(UPLOADS)}
    return CatalogProgress(found[CHANGE], uploads)


def _changed_topics(connection: Connection, seen: int) -> Sequence[TopicInfo]:
    moved = (
        select(partitions.c.topic)
        .join(streams, streams.c.stream_id == partitions.c.stream_id)
        .where(streams.c.changed > seen)
    )
    return tuple(list_topics(connection, select(topics.c.name).where(topics.c.changed > seen).union(moved)))
