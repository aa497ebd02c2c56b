"""A catalog whose database goes back to an earlier state: what a node was told shows it."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.catalog.restore import Advance
from anabranch.s3stream.errors import CatalogDamaged, CatalogError, CatalogWentBack
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.maintain.manifest_store import check_marks
from anabranch.s3stream.model import NodeIdentity, object_key
from anabranch.s3stream.object.marks import MarkPlace, MarkWriter
from tests.support.catalog_node import NODE_ID, NOW, MetadataNode, opened_catalog, span
from tests.support.clock import ManualClock
from tests.support.memory_store import MemoryStore, let_through
from tests.support.postgres import postgres_server


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        yield catalog


class Copy:
    """An earlier state of the database."""

    def __init__(self, folder: Path) -> None:
        self._live = folder / "catalog.db"
        self._copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(self._live)) as live:
            live.backup(self._copy)

    def put_back(self) -> None:
        with closing(sqlite3.connect(self._live)) as live:
            self._copy.backup(live)
        self._copy.close()


def writer_of(catalog: Catalog, store: MemoryStore) -> MarkWriter:
    return MarkWriter(MarkPlace(store, "test", catalog.identity()), NODE_ID, lambda: "w")


async def beat(scene: MetadataNode) -> None:
    await scene.catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=1_000)


async def test_a_forgotten_change_is_noticed_by_a_beat_and_by_reading_changes(catalog: Catalog, tmp_path: Path) -> None:
    scene = await MetadataNode.started(catalog)
    copy = Copy(tmp_path)
    await catalog.create_topic("u", bytes(15) + b"u", partitions=1, configs={}, leader=NODE_ID, internal=False)
    await beat(scene)
    copy.put_back()
    with pytest.raises(CatalogWentBack, match=r"do not restart the nodes.*`anabranch catalog rebuild`"):
        await beat(scene)
    with pytest.raises(CatalogWentBack):
        await catalog.read_changes(0)
    with pytest.raises(CatalogDamaged, match="gone back"):
        await catalog.next_manifest(0)


async def test_what_a_command_has_done_without_an_answer_is_known_when_it_is_repeated(
    catalog: Catalog, tmp_path: Path
) -> None:
    await MetadataNode.started(catalog)

    async def create(by: Catalog) -> None:
        await by.create_topic("u", bytes(15) + b"u", partitions=1, configs={}, leader=NODE_ID, internal=False)

    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as unanswered:
        await create(unanswered)
    await create(catalog)
    assert catalog.seen.change == (await catalog.progress()).change


async def test_forgotten_producer_ids_are_noticed(catalog: Catalog, tmp_path: Path) -> None:
    scene = await MetadataNode.started(catalog)
    copy = Copy(tmp_path)
    await catalog.next_producer_ids(10)
    await beat(scene)
    copy.put_back()
    with pytest.raises(CatalogWentBack):
        await beat(scene)


async def test_an_upload_at_the_moment_of_a_comparison_is_no_gap(catalog: Catalog) -> None:
    """Other nodes commit while a node starts, or takes another one over."""
    scene = await MetadataNode.started(catalog)
    store = MemoryStore("main")
    marks = writer_of(catalog, store)
    await marks.write(catalog.seen)

    async def uploads(call: str, _key: str) -> None:
        if call == "list":
            store.hook = let_through
            await scene.upload([span(scene.streams[0], 0, 10)])
            await marks.write(catalog.seen)

    store.hook = uploads
    await check_marks(catalog, store, "test")
    assert store.hook is let_through


async def test_a_commit_that_was_refused_or_repeated_counts_no_upload(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    objects = await scene.new_objects([span(scene.streams[0], 0, 10)])
    commit = scene.upload_commit(objects)
    for _ in range(2):
        await catalog.commit_upload(commit)
    gap = scene.upload_commit(await scene.new_objects([span(scene.streams[0], 20, 30)]))
    with pytest.raises(CatalogError, match="20"):
        await catalog.commit_upload(gap)
    assert catalog.seen.uploads == (await catalog.progress()).uploads == {NODE_ID: 1}
    await beat(scene)


async def test_an_upload_with_an_older_object_is_noticed_when_it_is_forgotten(catalog: Catalog, tmp_path: Path) -> None:
    """An upload that began anew has later ids than the next one, which was written meanwhile."""
    scene = await MetadataNode.started(catalog)
    older = await scene.new_objects([span(scene.streams[0], 10, 20)])
    await scene.upload([span(scene.streams[0], 0, 10)])
    copy = Copy(tmp_path)
    await catalog.commit_upload(scene.upload_commit(older))
    store = MemoryStore("main")
    await writer_of(catalog, store).write(catalog.seen)
    copy.put_back()
    with pytest.raises(CatalogWentBack):
        await check_marks(catalog, store, "test")


async def test_a_node_that_has_forgotten_nothing_does_not_collect_what_others_have_uploaded(
    catalog: Catalog, tmp_path: Path
) -> None:
    """The upload is prepared again for the catalog, and its deadline passes."""
    scene = await MetadataNode.started(catalog)
    store, clock = MemoryStore("main"), ManualClock(NOW)
    (upload,) = await scene.new_objects([span(scene.streams[0], 0, 10)])
    key = object_key("test", upload.object_id)
    await store.put(key, [b"records"], writer_id="writer")
    copy = Copy(tmp_path)
    await catalog.commit_upload(scene.upload_commit([upload]))
    await writer_of(catalog, store).write(catalog.seen)
    copy.put_back()
    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as of_another:
        clock.ms += 10**9
        collector = GarbageCollector(
            catalog=of_another,
            stores={"main": store},
            cluster="test",
            now_ms=clock.now_ms,
            check_catalog=lambda: check_marks(of_another, store, "test"),
        )
        with pytest.raises(CatalogWentBack):
            await collector.collect()
        assert key in store.objects
        assert of_another.went_back, "its node ends with its next beat"


async def test_what_was_compared_at_a_start_holds_for_the_next_connection(catalog: Catalog, tmp_path: Path) -> None:
    """Between the comparison and the registration of a node its database may fail over."""
    scene = await MetadataNode.started(catalog)
    store = MemoryStore("main")
    copy = Copy(tmp_path)
    await scene.upload([span(scene.streams[0], 0, 10)])
    await writer_of(catalog, store).write(catalog.seen)
    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as starting:
        await check_marks(starting, store, "test")
        assert starting.seen == await catalog.progress()
        copy.put_back()
        with pytest.raises(CatalogWentBack):
            await starting.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=1_000)


async def test_a_forgotten_upload_is_noticed_although_nothing_else_is_forgotten(
    catalog: Catalog, tmp_path: Path
) -> None:
    scene = await MetadataNode.started(catalog)
    await beat(scene)
    copy = Copy(tmp_path)
    await scene.upload([span(scene.streams[0], 0, 10)])
    await beat(scene)
    store = MemoryStore("main")
    await writer_of(catalog, store).write(catalog.seen)
    await check_marks(catalog, store, "test")
    copy.put_back()
    found = f"node {NODE_ID} has committed 1 uploads, and it knows 0"
    with pytest.raises(CatalogWentBack, match=found):
        await beat(scene)
    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as restarted:
        with pytest.raises(CatalogWentBack, match=found):
            await check_marks(restarted, store, "test")
    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as restarted:
        # An operator may decide to go on with the older state.
        await restarted.advance(Advance(1_000, 0, CatalogProgress(50, {NODE_ID: 9}), {}, 1, 1, 1))
        await check_marks(restarted, store, "test")
        assert await restarted.progress() == CatalogProgress(50, {NODE_ID: 9})


async def test_a_refused_commit_of_an_upload_is_compared(catalog: Catalog, tmp_path: Path) -> None:
    """Or else the uploader takes the refusal for a fence, and gives the records up."""
    scene = await MetadataNode.started(catalog)
    copy = Copy(tmp_path)
    await scene.upload([span(scene.streams[0], 0, 10)])
    copy.put_back()
    objects = await scene.new_objects([span(scene.streams[0], 10, 20)])
    with pytest.raises(CatalogWentBack):
        await catalog.commit_upload(scene.upload_commit(objects))


@pytest.mark.server
async def test_no_command_changes_a_server_that_has_gone_back(tmp_path: Path) -> None:
    """A failover breaks all connections: the first command of a new one finds out before it changes anything."""
    with postgres_server() as server:
        async with opened_catalog(server.new_database()) as catalog:
            scene = await MetadataNode.started(catalog)
            server.stop()
            server.keep_copy()
            server.start()
            await beat(scene)  # nothing was forgotten by a server that only restarts
            await scene.upload([span(scene.streams[0], 0, 10)])
            server.stop()
            server.put_back()
            server.start()
            with pytest.raises(CatalogWentBack):
                await catalog.next_producer_ids(10)
            for command in (catalog.next_producer_ids(10), beat(scene)):
                with pytest.raises(CatalogDamaged, match="gone back"):
                    await command
            assert catalog.went_back
            assert (await catalog.get_streams(scene.streams))[scene.streams[0]].end_offset == 0
