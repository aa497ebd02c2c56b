"""A catalog and a store with streams in them, and what a reader finds there."""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from compaction.node import CompactionNode
from compaction.service import CompactionService
from compaction.settings import CompactionSettings
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import TopicInfo, UploadCommit
from s3stream.maintain.gc import GarbageCollector
from s3stream.model import NewObject, ObjectKind, StreamBatch, object_key
from s3stream.object.format import decode_block
from s3stream.object.reader import read_index
from s3stream.object.writer import ObjectWriter
from s3stream.store.interface import ObjectStore
from s3stream.store.memory import MemoryStore

CLUSTER = "test"
NODE = 1
HOUR_MS = 3_600_000


@dataclass
class Clock:
    now: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now


@dataclass
class Cluster:
    """Writes as an uploader does, reads as a consumer does."""

    catalog: Catalog
    store: ObjectStore
    clock: Clock
    node_epoch: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    names: "itertools.count[int]" = field(default_factory=itertools.count)

    async def start(self, streams: int) -> Sequence[int]:
        node = await self.catalog.register_node(NODE, "localhost", 1, now_ms=self.clock.now, lease_ms=10 * HOUR_MS)
        self.node_epoch = node.epoch
        topic = await self.catalog.create_topic(
            "t", bytes(16), partitions=streams, configs={}, leader=NODE, internal=False
        )
        ids = [partition.stream_id for partition in topic.partitions]
        await self._open(ids)
        return ids

    def new_writer_id(self) -> str:
        return f"w{next(self.names)}"

    def batch(self, stream: int, size: int, *, count: int = 10, seed: int | None = None) -> StreamBatch:
        """The next batch of a stream; its bytes follow from stream and offset."""
        base = self.ends[stream]
        self.ends[stream] = base + count
        payload = random.Random(hash((stream, base)) if seed is None else seed).randbytes(size)
        return StreamBatch(stream, base, base + count, min(count, 10), self.clock.now, payload)

    async def upload(
        self, *objects: tuple[ObjectKind, Sequence[StreamBatch]], block_bytes: int = 64 * 1024
    ) -> list[int]:
        """One commit of some objects."""
        writer_id = self.new_writer_id()
        ids = await self.catalog.prepare_objects(
            len(objects),
            node_id=NODE,
            node_epoch=self.node_epoch,
            writer_id=writer_id,
            store=self.store.name,
            now_ms=self.clock.now,
            deadline_ms=self.clock.now + HOUR_MS,
        )
        made: list[NewObject] = []
        for object_id, (kind, batches) in zip(ids, objects, strict=True):
            writer = ObjectWriter(
                self.store,
                object_key(CLUSTER, object_id),
                object_id=object_id,
                kind=kind,
                writer_id=writer_id,
                block_bytes=block_bytes,
            )
            async with writer:
                for batch in sorted(batches):
                    await writer.write(batch)
                made.append(await writer.close())
        await self.catalog.commit_upload(
            UploadCommit(
                node_id=NODE,
                node_epoch=self.node_epoch,
                objects=made,
                stream_epochs=self.epochs,
                snapshots={},
                now_ms=self.clock.now,
            )
        )
        return list(ids)

    async def contents(self) -> dict[int, list[StreamBatch]]:
        """All that can be read of every stream, from its start on; checks that nothing is missing."""
        found: dict[int, list[StreamBatch]] = {}
        for stream, info in (await self.catalog.get_streams(list(self.epochs))).items():
            batches: list[StreamBatch] = []
            offset = info.start_offset
            while offset < info.end_offset:
                (location, *_) = await self.catalog.find_ranges(stream, offset, offset + 1, limit=1)
                key = object_key(CLUSTER, location.object.object_id)
                index = await read_index(self.store, key, object_bytes=location.object.size_bytes)
                for entry in index.find(location.stored_stream_id, offset, location.range.end_offset):
                    data = await self.store.get(key, entry.position, entry.end_position)
                    for batch in decode_block(data, entry, where=key):
                        if batch.end_offset > offset:
                            batches.append(batch._replace(stream_id=stream, payload=bytes(batch.payload)))
                            offset = batch.end_offset
            assert offset == info.end_offset
            found[stream] = batches
        return found

    async def topic(self, name: str) -> TopicInfo:
        (found,) = [each for each in await self.catalog.list_topics() if each.name == name]
        return found

    async def clone(self, name: str = "t", new_name: str = "clone") -> dict[int, int]:
        """Clone a topic; returns its streams by those of the original."""
        originals = [each.stream_id for each in (await self.topic(name)).partitions]
        topic = await self.catalog.clone_topic(
            name,
            new_name,
            new_name.encode().ljust(16)[:16],
            ends={stream: self.ends[stream] for stream in originals},
            node_id=NODE,
            node_epoch=self.node_epoch,
        )
        ids = [partition.stream_id for partition in topic.partitions]
        await self._open(ids)
        return dict(zip(originals, ids, strict=True))

    async def _open(self, ids: Sequence[int]) -> None:
        for opened in await self.catalog.open_streams(ids, node_id=NODE, node_epoch=self.node_epoch):
            self.epochs[opened.info.stream_id] = opened.info.epoch
            self.ends[opened.info.stream_id] = opened.info.end_offset

    async def trim(self, stream: int, start: int) -> None:
        await self.catalog.trim_stream(
            stream, self.epochs[stream], start, now_ms=self.clock.now, delete_after_ms=self.clock.now
        )

    async def collect(self) -> None:
        """One round of the node's garbage collection."""
        collector = GarbageCollector(
            catalog=self.catalog, stores={self.store.name: self.store}, cluster=CLUSTER, now_ms=self.clock.now_ms
        )
        await collector.collect()

    def service(self, settings: CompactionSettings | None = None) -> CompactionService:
        return CompactionService(self.node(settings))

    def node(self, settings: CompactionSettings | None = None) -> CompactionNode:
        return CompactionNode(
            catalog=self.catalog,
            stores={self.store.name: self.store},
            settings=settings or CompactionSettings(),
            cluster=CLUSTER,
            node_id=NODE,
            node_epoch=self.node_epoch,
            now_ms=self.clock.now_ms,
            new_writer_id=self.new_writer_id,
        )


@contextlib.asynccontextmanager
async def cluster(url: str, store: ObjectStore | None = None) -> AsyncIterator[Cluster]:
    catalog = Catalog(url)
    await catalog.open(cluster=CLUSTER)
    used = store or MemoryStore("m")
    await used.open()
    try:
        yield Cluster(catalog, used, Clock())
    finally:
        await used.close()
        await catalog.close()
