"""The collector on a real catalog and a store in memory whose calls can fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_rows import find_files
from anabranch.s3stream.catalog.table_values import TableFileKind
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable, NotFound, StoreError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectState, object_key
from anabranch.s3stream.settings import GcSettings
from tests.support.catalog_node import DEADLINE, LATER, NODE_ID, NOW, MetadataNode, delete_topic, span, sqlite_catalog
from tests.support.clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.table_node import NEW_TABLE, TableNode

CLUSTER = "test"


def key(object_id: int) -> str:
    return object_key(CLUSTER, object_id)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[MetadataNode]:
    async with sqlite_catalog(tmp_path) as catalog:
        yield await MetadataNode.started(catalog)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("main")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def collector(scene: MetadataNode, store: MemoryStore, clock: ManualClock) -> GarbageCollector:
    return make(scene.catalog, store, clock)


def make(
    catalog: Catalog, store: MemoryStore, clock: ManualClock, settings: GcSettings | None = None
) -> GarbageCollector:
    return GarbageCollector(
        catalog=catalog, stores={"main": store}, cluster=CLUSTER, now_ms=clock.now_ms, settings=settings
    )


async def put(store: MemoryStore, *ids: int, writer_id: str = "writer") -> None:
    for object_id in ids:
        await store.put(key(object_id), [b"x" * 10], writer_id=writer_id)


async def upload(scene: MetadataNode, store: MemoryStore, count: int) -> list[NewObject]:
    """Commit `count` objects of one stream, with bytes in the store."""
    stream = scene.streams[0]
    objects = await scene.upload(*([span(stream, 10 * i, 10 * i + 10)] for i in range(count)))
    await put(store, *(o.object_id for o in objects))
    return objects


async def test_prepared_objects_are_reaped_after_their_deadline(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    written, absent = await scene.prepare(2)
    await put(store, written)
    clock.ms = DEADLINE - 1
    assert await collector.collect() == 0
    assert key(written) in store.objects

    clock.ms = DEADLINE
    assert await collector.collect() == 2
    assert store.objects == {}
    assert await scene.catalog.get_objects([written, absent]) == {}
    assert (collector.stats.expired, collector.stats.deleted) == (2, 2)


async def test_an_upload_under_way_is_aborted(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    (object_id,) = await scene.prepare(1)
    upload = await store.start_multipart(key(object_id), writer_id="writer")
    await scene.catalog.note_multipart(object_id, upload.upload_id)
    clock.ms = DEADLINE
    await collector.collect()
    assert store.uploads == set()
    assert collector.stats.aborted_uploads == 1


async def test_another_writers_object_is_left_alone(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    (object_id,) = await scene.prepare(1)
    await put(store, object_id, writer_id="somebody else")
    clock.ms = DEADLINE
    assert await collector.collect() == 1
    assert key(object_id) in store.objects
    assert collector.stats.foreign == 1


async def test_destroyed_objects_stay_for_their_delay(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    first, second = await upload(scene, store, 2)
    await scene.catalog.trim_stream(scene.streams[0], 1, 10, now_ms=NOW, delete_after_ms=LATER)
    clock.ms = LATER - 1
    assert await collector.collect() == 0
    assert len(store.objects) == 2
    clock.ms = LATER
    assert await collector.collect() == 1
    assert list(store.objects) == [key(second.object_id)]
    assert await scene.catalog.get_objects([first.object_id]) == {}
    assert (await scene.state(second))[0] is ObjectState.COMMITTED
    assert collector.stats.deleted_bytes == first.size_bytes


@pytest.mark.slow
async def test_committed_objects_are_deleted_in_batches_without_a_head_call(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock
) -> None:
    await upload(scene, store, 600)
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    clock.ms = LATER
    collector = make(scene.catalog, store, clock, GcSettings(batch_objects=500))
    assert await collector.collect() == 600
    assert store.objects == {}
    assert (store.calls.delete, store.calls.head) == (3, 0)


async def test_keys_that_fail_stay_for_the_next_round_and_do_not_block_the_others(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock
) -> None:
    objects = await upload(scene, store, 9)
    stuck = {key(o.object_id) for o in objects[:4]}

    async def fail(call: str, name: str) -> None:
        if call == "delete" and name in stuck:
            raise StoreError(f"{name}: no")

    store.hook = fail
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    clock.ms = LATER
    collector = make(scene.catalog, store, clock, GcSettings(batch_objects=2))
    assert await collector.collect() == 5
    assert set(store.objects) == stuck
    assert len(await scene.catalog.get_objects([o.object_id for o in objects])) == 4
    assert collector.stats.failures == 4

    stuck.clear()
    assert await collector.collect() == 4
    assert store.objects == {}


async def test_a_store_in_trouble_ends_the_round(scene: MetadataNode, store: MemoryStore, clock: ManualClock) -> None:
    ids = await scene.prepare(30)
    await put(store, *ids)

    async def fail(call: str, name: str) -> None:
        raise StoreError(f"{call} {name}: unreachable")

    store.hook = fail
    clock.ms = DEADLINE
    collector = make(scene.catalog, store, clock, GcSettings(batch_objects=5, failures_max=10))
    assert await collector.collect() == 0
    assert collector.stats.failures == 10
    assert len(await scene.catalog.get_objects(ids)) == 30


async def test_a_store_nobody_configured_keeps_its_objects(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    ids = await scene.catalog.prepare_objects(
        1, node=NodeIdentity(NODE_ID, scene.epoch), writer_id="w", store="other", now_ms=NOW, deadline_ms=DEADLINE
    )
    clock.ms = DEADLINE
    assert await collector.collect() == 0
    assert len(await scene.catalog.get_objects(ids)) == 1


async def test_a_writer_that_comes_too_late_is_refused(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    """The first of the two wins: no committed object ever loses its bytes."""
    late, early = await scene.new_objects([span(scene.streams[0], 0, 5)], [span(scene.streams[1], 0, 5)])
    await put(store, late.object_id, early.object_id)
    clock.ms = DEADLINE
    refused = asyncio.Event()

    async def race(call: str, name: str) -> None:
        if call == "delete" and name == key(late.object_id):
            with pytest.raises(CatalogError, match="found DESTROYED"):
                await scene.catalog.commit_upload(scene.upload_commit([late]))
            refused.set()

    store.hook = race
    await scene.catalog.commit_upload(scene.upload_commit([early]))
    assert await collector.collect() == 1
    assert refused.is_set()
    assert list(store.objects) == [key(early.object_id)]
    with pytest.raises(NotFound, match="reaped after its deadline"):
        await scene.catalog.commit_upload(scene.upload_commit([late]))


async def test_what_was_committed_and_replaced_during_a_round_stays_for_its_delay(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector has listed it as prepared; readers may have found it since."""
    (late,) = await scene.new_objects([span(scene.streams[0], 0, 5)])
    await put(store, late.object_id)
    clock.ms = DEADLINE
    expire = scene.catalog.expire_objects

    async def come_first(ids: Sequence[int], *, now_ms: int) -> Sequence[int]:
        await scene.catalog.commit_upload(scene.upload_commit([late]))
        await delete_topic(scene.catalog, "t", now_ms=now_ms, delete_after_ms=now_ms + 1000)
        return await expire(ids, now_ms=now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(scene.catalog, "expire_objects", come_first)
        assert await make(scene.catalog, store, clock).collect() == 0
    assert list(store.objects) == [key(late.object_id)]
    clock.ms += 1000
    assert await make(scene.catalog, store, clock).collect() == 1
    assert not store.objects


async def test_a_crash_between_delete_and_forget_is_made_good(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(scene, store, 3)
    (prepared,) = await scene.prepare(1)
    await put(store, prepared)
    await delete_topic(scene.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    clock.ms = LATER

    async def crash(_ids: object) -> None:
        raise CatalogUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(scene.catalog, "forget_objects", crash)
        with pytest.raises(CatalogUnavailable):
            await make(scene.catalog, store, clock).collect()
    assert store.objects == {}
    assert await make(scene.catalog, store, clock).collect() == 4
    assert await scene.catalog.list_objects(after=0, limit=10) == []


async def test_the_loop_goes_on_after_a_failed_round(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (object_id,) = await scene.prepare(1)
    await put(store, object_id)
    clock.ms = DEADLINE
    collector = make(scene.catalog, store, clock, GcSettings(period_ms=1))
    listing = scene.catalog.list_reapable
    collected = asyncio.Event()
    calls = 0

    async def flaky(*, now_ms: int, limit: int) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise CatalogUnavailable("not now")
        found = await listing(now_ms=now_ms, limit=limit)
        if calls > 2 and not found:
            collected.set()
        return found

    monkeypatch.setattr(scene.catalog, "list_reapable", flaky)
    running = asyncio.create_task(collector.run())
    await collected.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert store.objects == {}
    assert collector.stats.rounds_failed == 1


async def written_table(scene: MetadataNode, store: MemoryStore) -> TableNode:
    """A table whose files have bytes, with two snapshots that share none of them."""
    table = TableNode(scene)
    await table.tables.create(NEW_TABLE, now_ms=NOW)
    await table.grow(0, 20)
    first = await table.append({0: [(0, 10)]})
    manifest = first.added[1].file_id
    second = await table.change({0: [(0, 20)]}, removed=await table.live())
    await table.tables.commit(replace(second, removed=[*second.removed, manifest]))
    ids = [item.file_id for commit in (first, second) for item in commit.added]
    files = await scene.catalog._database.read(lambda c: find_files(c, ids))  # noqa: SLF001
    for file in files.values():
        await store.put(file.file_key, [b"x"], writer_id=file.writer_id)
    return table


async def test_files_of_tables_are_deleted_when_no_snapshot_names_them(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    table = await written_table(scene, store)
    keys = sorted(store.objects)
    clock.ms = 10 * LATER
    assert await collector.collect() == 0, "both snapshots are there"
    await table.append({}, expire_before=2)
    clock.ms = LATER - 1
    assert await collector.collect() == 0
    clock.ms = LATER
    manifests = 0

    async def manifest() -> None:
        nonlocal manifests
        manifests += 1
        assert sorted(store.objects) == keys

    collector = GarbageCollector(
        catalog=scene.catalog,
        stores={"main": store},
        cluster=CLUSTER,
        now_ms=clock.now_ms,
        before_deleting=manifest,
    )
    assert await collector.collect() == 3
    assert manifests == 1
    (live,) = await table.live()
    assert len(store.objects) == 3
    assert live.file_key in store.objects


async def test_a_prepared_file_of_a_table_expires_unless_another_writer_has_its_key(
    scene: MetadataNode, store: MemoryStore, clock: ManualClock, collector: GarbageCollector
) -> None:
    table = TableNode(scene)
    await table.tables.create(NEW_TABLE, now_ms=NOW)
    mine, foreign, absent = await table.prepare(*[TableFileKind.DATA] * 3)
    upload = await store.start_multipart(absent.file_key, writer_id=absent.writer_id)
    await table.tables.note_multipart(absent.file_id, upload.upload_id)
    await store.put(mine.file_key, [b"x"], writer_id=mine.writer_id)
    await store.put(foreign.file_key, [b"x"], writer_id="somebody")
    clock.ms = DEADLINE - 1
    assert await collector.collect() == 0
    clock.ms = DEADLINE
    assert await collector.collect() == 3
    assert list(store.objects) == [foreign.file_key]
    assert (collector.stats.foreign, collector.stats.expired, collector.stats.aborted_uploads) == (1, 3, 1)
