"""Verification finds each kind of damage, and reports none in sound storage."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import text

from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.maintain.findings import Finding, FindingKind, VerifyReport
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import (
    NewObject,
    ObjectInfo,
    ObjectKind,
    ObjectState,
    StreamBatch,
    object_key,
    parse_object_key,
)
from anabranch.s3stream.object.format import FOOTER_BYTES
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.wal.object.format import LogName, Position
from tests.support.catalog_node import LATER, NOW, MetadataNode, opened_catalog
from tests.support.memory_store import MemoryStore

CLUSTER = "test"
Runs = Sequence[tuple[int, int, int]]


class Storage(MetadataNode):
    """A scene whose objects have real bytes in a store."""

    store: MemoryStore

    async def write(self, runs: Runs) -> NewObject:
        """Write and commit an object of ten-offset batches over each (stream, start, end)."""
        item = await self.write_only(runs)
        await self.catalog.commit_upload(self.upload_commit([item]))
        return item

    async def write_only(self, runs: Runs) -> NewObject:
        (object_id,) = await self.prepare(1)
        kind = ObjectKind.SO if len(runs) == 1 else ObjectKind.SSO
        writer = ObjectWriter(
            self.store,
            self.key(object_id),
            object_id=object_id,
            kind=kind,
            writer_id="writer",
            block_bytes=256,
        )
        for stream, start, end in runs:
            for offset in range(start, end, 10):
                await writer.write(StreamBatch(stream, offset, offset + 10, 10, offset, b"%5d" % offset * 20))
        return await writer.finish()

    def key(self, object_id: int) -> str:
        return object_key(CLUSTER, object_id)

    def damage(self, item: NewObject, position: int) -> None:
        """Flip a byte; negative positions count from the end."""
        key = self.key(item.object_id)
        data, writer_id, modified_ms = self.store.objects[key]
        changed = bytearray(data)
        changed[position] ^= 0xFF
        self.store.objects[key] = (bytes(changed), writer_id, modified_ms)

    async def verify(self, *, deep: bool = False) -> VerifyReport:
        return await verify(catalog=self.catalog, stores={"main": self.store}, cluster=CLUSTER, deep=deep)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'catalog.db'}"


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with opened_catalog(url) as catalog:
        scene = await Storage.started(catalog)
        scene.store = MemoryStore("main")
        yield scene


def only(report: VerifyReport) -> Finding:
    (finding,) = report.findings
    return finding


@pytest.mark.parametrize("object_id", [1, 255, 2**40 + 7])
def test_keys_are_parsed_back(object_id: int) -> None:
    assert parse_object_key(object_key("a.b-c", object_id)) == ("a.b-c", object_id)


@pytest.mark.parametrize("key", ["", "x", "0000/c/1", f"{'0' * 16}/c/x", object_key("c", 5) + "/", "a/b/c/d"])
def test_other_keys_are_not_taken_for_objects(key: str) -> None:
    assert parse_object_key(key) is None


@pytest.mark.parametrize("deep", [False, True])
async def test_sound_storage_has_no_findings(storage: Storage, deep: bool) -> None:
    a, b, c = storage.streams
    first = await storage.write([(a, 0, 100), (b, 0, 50)])
    second = await storage.write([(a, 100, 200)])
    third = await storage.write([(a, 200, 250), (b, 50, 90), (c, 0, 30)])
    await storage.prepare(2)
    await storage.catalog.trim_stream(a, 1, 215, now_ms=NOW, delete_after_ms=LATER)
    await storage.store.put(object_key("another", 1), [b"x"], writer_id="w")
    report = await storage.verify(deep=deep)
    assert report.ok, report.findings
    assert report.objects == {ObjectState.COMMITTED: 2, ObjectState.DESTROYED: 1, ObjectState.PREPARED: 2}
    assert (report.streams, report.ranges, report.stored_objects, report.other_clusters) == (3, 4, 3, 1)
    assert report.object_bytes == first.size_bytes + third.size_bytes
    assert report.stored_bytes == first.size_bytes + second.size_bytes + third.size_bytes
    assert report.blocks > 8


async def test_a_missing_object_is_found(storage: Storage) -> None:
    item = await storage.write([(storage.streams[0], 0, 50)])
    del storage.store.objects[storage.key(item.object_id)]
    finding = only(await storage.verify())
    assert finding.kind is FindingKind.MISSING
    assert finding.where == f"main:{storage.key(item.object_id)}"


@pytest.mark.parametrize("position", [-1, -FOOTER_BYTES, -FOOTER_BYTES - 1])
async def test_damage_to_footer_or_index_is_found(storage: Storage, position: int) -> None:
    item = await storage.write([(storage.streams[0], 0, 50)])
    storage.damage(item, position)
    assert only(await storage.verify()).kind is FindingKind.CORRUPT


@pytest.mark.parametrize("position", [0, 300, 700])
async def test_damage_to_a_block_is_found_by_the_deep_check(storage: Storage, position: int) -> None:
    item = await storage.write([(storage.streams[0], 0, 100)])
    storage.damage(item, position)
    assert (await storage.verify()).ok
    finding = only(await storage.verify(deep=True))
    assert finding.kind is FindingKind.CORRUPT
    assert "CRC32C" in finding.detail


async def test_a_swapped_or_cut_object_is_found(storage: Storage) -> None:
    a, b, _ = storage.streams
    first, second = await storage.write([(a, 0, 50)]), await storage.write([(b, 0, 50)])
    objects = storage.store.objects
    objects[storage.key(first.object_id)] = objects[storage.key(second.object_id)]
    assert "expected 1" in only(await storage.verify()).detail
    data, writer_id, modified_ms = objects[storage.key(second.object_id)]
    objects[storage.key(first.object_id)] = (data[:-1], writer_id, modified_ms)
    assert "object size" in only(await storage.verify()).detail


async def test_ranges_that_the_object_does_not_hold_are_found(storage: Storage, url: str) -> None:
    item = await storage.write([(storage.streams[0], 0, 100)])
    for change, message in (
        ("end_offset = 120", r"expected blocks for [0, 120), found none at 100"),
        ("record_count = 99", "expected 99 records, found 100"),
    ):
        await sql(url, f"UPDATE ranges SET {change}")
        report = await storage.verify()
        assert report.findings[0].kind is FindingKind.RANGE
        assert message in report.findings[0].detail
        await sql(url, "UPDATE ranges SET end_offset = 100, record_count = 100")
    assert item.ranges
    assert (await storage.verify()).ok


async def test_what_the_catalog_does_not_know_is_found(storage: Storage) -> None:
    item = await storage.write_only([(storage.streams[0], 0, 50)])
    await storage.store.put("notes.txt", [b"x"], writer_id="w")
    assert only(await storage.verify()).where == "main:notes.txt"
    await storage.catalog.forget_objects([item.object_id])
    found = await storage.verify()
    assert {finding.kind for finding in found.findings} == {FindingKind.UNACCOUNTED}
    assert found.findings[1] == (FindingKind.UNACCOUNTED, f"main:{storage.key(item.object_id)}", "written by 'writer'")


async def test_the_objects_of_logs_are_not_the_catalogs(storage: Storage) -> None:
    key = LogName("c", 1, bytes(16)).key(Position(1, 2))
    await storage.store.put(key, [b"x"], writer_id="w")
    assert (await storage.verify()).ok


@pytest.mark.parametrize(("kept", "gap"), [(0, "[50, 100)"), (50, "[0, 50)")])
async def test_a_gap_in_a_stream_is_found(storage: Storage, url: str, kept: int, gap: str) -> None:
    stream = storage.streams[0]
    await storage.write([(stream, 0, 50)])
    await storage.write([(stream, 50, 100)])
    await sql(url, f"DELETE FROM ranges WHERE start_offset <> {kept}")
    finding = only(await storage.verify())
    assert finding == (FindingKind.DISCONTINUOUS, f"stream {stream}", f"no object holds {gap}")


async def test_an_object_in_an_unknown_store_is_found(storage: Storage, url: str) -> None:
    await storage.write([(storage.streams[0], 0, 50)])
    await sql(url, "UPDATE objects SET store = 'lost'")
    report = await storage.verify()
    assert {finding.kind for finding in report.findings} == {FindingKind.UNKNOWN_STORE, FindingKind.UNACCOUNTED}


async def test_what_changes_meanwhile_is_no_finding(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between listing the store and reading the catalog, one object is collected and another written."""
    stream = storage.streams[0]
    old = await storage.write([(stream, 0, 50)])
    listing = storage.catalog.list_objects

    async def change_first(*, after: int, limit: int) -> Sequence[ObjectInfo]:
        if storage.key(old.object_id) in storage.store.objects:
            await storage.write([(stream, 50, 100)])
            await storage.catalog.trim_stream(stream, 1, 50, now_ms=NOW, delete_after_ms=NOW)
            await storage.store.delete([storage.key(old.object_id)])
            await storage.catalog.forget_objects([old.object_id])
        return await listing(after=after, limit=limit)

    monkeypatch.setattr(storage.catalog, "list_objects", change_first)
    report = await storage.verify(deep=True)
    assert report.ok, report.findings
    assert storage.key(old.object_id) not in storage.store.objects


async def test_an_object_collected_while_it_is_read_is_no_finding(storage: Storage) -> None:
    stream = storage.streams[0]
    item = await storage.write([(stream, 0, 50)])

    async def collect(call: str, key: str) -> None:
        if call == "get" and key in storage.store.objects:
            await storage.catalog.trim_stream(stream, 1, 50, now_ms=NOW, delete_after_ms=NOW)
            del storage.store.objects[key]
            await storage.catalog.forget_objects([item.object_id])

    storage.store.hook = collect
    assert (await storage.verify()).ok


async def test_findings_are_bounded(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.s3stream.maintain.findings.FINDINGS_MAX", 3)
    for number in range(5):
        await storage.store.put(f"foreign-{number}", [b"x"], writer_id="w")
    report = await storage.verify()
    assert (len(report.findings), report.findings_dropped, report.ok) == (3, 2, False)


async def test_prepared_objects_of_a_running_upload_are_accounted_for(storage: Storage) -> None:
    await storage.write_only([(storage.streams[0], 0, 50)])
    assert (await storage.verify(deep=True)).ok


async def sql(url: str, statement: str) -> None:
    """Damage the catalog."""
    database = Database(url)
    await database.write(lambda connection: connection.execute(text(statement)))
    await database.close()
