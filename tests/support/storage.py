"""A whole storage engine in memory: a WAL and a store that a test can break, and a real catalog on SQLite."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.s3stream.append.recovery import RecoveryPlan, RecoveryPlanner, check_streams_known
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.append.wal_record import WalRecord
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.model import NodeIdentity, StreamBatch, StreamInfo, StreamOwner, parse_object_key
from anabranch.s3stream.object.marks import MARK_KEYS
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.store.interface import ObjectStore
from tests.support.catalog_node import CLUSTER, NODE_ID, UploadingNode
from tests.support.clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.memory_wal import MemoryWal

SMALL = StorageSettings(
    upload_threshold_bytes=64 * 1024,
    split_bytes=16 * 1024,
    object_block_bytes=4 * 1024,
    log_cache_bytes=1024 * 1024,
    block_cache_bytes=1024 * 1024,
    read_bytes_max=64 * 1024,
    read_split_bytes_min=8 * 1024,
    read_gap_bytes_max=0,
    read_ahead_bytes_max=0,
    retry_ms_min=1,
    retry_ms_max=2,
)


def object_files(folder: Path) -> list[Path]:
    """Return the files of a local store that hold objects of streams: no claims, manifests or marks."""
    return [path for path in files_below(folder) if parse_object_key(path.relative_to(folder).as_posix()) is not None]


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and in those in it, whatever another process removes meanwhile."""
    return [Path(place, name) for place, _, names in os.walk(folder) for name in names]


@dataclass(slots=True)
class EngineCluster:
    """The state that survives a crash: catalog, stores, and the durable part of the WAL."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    wal: MemoryWal
    settings: StorageSettings = SMALL
    clock: ManualClock = field(default_factory=ManualClock)
    writers: int = 0
    wrap_catalog: Callable[[Catalog], Catalog] = lambda catalog: catalog
    topics: int = 0
    cluster: str = CLUSTER

    @property
    def store(self) -> MemoryStore:
        """The default store."""
        store = self.stores["main"]
        assert isinstance(store, MemoryStore)
        return store

    @property
    def object_keys(self) -> set[str]:
        """Keys in the default store, without those of marks."""
        return {key for key in self.store.objects if not key.startswith(MARK_KEYS)}

    def new_writer_id(self) -> str:
        """A fresh id."""
        self.writers += 1
        return f"writer-{self.writers}"

    async def create(self, partitions: int, *, name: str = "") -> list[int]:
        """Create a topic; returns its stream ids."""
        self.topics += 1
        topic = await self.catalog.create_topic(
            name or f"topic-{self.topics}",
            self.topics.to_bytes(16),
            partitions=partitions,
            configs={},
            leader=NODE_ID,
            internal=False,
        )
        return [partition.stream_id for partition in topic.partitions]

    @asynccontextmanager
    async def engine(self, *, recover: bool = True) -> AsyncIterator[S3Stream]:
        """Engine of a newly registered node. Leaving the block stops it as a crash would, unless `close` was called."""
        node = await self.catalog.register_node(NODE_ID, "127.0.0.1", 9092, now_ms=self.clock.ms, lease_ms=10_000)
        engine = S3Stream(
            wal=self.wal,
            catalog=self.wrap_catalog(self.catalog),
            stores=self.stores,
            default_store="main",
            settings=self.settings,
            cluster=self.cluster,
            node=NodeIdentity(NODE_ID, node.epoch),
            now_ms=self.clock.now_ms,
            new_writer_id=self.new_writer_id,
        )
        async with engine:
            if recover:
                await engine.recover()
            yield engine

    async def uploading_node(self, node_id: int = NODE_ID) -> UploadingNode:
        """A registered node that commits objects itself, as compaction or another process does."""
        node = UploadingNode(self.catalog, self.store, self.clock, node_id=node_id)
        (node.epoch,) = [each.epoch for each in await self.catalog.list_nodes() if each.node_id == node_id]
        return node

    def crash(self) -> None:
        """Lose everything that is not durable."""
        self.wal = self.wal.crash()


@asynccontextmanager
async def memory_cluster(
    tmp_path: Path, settings: StorageSettings = SMALL, *, wal_bytes: int = 4 << 20, stores: Sequence[str] = ("main",)
) -> AsyncIterator[EngineCluster]:
    """An empty cluster."""
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")
    await catalog.open(cluster=CLUSTER)
    try:
        yield EngineCluster(
            catalog=catalog,
            stores={name: MemoryStore(name) for name in stores},
            wal=MemoryWal(wal_bytes),
            settings=settings,
        )
    finally:
        await catalog.close()


def make_batch(
    stream_id: int, base: int, *, count: int = 10, size_bytes: int = 1000, timestamp: int = -1
) -> StreamBatch:
    """A batch whose payload contains stream and offset, so that a mix-up is visible."""
    text = f"stream {stream_id} offset {base} ".encode()
    payload = (text * (size_bytes // len(text) + 1))[:size_bytes]
    return StreamBatch(stream_id, base, base + count, count, base if timestamp < 0 else timestamp, memoryview(payload))


def fill(stream: Stream, batches: int, *, count: int = 10, size_bytes: int = 1000) -> list[StreamBatch]:
    """Append `batches` batches at the stream's end."""
    made = []
    for _ in range(batches):
        batch = make_batch(stream.stream_id, stream.next_offset, count=count, size_bytes=size_bytes)
        _ = stream.append(batch)
        made.append(batch)
    return made


async def read_all(stream: Stream, *, start: int | None = None, bytes_max: int = 5000) -> list[StreamBatch]:
    """Every confirmed batch, read as a consumer does; checks that each read continues the previous one."""
    offset = stream.start_offset if start is None else start
    found: list[StreamBatch] = []
    while offset < stream.confirmed_offset:
        result = await stream.read(offset, bytes_max)
        assert result.batches, f"no batch at offset {offset}, below the confirmed offset {stream.confirmed_offset}"
        for batch in result.batches:
            assert batch.base_offset <= offset < batch.end_offset
            offset = batch.end_offset
            found.append(batch)
        assert result.next_offset == offset
    return found


def same(found: Sequence[StreamBatch], expected: Sequence[StreamBatch]) -> bool:
    """True if the batches are equal byte for byte."""
    return [(*b[:5], bytes(b.payload)) for b in found] == [(*b[:5], bytes(b.payload)) for b in expected]


def plan_recovery(
    records: Sequence[WalRecord], streams: Mapping[int, StreamInfo], owner: StreamOwner, *, next_stream_id: int
) -> RecoveryPlan:
    """Plan the recovery of a log's records at once, as a start does in pieces. Raises UnknownStreams."""
    check_streams_known(records, next_stream_id)
    planner = RecoveryPlanner(streams, owner)
    planner.add(records)
    return planner.plan()
