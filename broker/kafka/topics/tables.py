"""The topics of a node that are tables. It is imported once there is one."""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from anabranch.broker.kafka.configs.table import is_enabled
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.tables.upkeep.context import TableTopic
from anabranch.tables.upkeep.options import DEFAULTS, TableOptions

UPLOAD_S_MAX: Final = 5.0
"""Longest time that a table waits for an upload: what is late comes with the next commit."""
LOOK_S: Final = 0.02

log = structlog.get_logger("tables")


class TopicTables:
    """Topics that are tables, and uploads of their partitions."""

    def __init__(self, topics: TopicManager, storage: S3Stream, node_id: int) -> None:
        self._topics: Final = topics
        self._storage: Final = storage
        self._node_id: Final = node_id
        self._seen = -1
        """Version of the topics of what was found last."""
        self._committed: Sequence[TableTopic] = ()
        self._followed: Sequence[TableTopic] = ()

    def committed(self) -> Sequence[TableTopic]:
        """Return those whose first partition this node leads."""
        self._look()
        return self._committed

    def followed(self) -> Sequence[TableTopic]:
        """Return those of which this node leads other partitions only."""
        self._look()
        return self._followed

    def request_upload(self, topic: TableTopic, *, waited_ms: int) -> None:
        """Request the upload of records that have waited for so long."""
        if any(self._storage.waiting_ms(stream.stream_id) >= waited_ms for stream in self._streams(topic)):
            self._storage.request_upload()

    async def upload(self, topic: TableTopic) -> None:
        """Upload all records of partitions that this node leads. Returns when they are committed, or after a while."""
        ends = {stream: stream.confirmed_offset for stream in self._streams(topic)}
        self.request_upload(topic, waited_ms=0)
        until_s = asyncio.get_running_loop().time() + UPLOAD_S_MAX
        while any(stream.committed_offset < end and stream.error is None for stream, end in ends.items()):
            if asyncio.get_running_loop().time() > until_s:
                return
            await asyncio.sleep(LOOK_S)

    def _streams(self, topic: TableTopic) -> Sequence[Stream]:
        found = self._topics.get(topic.topic_id)
        return () if found is None else found.streams

    def _look(self) -> None:
        if self._seen == self._topics.version:
            return
        self._seen = self._topics.version
        tables = [
            (topic, found)
            for topic in self._topics
            if is_enabled(topic.info.configs) and (found := _table_of(topic)) is not None
        ]
        first = [
            topic.partitions[0] is not None and topic.info.partitions[0].leader == self._node_id for topic, _ in tables
        ]
        self._committed = [found for (_, found), leads in zip(tables, first, strict=True) if leads]
        self._followed = [
            found for (topic, found), leads in zip(tables, first, strict=True) if not leads and topic.streams
        ]


def _table_of(topic: Topic) -> TableTopic | None:
    configs, config = topic.info.configs, topic.config
    try:
        options = TableOptions.parse(lambda name: configs.get(name, DEFAULTS[name]))
    except ValueError as error:  # accepted by a node of another version
        log.warning("a topic is no table here: its configs cannot be used", topic=topic.name, reason=str(error))
        return None
    return (
        None
        if options is None
        else TableTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            store=config.store,
            options=options,
            streams={each.index: each.stream_id for each in topic.info.partitions},
            is_compacted=config.compacted,
        )
    )
