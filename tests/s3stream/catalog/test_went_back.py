"""A catalog whose database goes back to an earlier state: what a node was told shows it."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from s3stream.catalog.catalog import Catalog
from s3stream.catalog.restore import Advance
from s3stream.catalog.values import CatalogProgress
from s3stream.errors import CatalogDamaged, CatalogWentBack
from s3stream.maintain.manifest_store import check_marks
from s3stream.object.marks import MarkWriter
from s3stream.store.memory import MemoryStore, let_through
from tests.support.catalog_node import NODE_ID, NOW, MetadataNode, opened_catalog, span


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


async def beat(scene: MetadataNode) -> None:
    await scene.catalog.beat(NODE_ID, scene.epoch, now_ms=NOW, lease_ms=1_000)


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
    marks = MarkWriter(store, "test", NODE_ID, lambda: "w")
    await marks.write(0, 0)

    async def uploads(call: str, _key: str) -> None:
        if call == "list":
            store.hook = let_through
            (uploaded,) = await scene.upload([span(scene.streams[0], 0, 10)])
            await marks.write(uploaded.object_id, catalog.seen_change)

    store.hook = uploads
    await check_marks(catalog, store, "test")
    assert store.hook is let_through


async def test_a_forgotten_upload_is_noticed_although_nothing_else_is_forgotten(
    catalog: Catalog, tmp_path: Path
) -> None:
    scene = await MetadataNode.started(catalog)
    await beat(scene)
    copy = Copy(tmp_path)
    (uploaded,) = await scene.upload([span(scene.streams[0], 0, 10)])
    await beat(scene)
    store = MemoryStore("main")
    await MarkWriter(store, "test", NODE_ID, lambda: "w").write(uploaded.object_id, catalog.seen_change)
    await check_marks(catalog, store, "test")
    copy.put_back()
    with pytest.raises(CatalogWentBack, match=f"has uploaded is 0, and was {uploaded.object_id}"):
        await beat(scene)
    async with opened_catalog(f"sqlite:///{tmp_path}/catalog.db") as restarted:
        with pytest.raises(CatalogWentBack, match=f"the upload of object {uploaded.object_id} by node {NODE_ID}"):
            await check_marks(restarted, store, "test")
        # An operator may decide to go on with the older state.
        await restarted.advance(Advance(1_000, 0, 50, {}, 1, 1))
        await check_marks(restarted, store, "test")
        assert await restarted.progress() == CatalogProgress(51, {}, 999)
