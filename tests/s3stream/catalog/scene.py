"""A catalog with a node, a topic and open streams, and short ways to upload and compact in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import CompactionCommit, TopicInfo, UploadCommit
from s3stream.model import NewObject, ObjectKind, ObjectState, RangeLocation, StreamRange

NODE = 1
NOW = 1_000
DEADLINE = 5_000
LATER = 9_000


def span(stream_id: int, start: int, end: int, *, timestamp: int = 7, records: int | None = None) -> StreamRange:
    """A range of `end - start` records of 10 bytes."""
    count = end - start if records is None else records
    return StreamRange(stream_id, start, end, count, 10 * count, timestamp)


@dataclass
class Scene:
    catalog: Catalog
    epoch: int
    streams: list[int]
    topic: TopicInfo

    @classmethod
    async def make(cls, catalog: Catalog, partitions: int = 3) -> Self:
        node = await catalog.register_node(NODE, "localhost", 9092, now_ms=NOW, lease_ms=100)
        topic = await catalog.create_topic(
            "t", b"t" * 16, partitions=partitions, configs={}, leader=NODE, internal=False
        )
        streams = [partition.stream_id for partition in topic.partitions]
        await catalog.open_streams(streams, node_id=NODE, node_epoch=node.epoch)
        return cls(catalog, node.epoch, streams, topic)

    async def prepare(self, count: int = 1, **facts: Any) -> Sequence[int]:
        return await self.catalog.prepare_objects(
            count,
            **facts,
            node_id=NODE,
            node_epoch=self.epoch,
            writer_id="writer",
            store="main",
            now_ms=NOW,
            deadline_ms=DEADLINE,
        )

    async def new_objects(
        self, *groups: Sequence[StreamRange], kinds: Sequence[ObjectKind] | None = None
    ) -> list[NewObject]:
        """Prepare an object for each group of ranges: an SO where the group is of one stream, else an SSO."""
        ids = await self.prepare(len(groups))
        return [
            NewObject(
                object_id=object_id,
                kind=kinds[index] if kinds else _kind(group),
                size_bytes=sum(item.size_bytes for item in group) + 48,
                ranges=group,
            )
            for index, (object_id, group) in enumerate(zip(ids, groups, strict=True))
        ]

    def upload_commit(
        self, objects: Sequence[NewObject], snapshots: Mapping[int, bytes] | None = None, stream_epoch: int = 1
    ) -> UploadCommit:
        streams = {item.stream_id for o in objects for item in o.ranges} | set(snapshots or {})
        epochs = dict.fromkeys(streams, stream_epoch)
        return UploadCommit(NODE, self.epoch, objects, epochs, snapshots or {}, NOW)

    async def upload(
        self, *groups: Sequence[StreamRange], kinds: Sequence[ObjectKind] | None = None
    ) -> list[NewObject]:
        objects = await self.new_objects(*groups, kinds=kinds)
        await self.catalog.commit_upload(self.upload_commit(objects))
        return objects

    def compaction(self, inputs: Sequence[NewObject], outputs: Sequence[NewObject]) -> CompactionCommit:
        return CompactionCommit(NODE, self.epoch, [o.object_id for o in inputs], outputs, NOW, LATER)

    async def compact(self, inputs: Sequence[NewObject], *groups: Sequence[StreamRange]) -> list[NewObject]:
        outputs = await self.new_objects(*groups)
        await self.catalog.commit_compaction(self.compaction(inputs, outputs))
        return outputs

    async def bounds(self, stream_id: int) -> list[tuple[int, int]]:
        """All the committed ranges of a stream."""
        found = await self.catalog.find_ranges(stream_id, 0, 2**62, limit=1_000)
        return [(item.range.start_offset, item.range.end_offset) for item in found]

    async def state(self, item: NewObject) -> tuple[ObjectState, int]:
        """State and deadline of an object."""
        info = (await self.catalog.get_objects([item.object_id]))[item.object_id]
        return info.state, info.deadline_ms


def _kind(group: Sequence[StreamRange]) -> ObjectKind:
    return ObjectKind.SO if len({item.stream_id for item in group}) == 1 else ObjectKind.SSO


def bounds_of(locations: Sequence[RangeLocation]) -> list[tuple[int, int]]:
    return [(item.range.start_offset, item.range.end_offset) for item in locations]
