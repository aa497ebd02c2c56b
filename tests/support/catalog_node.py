"""A node in a catalog, without a process: create a topic, prepare objects, commit them.

    node = UploadingNode(catalog, store)
    (stream,) = await node.start(1)                          # registers, creates topic `t`, opens its streams
    await node.upload((ObjectKind.SO, [node.batch(stream, 1000)]))
    batches = (await node.contents())[stream]

`MetadataNode` does the same with objects that only the catalog has, for tests of the catalog.
"""

import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from anabranch.compaction.context import CompactionContext
from anabranch.compaction.service import CompactionService
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.schema import streams
from anabranch.s3stream.catalog.values import CompactionCommit, OpenStream, StreamTransfer, TopicInfo, UploadCommit
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import (
    NewObject,
    NodeIdentity,
    ObjectInfo,
    ObjectKind,
    ObjectState,
    RangeLocation,
    StreamBatch,
    StreamOwner,
    StreamRange,
    object_key,
)
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.object.reader import read_index
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.store.interface import ObjectStore
from tests.support.clock import ManualClock
from tests.support.memory_store import MemoryStore

CLUSTER: Final = "test"
NODE_ID: Final = 1
WAL_ID: Final = "00000000000000a1"
"""Log of the nodes that tests make up."""
HOUR_MS: Final = 3_600_000
NOW, DEADLINE, LATER = 1_000, 5_000, 9_000
"""Times of a `MetadataNode`: of all its calls, of the expiry of prepared objects, of the deletion of replaced ones."""


async def hand_over(catalog: Catalog, stream_ids: Sequence[int], leader: int) -> None:
    """Do what lets another node open streams: their owner has released them, and `leader` leads them."""
    released = streams.update().where(streams.c.stream_id.in_(stream_ids)).values(node_id=-1, wal_id="", leader=leader)
    await catalog._database.write(lambda connection: connection.execute(released).close())  # noqa: SLF001


async def transfer(catalog: Catalog, wanted: StreamTransfer) -> OpenStream:
    """Transfer a stream; raises the error that it is answered with."""
    (answer,) = await catalog.transfer_streams([wanted])
    if isinstance(answer, OpenStream):
        return answer
    raise answer


class CatalogNode:
    """A node in the catalog, after `start` or `register` has been called."""

    prepare_ttl_ms = HOUR_MS
    delete_delay_ms = 0
    topic: TopicInfo
    """The topic `t` as `start` created it."""

    def __init__(self, catalog: Catalog, clock: ManualClock | None = None, *, node_id: int = NODE_ID) -> None:
        self.catalog = catalog
        self.clock = clock or ManualClock()
        self.node_id = node_id
        self.epoch = 0
        self.streams: list[int] = []
        """Streams of the topic `t`, in the order of partitions."""
        self.stream_epochs: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        """End offsets of opened streams."""
        self._writers = 0

    @property
    def identity(self) -> NodeIdentity:
        """The last registration."""
        return NodeIdentity(self.node_id, self.epoch)

    @property
    def store_name(self) -> str:
        """Name of the store of prepared objects."""
        return "main"

    async def start(self, partitions: int) -> Sequence[int]:
        """Register, create the topic `t` and open its streams; returns their ids."""
        await self.register()
        self.topic = await self.create_topic("t", partitions)
        self.streams = [partition.stream_id for partition in self.topic.partitions]
        return self.streams

    async def register(self) -> None:
        """Register in the catalog, which gives the node a new epoch."""
        node = await self.catalog.register_node(
            self.node_id, "localhost", 9092, now_ms=self.clock.ms, lease_ms=10 * HOUR_MS
        )
        self.epoch = node.epoch

    async def create_topic(self, name: str, partitions: int) -> TopicInfo:
        """Create a topic and open its streams."""
        topic = await self.catalog.create_topic(
            name, topic_id_of(name), partitions=partitions, configs={}, leader=self.node_id, internal=False
        )
        await self.open_streams([partition.stream_id for partition in topic.partitions])
        return topic

    async def open_streams(self, ids: Sequence[int]) -> None:
        """Open streams: each gets a new epoch."""
        opened = await self.catalog.open_streams(ids, StreamOwner(self.node_id, self.epoch, WAL_ID))
        for each in opened:
            self.stream_epochs[each.info.stream_id] = each.info.epoch
            self.ends[each.info.stream_id] = each.info.end_offset

    def new_writer_id(self) -> str:
        """A fresh id for objects."""
        self._writers += 1
        return f"w{self._writers}"

    async def prepare(
        self, count: int = 1, *, writer_id: str = "writer", oldest_data_ms: int = 0, cleaned: bool = False
    ) -> Sequence[int]:
        """Prepare objects; returns their ids."""
        return await self.catalog.prepare_objects(
            count,
            oldest_data_ms=oldest_data_ms,
            cleaned=cleaned,
            node=self.identity,
            writer_id=writer_id,
            store=self.store_name,
            now_ms=self.clock.ms,
            deadline_ms=self.clock.ms + self.prepare_ttl_ms,
        )

    def upload_commit(
        self,
        objects: Sequence[NewObject],
        snapshots: Mapping[int, bytes] | None = None,
        stream_epoch: int | None = None,
    ) -> UploadCommit:
        """A commit of objects, with the node's epochs of their streams, or `stream_epoch`."""
        streams = {each.stream_id for item in objects for each in item.ranges} | set(snapshots or {})
        epochs = {
            stream: self.stream_epochs.get(stream, 1) if stream_epoch is None else stream_epoch for stream in streams
        }
        return UploadCommit(self.identity, objects, epochs, snapshots or {}, self.clock.ms)

    def compaction(self, inputs: Sequence[NewObject | ObjectInfo], outputs: Sequence[NewObject]) -> CompactionCommit:
        """A commit that replaces some objects by others."""
        ids, now_ms = [each.object_id for each in inputs], self.clock.ms
        return CompactionCommit(self.identity, ids, outputs, now_ms, now_ms + self.delete_delay_ms)

    async def find_topic(self, name: str = "t") -> TopicInfo:
        """The topic with that name."""
        (found,) = [each for each in await self.catalog.list_topics() if each.name == name]
        return found

    async def trim(self, stream: int, start: int) -> None:
        """Trim a stream to begin at `start`."""
        now_ms = self.clock.ms
        await self.catalog.trim_stream(stream, self.stream_epochs[stream], start, now_ms=now_ms, delete_after_ms=now_ms)


class MetadataNode(CatalogNode):
    """A node whose objects exist in the catalog but in no store. Its clock stays at `NOW`."""

    prepare_ttl_ms = DEADLINE - NOW
    delete_delay_ms = LATER - NOW

    @classmethod
    async def started(cls, catalog: Catalog, partitions: int = 3) -> Self:
        """Register, and create the topic `t`."""
        node = cls(catalog, ManualClock(NOW))
        await node.start(partitions)
        return node

    async def new_objects(
        self, *groups: Sequence[StreamRange], kinds: Sequence[ObjectKind] | None = None
    ) -> list[NewObject]:
        """Prepare an object for each group of ranges: an SO if the group has one stream, otherwise an SSO."""
        ids = await self.prepare(len(groups))
        return [
            NewObject(
                object_id=object_id,
                kind=kinds[index] if kinds else kind_of(group),
                size_bytes=sum(item.size_bytes for item in group) + 48,
                ranges=group,
            )
            for index, (object_id, group) in enumerate(zip(ids, groups, strict=True))
        ]

    async def upload(
        self, *groups: Sequence[StreamRange], kinds: Sequence[ObjectKind] | None = None
    ) -> list[NewObject]:
        """Commit an object for each group of ranges."""
        objects = await self.new_objects(*groups, kinds=kinds)
        await self.catalog.commit_upload(self.upload_commit(objects))
        return objects

    async def compact(self, inputs: Sequence[NewObject], *groups: Sequence[StreamRange]) -> list[NewObject]:
        """Replace objects by one new object for each group of ranges."""
        outputs = await self.new_objects(*groups)
        await self.catalog.commit_compaction(self.compaction(inputs, outputs))
        return outputs

    async def bounds(self, stream_id: int) -> list[tuple[int, int]]:
        """Start and end offsets of all the committed ranges of a stream."""
        return bounds_of(await self.catalog.find_ranges(stream_id, 0, 2**62, limit=1_000))

    async def state(self, item: NewObject) -> tuple[ObjectState, int]:
        """State and deadline of an object."""
        info = (await self.catalog.get_objects([item.object_id]))[item.object_id]
        return info.state, info.deadline_ms


class UploadingNode(CatalogNode):
    """A node that writes objects to a store as an uploader does, and reads them as a consumer does."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, clock: ManualClock | None = None, *, node_id: int = NODE_ID
    ) -> None:
        super().__init__(catalog, clock, node_id=node_id)
        self.store = store

    @property
    def store_name(self) -> str:
        """Name of the store of prepared objects."""
        return self.store.name

    def batch(self, stream: int, size: int, *, count: int = 10, seed: int | None = None) -> StreamBatch:
        """The next batch of a stream; its bytes are determined by stream and offset."""
        base = self.ends[stream]
        self.ends[stream] = base + count
        payload = random.Random(hash((stream, base)) if seed is None else seed).randbytes(size)
        return StreamBatch(stream, base, base + count, min(count, 10), self.clock.ms, payload)

    async def write(
        self, *objects: tuple[ObjectKind, Sequence[StreamBatch]], block_bytes: int = 64 * 1024, writer_id: str = ""
    ) -> list[NewObject]:
        """Prepare and write objects."""
        writer_id = writer_id or self.new_writer_id()
        written: list[NewObject] = []
        for object_id, (kind, batches) in zip(
            await self.prepare(len(objects), writer_id=writer_id), objects, strict=True
        ):
            async with ObjectWriter(
                self.store,
                object_key(CLUSTER, object_id),
                object_id=object_id,
                kind=kind,
                writer_id=writer_id,
                block_bytes=block_bytes,
            ) as writer:
                for batch in sorted(batches):
                    await writer.write(batch)
                written.append(await writer.finish())
        return written

    async def upload(
        self, *objects: tuple[ObjectKind, Sequence[StreamBatch]], block_bytes: int = 64 * 1024
    ) -> list[NewObject]:
        """Write objects and commit them at once."""
        written = await self.write(*objects, block_bytes=block_bytes)
        await self.catalog.commit_upload(self.upload_commit(written))
        return written

    async def compact(
        self,
        inputs: Sequence[NewObject | ObjectInfo],
        *objects: tuple[ObjectKind, Sequence[StreamBatch]],
        block_bytes: int = 64 * 1024,
    ) -> list[NewObject]:
        """Write objects and replace others by them."""
        written = await self.write(*objects, block_bytes=block_bytes)
        await self.catalog.commit_compaction(self.compaction(inputs, written))
        return written

    async def read_object(
        self, object_id: int, stream: int | None = None, start: int = 0, end: int = 1 << 62
    ) -> list[StreamBatch]:
        """Batches of an object, of one stream's blocks that overlap a range of offsets, or of all."""
        key = object_key(CLUSTER, object_id)
        index = await read_index(self.store, key)
        return [
            batch._replace(payload=bytes(batch.payload))
            for entry in (index if stream is None else index.find(stream, start, end))
            for batch in decode_block(await self.store.get(key, entry.position, entry.end_position), entry, where=key)
        ]

    async def contents(self) -> dict[int, list[StreamBatch]]:
        """Batches of every stream, read from its start; checks that nothing is missing."""
        found: dict[int, list[StreamBatch]] = {}
        for stream, info in (await self.catalog.get_streams(list(self.stream_epochs))).items():
            batches: list[StreamBatch] = []
            offset = info.start_offset
            while offset < info.end_offset:
                (location, *_) = await self.catalog.find_ranges(stream, offset, offset + 1, limit=1)
                end = location.range.end_offset
                for batch in await self.read_object(location.object.object_id, location.stored_stream_id, offset, end):
                    if batch.end_offset > offset:
                        batches.append(batch._replace(stream_id=stream))
                        offset = batch.end_offset
            assert offset == info.end_offset
            found[stream] = batches
        return found

    async def clone(self, name: str = "t", new_name: str = "clone") -> dict[int, int]:
        """Clone a topic; returns the clone's streams by those of the original."""
        originals = [each.stream_id for each in (await self.find_topic(name)).partitions]
        topic = await self.catalog.clone_topic(
            name,
            new_name,
            topic_id_of(new_name),
            ends={stream: self.ends[stream] for stream in originals},
            node=self.identity,
        )
        ids = [partition.stream_id for partition in topic.partitions]
        await self.open_streams(ids)
        return dict(zip(originals, ids, strict=True))

    async def collect(self) -> None:
        """One round of the node's garbage collection."""
        collector = GarbageCollector(
            catalog=self.catalog, stores={self.store.name: self.store}, cluster=CLUSTER, now_ms=self.clock.now_ms
        )
        await collector.collect()

    def service(self, settings: CompactionSettings | None = None) -> CompactionService:
        """The compaction service of this node."""
        return CompactionService(self.compaction_context(settings))

    def compaction_context(self, settings: CompactionSettings | None = None) -> CompactionContext:
        """The context that compaction gets of this node."""
        return CompactionContext(
            catalog=self.catalog,
            stores={self.store.name: self.store},
            settings=settings or CompactionSettings(),
            cluster=CLUSTER,
            identity=self.identity,
            now_ms=self.clock.now_ms,
            new_writer_id=self.new_writer_id,
        )


@contextlib.asynccontextmanager
async def sqlite_catalog(folder: Path) -> AsyncIterator[Catalog]:
    """An open catalog in `catalog.db` under `folder`."""
    async with opened_catalog(f"sqlite:///{folder / 'catalog.db'}") as catalog:
        yield catalog


@contextlib.asynccontextmanager
async def opened_catalog(url: str, *, new_id: bytes | None = None) -> AsyncIterator[Catalog]:
    """An open catalog."""
    catalog = Catalog(url)
    await catalog.open(cluster=CLUSTER, new_id=new_id)
    try:
        yield catalog
    finally:
        await catalog.close()


@contextlib.asynccontextmanager
async def uploading_node(url: str, store: ObjectStore | None = None) -> AsyncIterator[UploadingNode]:
    """A node, not started, on a catalog and a store, by default one in memory."""
    async with opened_catalog(url) as catalog:
        used = store or MemoryStore("m")
        await used.open()
        try:
            yield UploadingNode(catalog, used)
        finally:
            await used.close()


async def delete_topic(catalog: Catalog, name: str, *, now_ms: int, delete_after_ms: int) -> None:
    """Delete the topic with that name."""
    (topic_id,) = [topic.topic_id for topic in await catalog.list_topics() if topic.name == name]
    await catalog.delete_topics([topic_id], now_ms=now_ms, delete_after_ms=delete_after_ms)


def topic_id_of(name: str) -> bytes:
    """A topic's id, from its name."""
    return name.encode().ljust(16, name[0].encode())[:16]


def span(stream_id: int, start: int, end: int, *, timestamp: int = 7, records: int | None = None) -> StreamRange:
    """A range of `end - start` records of 10 bytes."""
    count = end - start if records is None else records
    return StreamRange(stream_id, start, end, count, 10 * count, timestamp)


def kind_of(group: Sequence[StreamRange]) -> ObjectKind:
    """The kind of an object with these ranges."""
    return ObjectKind.SO if len({item.stream_id for item in group}) == 1 else ObjectKind.SSO


def bounds_of(locations: Sequence[RangeLocation]) -> list[tuple[int, int]]:
    """Start and end offsets."""
    return [(item.range.start_offset, item.range.end_offset) for item in locations]
