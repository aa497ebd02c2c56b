"""The manifest keeper: when it writes a manifest, the contents, and the effect of a failing store."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import UploadCommit
from anabranch.s3stream.errors import CatalogError, CorruptObject, StoreError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.maintain.manifest import Manifest, manifest_key, parse_manifest_key
from anabranch.s3stream.maintain.manifest_keeper import ManifestKeeper, ManifestSettings
from anabranch.s3stream.maintain.manifest_store import check_catalog_is_newest, newest_manifest_key, read_manifest
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import (
    NewObject,
    NodeIdentity,
    ObjectKind,
    ObjectState,
    StreamOwner,
    StreamRange,
    object_key,
)
from anabranch.s3stream.object.marks import MarkPlace
from anabranch.s3stream.object.owner_marks import OwnerMarks, read_owner_marks
from anabranch.s3stream.tasks import end_tasks
from tests.support.catalog_node import WAL_ID
from tests.support.memory_store import MemoryStore
from tests.support.waiting import until

CLUSTER = "test"
NOW = 1_700_000_000_000
ID = bytes(range(16))


def keeper_of(
    catalog: Catalog,
    store: MemoryStore,
    node_id: int = 1,
    *,
    settings: ManifestSettings | None = None,
    owner_marks: OwnerMarks | None = None,
) -> ManifestKeeper:
    numbers = iter(range(1000))
    place = MarkPlace(store, CLUSTER, catalog.identity())
    return ManifestKeeper(
        catalog=catalog,
        store=store,
        cluster=CLUSTER,
        node=NodeIdentity(node_id, 1),
        now_ms=lambda: NOW,
        new_writer_id=lambda: f"keeper-{node_id}-{next(numbers)}",
        owner_marks=owner_marks or OwnerMarks(place, catalog, node_id, lambda: "marks"),
        settings=settings,
    )


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    made = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    await made.open(cluster=CLUSTER, new_id=ID)
    await made.register_node(1, "h", 1, now_ms=NOW, lease_ms=1)
    yield made
    await made.close()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("main")


@asynccontextmanager
async def running(keeper: ManifestKeeper) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(keeper.run())
    try:
        yield
    finally:
        await end_tasks([task])


async def newest(store: MemoryStore) -> Manifest:
    key = await newest_manifest_key(store, CLUSTER)
    assert key is not None
    return await read_manifest(store, key)


def sequences(store: MemoryStore) -> list[int]:
    keys = [parse_manifest_key(key) for key in store.objects]
    return sorted(key.sequence for key in keys if key is not None)


async def create(catalog: Catalog, name: str, partitions: int = 1) -> list[int]:
    topic_id = name.encode().ljust(16, b"\0")
    topic = await catalog.create_topic(name, topic_id, partitions=partitions, configs={}, leader=1, internal=False)
    return [partition.stream_id for partition in topic.partitions]


async def upload(catalog: Catalog, store: MemoryStore, stream_id: int, start: int, end: int) -> int:
    """Commit an object whose bytes no test reads."""
    (object_id,) = await catalog.prepare_objects(
        1, node=NodeIdentity(1, 1), writer_id="w", store="main", now_ms=NOW, deadline_ms=NOW + 1
    )
    await store.put(object_key(CLUSTER, object_id), [b"x"], writer_id="w")
    made = NewObject(object_id, ObjectKind.SO, 1, [StreamRange(stream_id, start, end, end - start, 1, NOW)])
    await catalog.commit_upload(UploadCommit(NodeIdentity(1, 1), [made], {stream_id: 1}, {}, NOW))
    return object_id


async def test_a_manifest_tells_what_the_catalog_has(catalog: Catalog, store: MemoryStore) -> None:
    streams = await create(catalog, "flights", 2)
    await catalog.open_streams(streams, StreamOwner(1, 1, WAL_ID))
    object_id = await upload(catalog, store, streams[0], 0, 100)
    await catalog.trim_stream(streams[0], 1, 40, now_ms=NOW, delete_after_ms=NOW)
    await catalog.alter_config("group", "readers", set_configs={"a": "b"}, unset=[])
    await catalog.open_wal("00000000000000aa", node=NodeIdentity(1, 1), location="/dev/x", now_ms=NOW)
    (prepared,) = await catalog.prepare_objects(
        1, node=NodeIdentity(1, 1), writer_id="w", store="main", now_ms=NOW, deadline_ms=NOW + 1
    )
    await keeper_of(catalog, store).ensure_current()
    manifest = await newest(store)
    assert (manifest.cluster, manifest.node, manifest.written_ms) == (CLUSTER, NodeIdentity(1, 1), NOW)
    state = manifest.state
    assert state.catalog_id == ID
    assert state.nodes == {1: 1}
    assert [(topic.name, topic.stream_ids) for topic in state.topics] == [("flights", streams)]
    assert [(each.start_offset, each.end_offset, each.leader_epoch) for each in state.streams] == [
        (40, 100, 1),
        (0, 0, 1),
    ]
    assert state.committed == {1: [object_id]}
    assert state.prepared == [prepared]
    assert state.counters == {"stream": 3, "object": 3, "producer": 0, "table_file": 1}
    assert state.configs == {("group", "readers"): {"a": "b"}}
    assert [wal.wal_id for wal in state.wals] == ["00000000000000aa"]


async def test_a_manifest_replaces_the_marks_of_owners_that_it_names(catalog: Catalog, store: MemoryStore) -> None:
    streams = await create(catalog, "flights", 2)
    await catalog.open_wal(WAL_ID, node=NodeIdentity(1, 1), location="/dev/x", now_ms=NOW)
    place = MarkPlace(store, CLUSTER, ID)
    earlier, marks = (OwnerMarks(place, catalog, 1, lambda: "marks") for _ in range(2))
    keeper = keeper_of(catalog, store, owner_marks=marks)
    first, second = await catalog.open_streams(streams, StreamOwner(1, 1, WAL_ID))
    await earlier.put([first.info])
    await marks.put([second.info, replace(second.info, stream_id=77)])
    await marks.put([replace(second.info, epoch=9)])  # the catalog has gone back since, which nobody has noticed yet

    await keeper.ensure_current()

    assert [owned.epochs for owned in await read_owner_marks(place)] == [{second.info.stream_id: 9}]


async def test_clones_and_detached_topics_are_told(catalog: Catalog, store: MemoryStore) -> None:
    (original,) = await create(catalog, "flights")
    await catalog.open_streams([original], StreamOwner(1, 1, WAL_ID))
    object_id = await upload(catalog, store, original, 0, 100)
    clone = await catalog.clone_topic("flights", "copy", b"c" * 16, ends={original: 100}, node=NodeIdentity(1, 1))
    topic = (await catalog.list_topics())[-1]
    await catalog.detach_topic("flights", topic.topic_id, ends={original: 100}, node=NodeIdentity(1, 1), now_ms=NOW)
    await keeper_of(catalog, store).ensure_current()
    state = (await newest(store)).state
    assert [topic.name for topic in state.topics] == ["copy"]
    assert [(each.name, each.stream_ids, each.detached_ms) for each in state.detached] == [("flights", [original], NOW)]
    assert state.borrowed == [(clone.partitions[0].stream_id, 0, 100, object_id, original)]


async def test_nothing_is_written_while_nothing_changes(catalog: Catalog, store: MemoryStore) -> None:
    keeper = keeper_of(catalog, store)
    for _ in range(3):
        await keeper.ensure_current()
    assert keeper.stats.writes == 1
    other = keeper_of(catalog, store, 2)
    for _ in range(3):
        await other.ensure_current()
        await keeper.ensure_current()
    assert (keeper.stats.writes, other.stats.writes) == (1, 1), "two nodes do not keep each other at it"


@pytest.mark.slow
async def test_a_change_is_written_soon_and_several_at_once(catalog: Catalog, store: MemoryStore) -> None:
    loop, settings = asyncio.get_running_loop(), ManifestSettings()
    keeper = keeper_of(catalog, store, settings=settings)
    began = loop.time()
    async with running(keeper):
        await until(lambda: keeper.stats.writes == 1)
        for number in range(20):
            await create(catalog, f"topic-{number}")
        state = (await catalog.read_state())[1]
        async with asyncio.timeout(30):
            while (await newest(store)).state != state:  # noqa: ASYNC110 - a manifest has no event
                await asyncio.sleep(0)
    assert len((await newest(store)).state.topics) == 20
    seconds = (loop.time() - began) * 1000 / settings.delay_ms
    assert keeper.stats.writes <= 2 + seconds, "a second's changes are one manifest"


@pytest.mark.slow
async def test_a_failing_store_fails_no_change_and_is_told_until_it_works(catalog: Catalog, store: MemoryStore) -> None:
    broken = {"put"}

    async def fail(call: str, _key: str) -> None:
        if call in broken:
            raise StoreError("main: out of order")

    store.hook = fail
    keeper = keeper_of(catalog, store)
    async with running(keeper):
        await until(lambda: keeper.stats.failures > 0)
        assert keeper.stats.error == "main: out of order"
        await create(catalog, "flights")
        broken.clear()
        await until(lambda: keeper.stats.error is None, timeout_s=30)
    assert [topic.name for topic in (await newest(store)).state.topics] == ["flights"]


async def test_a_full_store_keeps_the_newest_manifest_and_gets_room_for_the_next(
    catalog: Catalog, store: MemoryStore
) -> None:
    keeper = keeper_of(catalog, store)
    for number in range(3):
        await create(catalog, f"topic-{number}")
        await keeper.ensure_current()
    before = sequences(store)

    async def full(call: str, _key: str) -> None:
        if call == "put" and len(store.objects) >= 3:
            raise StoreError("main: no space left")

    store.hook = full
    await create(catalog, "one-more")
    with pytest.raises(StoreError, match="no space left"):
        await keeper.ensure_current()
    assert sequences(store) == before[-1:]
    await keeper.ensure_current()
    assert len((await newest(store)).state.topics) == 4


async def test_a_store_that_does_not_answer_does_not_hold_a_stop_for_long(catalog: Catalog, store: MemoryStore) -> None:
    async def hang(_call: str, _key: str) -> None:
        await asyncio.Event().wait()

    store.hook = hang
    keeper = keeper_of(catalog, store, settings=ManifestSettings(stop_timeout_ms=1))
    await keeper.stop()
    assert keeper.stats.error == "the store does not answer"


async def test_only_the_newest_manifests_are_kept(catalog: Catalog, store: MemoryStore) -> None:
    for life in range(3):
        keeper = keeper_of(catalog, store)
        for number in range(3):
            await create(catalog, f"topic-{life}-{number}")
            await keeper.ensure_current()
    kept = sequences(store)
    assert len(kept) == 3
    assert kept == list(range(kept[0], kept[0] + 3))
    assert len((await newest(store)).state.topics) == 9


async def test_a_state_that_another_node_overtook_is_not_written(catalog: Catalog, store: MemoryStore) -> None:
    """Between taking a number and reading the state, another node writes, and then the catalog changes."""
    other = keeper_of(catalog, store, 2)
    keeper = keeper_of(catalog, store)
    take = catalog.next_manifest
    overtaken = False

    async def overtake(above: int) -> int:
        nonlocal overtaken
        number = await take(above)
        if not overtaken:
            overtaken = True
            await other.ensure_current()
            await create(catalog, "made-later")
        return number

    catalog.next_manifest = overtake  # type: ignore[method-assign]
    await keeper.ensure_current()
    last = await newest(store)
    assert last.node.node_id == 1
    assert [topic.name for topic in last.state.topics] == ["made-later"]


async def test_what_is_deleted_is_in_no_newest_manifest(catalog: Catalog, store: MemoryStore) -> None:
    (stream_id,) = await create(catalog, "flights")
    await catalog.open_streams([stream_id], StreamOwner(1, 1, WAL_ID))
    first = await upload(catalog, store, stream_id, 0, 100)
    keeper = keeper_of(catalog, store)
    await keeper.ensure_current()
    second = await upload(catalog, store, stream_id, 100, 200)
    await catalog.trim_stream(stream_id, 1, 100, now_ms=NOW, delete_after_ms=NOW)
    seen: list[dict[int, list[int]]] = []

    async def look(call: str, key: str) -> None:
        if call == "delete" and parse_manifest_key(key) is None:
            seen.append({node: list(ids) for node, ids in (await newest(store)).state.committed.items()})

    store.hook = look
    collector = GarbageCollector(
        catalog=catalog,
        stores={"main": store},
        cluster=CLUSTER,
        now_ms=lambda: NOW,
        before_deleting=keeper.ensure_current,
    )
    assert await collector.collect() == 1
    assert seen == [{1: [second]}]
    assert object_key(CLUSTER, first) not in store.objects


async def test_nothing_is_deleted_while_no_manifest_can_be_written(catalog: Catalog, store: MemoryStore) -> None:
    (stream_id,) = await create(catalog, "flights")
    await catalog.open_streams([stream_id], StreamOwner(1, 1, WAL_ID))
    first = await upload(catalog, store, stream_id, 0, 100)
    await catalog.trim_stream(stream_id, 1, 100, now_ms=NOW, delete_after_ms=NOW)

    async def fail(call: str, key: str) -> None:
        if call == "put" and parse_manifest_key(key) is not None:
            raise StoreError("main: out of order")

    store.hook = fail
    keeper = keeper_of(catalog, store)
    collector = GarbageCollector(
        catalog=catalog,
        stores={"main": store},
        cluster=CLUSTER,
        now_ms=lambda: NOW,
        before_deleting=keeper.ensure_current,
    )
    with pytest.raises(StoreError, match="out of order"):
        await collector.collect()
    assert object_key(CLUSTER, first) in store.objects
    assert (await catalog.get_objects([first]))[first].state is ObjectState.DESTROYED


async def test_verify_counts_manifests_and_takes_them_for_no_objects(catalog: Catalog, store: MemoryStore) -> None:
    await keeper_of(catalog, store).ensure_current()
    await store.put(manifest_key("another", 1, 1), [b"x"], writer_id="w")
    report = await verify(catalog=catalog, stores={"main": store}, cluster=CLUSTER)
    assert report.ok
    assert (report.manifests, report.other_clusters, report.stored_objects) == (1, 1, 0)
    await store.put("manifest/test/note.txt", [b"x"], writer_id="w")
    report = await verify(catalog=catalog, stores={"main": store}, cluster=CLUSTER)
    assert [finding.where for finding in report.findings] == ["main:manifest/test/note.txt"]


# a catalog without the store's objects


async def test_the_catalog_that_wrote_the_newest_manifest_is_taken(catalog: Catalog, store: MemoryStore) -> None:
    await check_catalog_is_newest(catalog, store, CLUSTER)
    await keeper_of(catalog, store).ensure_current()
    await check_catalog_is_newest(catalog, store, CLUSTER)


async def test_a_manifest_that_its_node_drops_meanwhile_refuses_nobody(catalog: Catalog, store: MemoryStore) -> None:
    await keeper_of(catalog, store).ensure_current()

    async def drop(call: str, key: str) -> None:
        if call == "get":
            store.objects.pop(key)

    store.hook = drop
    await check_catalog_is_newest(catalog, store, CLUSTER)
    assert sequences(store) == []


async def test_an_older_copy_of_the_catalog_is_refused(catalog: Catalog, store: MemoryStore, tmp_path: Path) -> None:
    await keeper_of(catalog, store).ensure_current()
    with (
        closing(sqlite3.connect(tmp_path / "catalog.db")) as source,
        closing(sqlite3.connect(tmp_path / "older.db")) as copy,
    ):
        source.backup(copy)
    await create(catalog, "flights")
    await keeper_of(catalog, store).ensure_current()
    older = Catalog(f"sqlite:///{tmp_path / 'older.db'}")
    await older.open(cluster=CLUSTER)
    try:
        with pytest.raises(CatalogError, match=r"older than the object store.*last manifest is number 1.*number 2"):
            await check_catalog_is_newest(older, store, CLUSTER)
        store.objects[manifest_key(CLUSTER, 1, 2)] = (b"damaged", "w", NOW)
        with pytest.raises(CatalogError, match="older than the object store"):
            await check_catalog_is_newest(older, store, CLUSTER)
    finally:
        await older.close()


async def test_the_store_of_another_catalog_is_refused(store: MemoryStore, catalog: Catalog, tmp_path: Path) -> None:
    await keeper_of(catalog, store).ensure_current()
    other = Catalog(f"sqlite:///{tmp_path / 'other.db'}")
    await other.open(cluster=CLUSTER, new_id=bytes(15) + b"\1")
    try:
        for _ in range(5):
            await other.next_manifest(0)
        with pytest.raises(CatalogError, match=f"belongs to catalog {ID.hex()}"):
            await check_catalog_is_newest(other, store, CLUSTER)
    finally:
        await other.close()


async def test_a_manifest_under_the_key_of_another_is_corrupt(catalog: Catalog, store: MemoryStore) -> None:
    await keeper_of(catalog, store).ensure_current()
    store.objects[manifest_key(CLUSTER, 1, 9)] = store.objects[manifest_key(CLUSTER, 1, 1)]
    with pytest.raises(CorruptObject, match="its content is number 1"):
        await read_manifest(store, manifest_key(CLUSTER, 1, 9))
