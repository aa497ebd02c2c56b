"""A restart at every step of upload, commit, WAL trim, stream trim, topic deletion and collection.

After each restart the invariants of the storage hold: acked batches are there once, in order, with their owner's state;
every object is accounted for; and past the deadlines only committed objects are left.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import NodeIdentity, ObjectState, StreamBatch, object_key
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.object.reader import read_index
from anabranch.wal.interface import WalError
from tests.support.catalog_node import CLUSTER, delete_topic
from tests.support.steps import Steps, step_catalog, step_store, step_wal
from tests.support.storage import SMALL, EngineCluster, fill, make_batch, memory_cluster, read_all, same

PART_BYTES = 5 << 20
SETTINGS = replace(
    SMALL,
    upload_threshold_bytes=64 << 20,
    log_cache_bytes=256 << 20,
    split_bytes=1 << 20,
    object_part_bytes=PART_BYTES,
    so_put_bytes_max=2 * PART_BYTES,
    object_block_bytes=512 * 1024,
    object_writes_in_flight=1,
)
STEPS_MIN = 30
KEPT, DELETED = "kept", "deleted"
DEADLINES_MS = SETTINGS.prepare_ttl_ms + SETTINGS.delete_delay_ms
NOTED_TOO_LATE = {"after start_multipart", "before note_multipart"}
"""The one place that leaves something: an upload in parts that began, but whose id is not in the catalog yet. It is no
object, readers never see it, and no later process can know of it: a life-cycle rule of the bucket ends those."""


def end_as_text(stream: Stream) -> bytes:
    return b"%d" % stream.next_offset


def note(acked: list[StreamBatch], batch: StreamBatch, error: WalError | None) -> None:
    if error is None:
        acked.append(batch)


class Workload:
    """Appends, two uploads, a trim, and a tail that is not uploaded; it records the acks."""

    def __init__(self) -> None:
        self.acked: dict[int, list[StreamBatch]] = {}
        self.trimmed: dict[int, int] = {}

    async def run(self, engine: S3Stream, ids: Sequence[int]) -> None:
        streams = await engine.open_streams(ids)
        for stream in streams:
            stream.snapshot_source = partial(end_as_text, stream)
        one, two, three = streams
        self.append(one, 12, 1 << 20)
        self.append(two, 4, 1000)
        await engine.flush()
        self.append(two, 3, 1000)
        self.append(three, 5, 1000)
        await engine.flush()
        self.trimmed[one.stream_id] = 60
        await one.trim(60)
        self.append(one, 2, 1000)
        self.append(three, 1, 1000)
        await one.append(make_batch(one.stream_id, one.next_offset))
        self.acked[one.stream_id].append(make_batch(one.stream_id, one.next_offset - 10))

    def append(self, stream: Stream, batches: int, size_bytes: int) -> None:
        acked = self.acked.setdefault(stream.stream_id, [])
        for _ in range(batches):
            batch = make_batch(stream.stream_id, stream.next_offset, size_bytes=size_bytes)
            durable = stream.append(batch)
            durable.add_done_callback(partial(note, acked, batch))


async def steps_of_a_run(tmp_path: Path) -> list[str]:
    steps = Steps()
    async with memory_cluster(tmp_path, SETTINGS, wal_bytes=64 << 20) as cluster:
        await run_until_stop(cluster, await cluster.create(3), Workload(), steps)
    return steps.names


async def run_until_stop(cluster: EngineCluster, ids: Sequence[int], workload: Workload, steps: Steps) -> None:
    """Run the workload until it ends or a step hangs, then take the engine away."""
    real_stores, real_wal = cluster.stores, cluster.wal
    cluster.wrap_catalog = lambda catalog: step_catalog(catalog, steps)
    cluster.stores = {name: step_store(store, steps) for name, store in real_stores.items()}
    cluster.wal = step_wal(real_wal, steps)
    async with cluster.engine() as engine:
        work = asyncio.create_task(workload.run(engine, ids))
        stopped = asyncio.create_task(steps.reached.wait())
        await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopped):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    cluster.wrap_catalog = lambda catalog: catalog
    cluster.stores, cluster.wal = real_stores, real_wal


@pytest.mark.slow
async def test_nothing_acked_is_lost_whatever_step_the_node_dies_at(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    names = await steps_of_a_run(tmp_path / "all")
    assert len(names) >= STEPS_MIN
    for expected in ("prepare_objects", "put", "start_multipart", "put_part", "complete", "commit_upload", "trim"):
        assert f"before {expected}" in names
        assert f"after {expected}" in names
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with memory_cluster(folder, SETTINGS, wal_bytes=64 << 20) as cluster:
            ids = await cluster.create(3)
            workload = Workload()
            await run_until_stop(cluster, ids, workload, Steps(stop_at=number))
            try:
                await check_after_restart(cluster, ids, workload)
                assert name in NOTED_TOO_LATE or not cluster.store.uploads
            except (AssertionError, StorageError) as error:
                error.add_note(f"the node died at step {number}, {name}")
                raise


async def check_after_restart(cluster: EngineCluster, ids: Sequence[int], workload: Workload) -> None:
    cluster.crash()
    sent: dict[int, list[StreamBatch]] = {}
    async with cluster.engine() as engine:
        streams = await engine.open_streams(ids)
        for stream in streams:
            assert int(stream.snapshot or b"0") == stream.committed_offset
            expected = workload.acked.get(stream.stream_id, [])
            if stream.start_offset:
                assert stream.start_offset == workload.trimmed[stream.stream_id]
            expected = [batch for batch in expected if batch.end_offset > stream.start_offset]
            assert stream.confirmed_offset == (expected[-1].end_offset if expected else 0)
            assert same(await read_all(stream), expected)
            stream.snapshot_source = partial(end_as_text, stream)
            sent[stream.stream_id] = expected + fill(stream, 2)
        await check_invariants(cluster)
        await engine.close()
    assert cluster.wal.used_bytes == 0
    await check_invariants(cluster)
    await check_nothing_is_left(cluster)
    cluster.crash()
    async with cluster.engine() as engine:
        for stream in await engine.open_streams(ids):
            assert not stream.recovered
            assert stream.cached_start() == stream.next_offset
            assert same(await read_all(stream), sent[stream.stream_id])


def collector(cluster: EngineCluster, steps: Steps | None = None) -> GarbageCollector:
    catalog, stores = cluster.catalog, cluster.stores
    if steps is not None:
        catalog = step_catalog(catalog, steps)
        stores = {name: step_store(store, steps) for name, store in stores.items()}
    return GarbageCollector(catalog=catalog, stores=stores, cluster=CLUSTER, now_ms=cluster.clock.now_ms)


async def check_nothing_is_left(cluster: EngineCluster) -> None:
    """Past the deadlines: one round of collection, and catalog and store agree on committed objects alone."""
    cluster.clock.ms += DEADLINES_MS
    await collector(cluster).collect()
    report = await verify(catalog=cluster.catalog, stores=cluster.stores, cluster=CLUSTER, deep=True)
    assert report.ok, report.findings
    assert set(report.objects) <= {ObjectState.COMMITTED}
    assert report.stored_objects == report.objects[ObjectState.COMMITTED] == len(cluster.object_keys)


class Removal:
    """Two topics share an object; one is deleted, the other trimmed, and unneeded objects are collected."""

    def __init__(self) -> None:
        self.sent: list[StreamBatch] = []
        self.deletion_began = False
        self.trimmed = 0

    async def run(self, cluster: EngineCluster, steps: Steps, kept: int, deleted: Sequence[int]) -> None:
        cluster.wrap_catalog = lambda catalog: step_catalog(catalog, steps)
        async with cluster.engine() as engine:
            stream, *others = await engine.open_streams([kept, *deleted])
            stream.snapshot_source = partial(end_as_text, stream)
            for _ in range(3):
                self.sent += fill(stream, 3)
                for other in others:
                    fill(other, 3)
                await engine.flush()
            self.sent += fill(stream, 1)  # in the log when the topic is deleted
            for other in others:
                fill(other, 1)
            self.deletion_began = True
            now_ms = cluster.clock.ms
            await delete_topic(
                step_catalog(cluster.catalog, steps),
                DELETED,
                now_ms=now_ms,
                delete_after_ms=now_ms + SETTINGS.delete_delay_ms,
            )
            for other in others:
                await engine.close_stream(other, discard=True)
            self.trimmed = 60
            await stream.trim(60)
            cluster.clock.ms += DEADLINES_MS
            await collector(cluster, steps).collect()


async def remove_until(
    cluster: EngineCluster, removal: Removal, steps: Steps, kept: int, deleted: Sequence[int]
) -> None:
    """Run until it ends or a step hangs, then take everything away."""
    work = asyncio.create_task(removal.run(cluster, steps, kept, deleted))
    stopped = asyncio.create_task(steps.reached.wait())
    await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
    for task in (work, stopped):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    cluster.wrap_catalog = lambda catalog: catalog


@pytest.mark.slow
async def test_deletion_and_collection_leave_neither_gaps_nor_rubbish_whatever_step_the_node_dies_at(
    tmp_path: Path,
) -> None:
    names: list[str] = []
    number = -1  # first without a stop, to learn the steps
    while number < len(names):
        folder = tmp_path / str(number)
        folder.mkdir()
        # An object prepared by a process that is gone, an upload in parts under way in it, waits for collection, too.
        async with memory_cluster(folder, SETTINGS, wal_bytes=64 << 20) as cluster:
            (kept,) = await cluster.create(1, name=KEPT)
            deleted = await cluster.create(2, name=DELETED)
            await leave_an_upload_behind(cluster)
            removal = Removal()
            steps = Steps(stop_at=number if number >= 0 else None)
            await remove_until(cluster, removal, steps, kept, deleted)
            names = names or steps.names
            try:
                await check_after_removal(cluster, removal, kept, deleted)
            except (AssertionError, StorageError) as error:
                error.add_note(f"the node died at step {number}, {names[number]}")
                raise
        number += 1
    commands = ("delete_topics", "trim_stream", "commit_upload", "expire_objects", "forget_objects")
    for expected in (*commands, "abort_multipart", "delete"):
        assert f"before {expected}" in names
        assert f"after {expected}" in names


async def leave_an_upload_behind(cluster: EngineCluster) -> None:
    node = await cluster.catalog.register_node(9, "127.0.0.1", 9099, now_ms=cluster.clock.ms, lease_ms=10_000)
    now_ms = cluster.clock.ms
    (object_id,) = await cluster.catalog.prepare_objects(
        1,
        node=NodeIdentity(9, node.epoch),
        writer_id="gone",
        store="main",
        now_ms=now_ms,
        deadline_ms=now_ms + SETTINGS.prepare_ttl_ms,
    )
    upload = await cluster.store.start_multipart(object_key(CLUSTER, object_id), writer_id="gone")
    await cluster.catalog.note_multipart(object_id, upload.upload_id)


async def check_after_removal(cluster: EngineCluster, removal: Removal, kept: int, deleted: Sequence[int]) -> None:
    cluster.crash()
    alive = await cluster.catalog.get_streams(deleted)
    assert len(alive) in {0, len(deleted)}, "a topic goes as a whole"
    assert removal.deletion_began or alive
    async with cluster.engine() as engine:
        stream, *others = await engine.open_streams([kept, *alive])
        assert stream.start_offset in {0, removal.trimmed}
        found = await read_all(stream)
        expected = [batch for batch in removal.sent if batch.end_offset > stream.start_offset]
        assert same(found, expected), "all of it, in order, without a gap"
        await check_invariants(cluster)
        for each in (stream, *others):
            each.snapshot_source = partial(end_as_text, each)
        await engine.close()
    await check_invariants(cluster)
    await check_nothing_is_left(cluster)
    assert not cluster.store.uploads


async def check_invariants(cluster: EngineCluster) -> None:
    """Every stream contiguous in good objects, every object of the store known to the catalog."""
    objects = {item.object_id: item for item in await cluster.catalog.list_objects(after=-1, limit=1000)}
    keys = {object_key(CLUSTER, object_id) for object_id in objects}
    assert cluster.object_keys <= keys
    for info in await cluster.catalog.list_streams(after=-1, limit=1000):
        offset = info.start_offset
        for location in await cluster.catalog.find_ranges(info.stream_id, offset, info.end_offset, limit=1000):
            assert location.object.state is ObjectState.COMMITTED
            assert location.range.start_offset <= offset
            index = await read_index(cluster.store, object_key(CLUSTER, location.object.object_id))
            for entry in index.find(info.stream_id, offset, location.range.end_offset):
                data = await cluster.store.get(index.key, entry.position, entry.end_position)
                assert decode_block(data, entry, where=index.key)
                assert entry.start_offset <= offset
                offset = entry.end_offset
            assert offset == location.range.end_offset
        assert offset == info.end_offset
