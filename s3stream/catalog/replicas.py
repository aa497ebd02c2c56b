"""Statements by which a replica follows streams that other nodes have open. Each is the body of a transaction."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, bindparam, select

from anabranch.s3stream.catalog.rows import IDS, check_node, select_ids
from anabranch.s3stream.catalog.schema import streams
from anabranch.s3stream.catalog.values import StreamReading
from anabranch.s3stream.model import NodeIdentity

_HEADS: Final = select(
    streams.c.stream_id, streams.c.start_offset, streams.c.end_offset, streams.c.epoch, streams.c.leader_epoch
).where(streams.c.stream_id.in_(bindparam(IDS, expanding=True)))
_SNAPSHOTS: Final = select(streams.c.stream_id, streams.c.snapshot).where(
    streams.c.stream_id.in_(bindparam(IDS, expanding=True))
)


def read_streams(
    connection: Connection, node: NodeIdentity, known: Mapping[int, StreamReading | None]
) -> Mapping[int, StreamReading]:
    """Return the streams as they are now, those that exist, by id. Raises NodeFenced if `node` is.

    `known` are earlier readings, or None. A snapshot is read only if the stream's end or epoch is another one now: it
    belongs to the end. The others are None.
    """
    check_node(connection, node)
    found: dict[int, StreamReading] = {}
    for stream_id, *fields in select_ids(connection, _HEADS, known):
        found[stream_id] = StreamReading._make((stream_id, *fields, None))
    changed = []
    for stream_id, now in found.items():
        before = known[stream_id]
        if before is None or (before.end_offset, before.epoch) != (now.end_offset, now.epoch):
            changed.append(stream_id)
    for row in select_ids(connection, _SNAPSHOTS, changed):
        found[row.stream_id] = found[row.stream_id]._replace(snapshot=row.snapshot)
    return found
