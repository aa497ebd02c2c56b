"""Verification finds each disagreement between the catalog and the stores about files of tables."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from crc32c import crc32c
from sqlalchemy import text

from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.table_values import (
    TABLE_KEYS,
    TableFile,
    TableFileKind,
    TableKey,
    TableRetention,
    parse_table_key,
    table_file_key,
    table_location,
)
from anabranch.s3stream.maintain import verify_files
from anabranch.s3stream.maintain.findings import Finding, FindingKind, VerifyReport
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import ObjectState
from tests.support.catalog_node import CLUSTER, opened_catalog
from tests.support.memory_store import MemoryStore
from tests.support.table_node import NEW_TABLE, TABLE_ID, Spans, TableNode

BYTES = b"rows of a table " * 63


class Files:
    """A table whose committed files have bytes in a store."""

    def __init__(self, table: TableNode, url: str) -> None:
        self.table = table
        self.url = url
        self.store = MemoryStore("main")

    async def append(self, spans: Spans) -> list[TableFile]:
        """Commit data files, manifests and metadata, with their bytes."""
        commit = await self.table.append(spans)
        files = list((await self.table.tables.get_files([item.file_id for item in commit.added])).values())
        for file in files:
            await self.store.put(file.file_key, [BYTES[: file.size_bytes]], writer_id=file.writer_id)
            await self.sql(f"UPDATE table_files SET crc32c = {crc32c(BYTES[: file.size_bytes])}", file)
        return files

    async def sql(self, statement: str, file: TableFile | None = None) -> None:
        """Change the catalog behind its back, of one file or of all."""
        where = "" if file is None else f" WHERE file_id = {file.file_id}"
        database = Database(self.url)
        await database.write(lambda connection: connection.execute(text(statement + where)).close())
        await database.close()

    async def verify(self, *, deep: bool = False) -> VerifyReport:
        """Verify files alone: no stream of this node has objects with bytes."""
        report = VerifyReport(deep)
        found = verify_files.FileVerification(self.table.node.catalog, {"main": self.store}, CLUSTER, report, read=True)
        async for item in self.store.list(TABLE_KEYS):
            found.add("main", item)
        await found.run()
        return report


@pytest.fixture
async def files(tmp_path: Path) -> AsyncIterator[Files]:
    """Partition 0 has the offsets [0, 100), and so has the table, in two files."""
    url = f"sqlite:///{tmp_path / 'catalog.db'}"
    async with opened_catalog(url) as catalog:
        table = await TableNode.started(catalog)
        await table.grow(0, 100)
        yield Files(table, url)


def only(report: VerifyReport) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


async def test_sound_files_are_counted(files: Files) -> None:
    await files.append({0: [(0, 60)]})
    await files.append({0: [(60, 100)]})
    report = await files.verify(deep=True)
    assert report.ok, report.findings
    assert (report.tables, report.table_files[ObjectState.COMMITTED]) == (1, 6)
    assert report.table_bytes == 2 * (1_000 + 50 + 50)


async def test_a_missing_file_is_found(files: Files) -> None:
    file, *_ = await files.append({0: [(0, 100)]})
    del files.store.objects[file.file_key]
    assert only(await files.verify())[:2] == (FindingKind.MISSING, f"main:{file.file_key}")


async def test_a_file_of_another_size_is_found(files: Files) -> None:
    *_, file = await files.append({0: [(0, 100)]})
    data, writer_id, modified_ms = files.store.objects[file.file_key]
    files.store.objects[file.file_key] = (data[:-1], writer_id, modified_ms)
    found = only(await files.verify())
    assert (found.kind, found.detail) == (
        FindingKind.CORRUPT,
        f"main:{file.file_key}: expected 50 bytes, found 49",
    )


async def test_wrong_bytes_are_found_by_the_deep_check(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_files, "READ_BYTES_MAX", 300)
    file, *_ = await files.append({0: [(0, 100)]})
    assert (await files.verify(deep=True)).ok
    data, writer_id, modified_ms = files.store.objects[file.file_key]
    files.store.objects[file.file_key] = (data[:700] + b"!" + data[701:], writer_id, modified_ms)
    assert (await files.verify()).ok
    assert "CRC32C: expected" in only(await files.verify(deep=True)).detail


async def test_a_file_that_the_catalog_does_not_have_is_found(files: Files) -> None:
    await files.append({0: [(0, 100)]})
    key = table_file_key(NEW_TABLE.location, TableFileKind.DATA, 77)
    await files.store.put(key, [b"x"], writer_id="w")
    assert only(await files.verify()) == (FindingKind.UNACCOUNTED, f"main:{key}", "written by 'w'")


async def test_a_key_of_another_form_is_found(files: Files) -> None:
    key = f"{NEW_TABLE.location}/data/notes.txt"
    await files.store.put(key, [b"x"], writer_id="w")
    assert only(await files.verify()) == (FindingKind.UNACCOUNTED, f"main:{key}", "not the key of a table's file")


async def test_files_of_other_clusters_and_of_dropped_tables_are_counted(files: Files) -> None:
    for cluster in ("other", CLUSTER):
        key = table_file_key(table_location(cluster, b"D" * 16), TableFileKind.DATA, 1)
        await files.store.put(key, [b"x"], writer_id="w")
    report = await files.verify()
    assert (report.ok, report.other_clusters, report.kept_table_files) == (True, 1, 1)


async def test_a_file_in_an_unknown_store_is_found(files: Files) -> None:
    file, *_ = await files.append({0: [(0, 100)]})
    await files.sql("UPDATE table_files SET store = 'lost'", file)
    kinds = {finding.kind for finding in (await files.verify()).findings}
    assert kinds == {FindingKind.UNKNOWN_STORE, FindingKind.UNACCOUNTED}


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ("UPDATE table_files SET start_offset = 61 WHERE start_offset = 60", "a file begins at 61, expected 60"),
        ("UPDATE table_files SET removed = 2 WHERE end_offset = 60", "a file begins at 60, expected 0"),
        ("UPDATE table_files SET removed = 2 WHERE start_offset = 60", "no file has [60, 100)"),
        ("UPDATE table_partitions SET end_offset = 90", "a file ends at 100, expected 90"),
        ("UPDATE streams SET end_offset = 99", "has offsets up to 100, and the topic ends at 99"),
    ],
)
async def test_a_gap_and_an_end_past_that_of_the_topic_are_found(files: Files, change: str, detail: str) -> None:
    await files.append({0: [(0, 60), (60, 100)]})
    await files.sql(change)
    assert only(await files.verify()) == (FindingKind.DISCONTINUOUS, "table t", f"partition 0: {detail}")


async def test_a_table_that_keeps_its_files_may_have_holes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'catalog.db'}"
    async with opened_catalog(url) as catalog:
        files = Files(await TableNode.started(catalog, retention=TableRetention.KEEP), url)
        await files.table.grow(0, 100)
        await files.append({0: [(0, 60)]})
        await files.table.trim(0, 80)
        await files.append({0: [(80, 100)]})
        assert (await files.verify()).ok


async def test_a_file_collected_and_one_committed_meanwhile_are_no_findings(files: Files) -> None:
    old, *_ = await files.append({0: [(0, 60)]})
    tables = files.table.tables
    listing = tables.list_files
    changed = False

    async def change_first(*, after: int, limit: int) -> list[TableFile]:
        nonlocal changed
        if not changed:
            changed = True
            await files.append({0: [(60, 100)]})
            await files.sql("UPDATE table_files SET state = 3, removed = 2", old)
            await tables.forget_files([old.file_id])
            await files.sql("UPDATE table_partitions SET start_offset = 60")
            del files.store.objects[old.file_key]
        return list(await listing(after=after, limit=limit))

    tables.list_files = change_first  # type: ignore[method-assign]
    report = await files.verify(deep=True)
    assert report.ok, report.findings
    assert changed


async def test_verify_lists_the_files_of_tables_among_the_objects(files: Files) -> None:
    file, *_ = await files.append({0: [(0, 100)]})
    del files.store.objects[file.file_key]
    report = await verify(catalog=files.table.node.catalog, stores={"main": files.store}, cluster=CLUSTER)
    assert [each.where for each in report.findings if each.where.startswith(f"main:{TABLE_KEYS}")] == [
        f"main:{file.file_key}"
    ]


async def test_metadata_of_another_catalog_beside_ours_is_no_finding(files: Files) -> None:
    file, *_ = await files.append({0: [(0, 100)]})
    folder = f"{file.file_key.rpartition('/data/')[0]}/metadata"
    name = "00003-01234567-89ab-cdef-0123-456789abcdef"
    for each in (f"{name}.metadata.json", f"{name}.gz.metadata.json", f"{name}.json"):
        await files.store.put(f"{folder}/{each}", [b"{}"], writer_id="w")
    report = await verify(catalog=files.table.node.catalog, stores={"main": files.store}, cluster=CLUSTER)
    found = [each.where for each in report.findings if each.where.startswith(f"main:{TABLE_KEYS}")]
    assert found == [f"main:{folder}/{name}.json"]


@pytest.mark.parametrize("kind", TableFileKind)
def test_a_key_is_parsed_into_its_parts(kind: TableFileKind) -> None:
    location = table_location("c", TABLE_ID)
    assert parse_table_key(table_file_key(location, kind, 255)) == TableKey(location, "c", kind, 255)


@pytest.mark.parametrize(
    "key",
    [
        "table/c/t/data/00000000000000FF.parquet",
        "table/c/t/data/ff.parquet",
        "table/c/t/data/00000000000000ff.avro",
        "table/c/t/data/zzzzzzzzzzzzzzzz.parquet",
        "table/c/data/00000000000000ff.parquet",
        "other/c/t/data/00000000000000ff.parquet",
    ],
)
def test_another_key_is_none_of_a_table(key: str) -> None:
    assert parse_table_key(key) is None
