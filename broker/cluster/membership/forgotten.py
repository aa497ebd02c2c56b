"""The report of a node whose catalog has gone back: the lost changes, as far as this node knows them."""

from collections.abc import Iterable
from typing import Final

import structlog

from anabranch.broker.kafka.topics.topic import Topic
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import StorageError

SHOWN: Final = 100
"""Partitions that are named."""
_log = structlog.get_logger("node")


async def report_forgotten(catalog: Catalog, storage: S3Stream, topics: Iterable[Topic]) -> None:
    """Name the partitions that are not as this node left them, and keep in the store that the catalog has gone back."""
    streams = {stream.stream_id: stream for topic in topics for stream in topic.streams}
    try:
        await storage.marks.write(catalog.seen)
    except StorageError as error:
        _log.warning("the store does not keep that the catalog has gone back", reason=str(error))
    try:
        infos = await catalog.get_streams(list(streams))
    except StorageError as error:
        _log.warning("what the catalog has forgotten is not known", reason=str(error))
        return
    owner = storage.handovers.owner
    changed = [
        (stream, infos.get(stream_id))
        for stream_id, stream in streams.items()
        if (info := infos.get(stream_id)) is None
        or info.end_offset < stream.committed_offset
        or not info.is_held_by(owner)
    ]
    for stream, info in changed[:SHOWN]:
        _log.error(
            "a partition that the catalog has forgotten a part of",
            partition=stream.label,
            known_to_offset=None if info is None else info.end_offset,
            uploaded_to_offset=stream.committed_offset,
        )
    if len(changed) > SHOWN:
        _log.error("more partitions that the catalog has forgotten a part of", partitions=len(changed) - SHOWN)
