"""The format of a backup: what it holds, of which engine and schema, and how damage is told."""

import gzip
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from anabranch.s3stream.catalog.backup import TABLES, read_backup
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.schema import FIRST_ADDITIVE, METADATA
from anabranch.s3stream.errors import CatalogError
from tests.s3stream.catalog.test_restore import CONTENTS

NOW = 1_700_000_000_000
SECRET = bytes(range(100, 132))


async def written(url: str, target: Path) -> Path:
    """A backup of a catalog with rows in almost every table."""
    catalog = Catalog(url)
    try:
        await catalog.open(cluster="test", new_id=CONTENTS.catalog_id)
        await catalog.restore(CONTENTS)
        await catalog.secret(SECRET)
        steps: list[tuple[int, int]] = []
        header = await catalog.back_up(
            target, now_ms=NOW, overwrite=False, on_progress=lambda *step: steps.append(step)
        )
        assert steps[-1] == (sum(header.rows.values()),) * 2
    finally:
        await catalog.close()
    return target


async def state_of(url: str) -> object:
    catalog = Catalog(url, read_only=True)
    try:
        await catalog.open(cluster="test")
        return await catalog.read_state()
    finally:
        await catalog.close()


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def store(path: Path, lines: list[Any]) -> None:
    """Write these lines, with the right checksum."""
    text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines[:-1])
    path.write_bytes(gzip.compress(text + json.dumps({"sha256": sha256(text).hexdigest()}).encode() + b"\n"))


async def test_a_backup_of_either_engine_has_the_state_and_the_owners_snapshots(url: str, tmp_path: Path) -> None:
    backup = read_backup(await written(url, tmp_path / "backup"))
    assert (backup.header.manifest, backup.state) == await state_of(url)
    assert backup.header.written_ms == NOW
    assert backup.header.catalog_id == CONTENTS.catalog_id.hex()
    assert {
        key: (each.epoch, each.snapshot, each.preferred, each.replicas) for key, each in backup.streams.items()
    } == {each.stream_id: (each.epoch, each.snapshot, each.preferred, each.replicas) for each in CONTENTS.streams}


async def test_all_tables_are_in_it_and_the_secret_of_the_nodes_is_not(url: str, tmp_path: Path) -> None:
    path = await written(url, tmp_path / "backup")
    assert set(TABLES) == set(METADATA.tables)
    assert {line["table"] for line in lines_of(path)[1:-1] if isinstance(line, dict)} == set(TABLES)
    assert SECRET.hex().encode() not in gzip.decompress(path.read_bytes())


NOT_IN_8 = {
    *("acls", "delegation_tokens", "moves", "draining", "beat_ms", "listeners", "preferred", "deleted_offset"),
    *("replicas", "level", "level_epoch"),
    *("tables", "table_schemas", "table_partitions", "table_snapshots", "table_files"),
}
"""Tables and columns that schema versions 9 and 11 to 14 added."""
COUNTERS_NOT_IN_8 = {"last_acl", "last_token", "last_secret", "table_file"}


def of_schema_8(lines: list[Any]) -> list[Any]:
    """The lines of a backup as a program of that version wrote it."""
    table, columns = "", list[str]()
    kept: list[Any] = []
    for line in lines[1:-1]:
        if isinstance(line, dict):
            table, columns = line["table"], line["columns"]
            line = {"table": table, "columns": [name for name in columns if name not in NOT_IN_8]}
        elif table != "counters" or line[0] not in COUNTERS_NOT_IN_8:
            line = [value for name, value in zip(columns, line, strict=True) if name not in NOT_IN_8]
        else:
            continue
        if table not in NOT_IN_8:
            kept.append(line)
    rows = {"all": sum(isinstance(line, list) for line in kept)}
    return [lines[0] | {"schema_version": 8, "rows": rows}, *kept, {}]


async def test_a_backup_of_an_older_schema_is_migrated(tmp_path: Path) -> None:
    path = await written(f"sqlite:///{tmp_path / 'catalog.db'}", tmp_path / "backup")
    store(path, of_schema_8(lines_of(path)))
    backup = read_backup(path)
    assert backup.state.schema_version == FIRST_ADDITIVE - 1, "additive steps leave it as it is"
    assert [topic.name for topic in backup.state.topics] == ["flights", "recovered-stream-8"]
    assert backup.streams[1].preferred == 1, "its leader"


def of_another_format(lines: list[Any]) -> None:
    lines[0]["format"] = "something else"


def of_a_newer_version(lines: list[Any]) -> None:
    lines[0]["version"] = 2


def of_a_newer_schema(lines: list[Any]) -> None:
    lines[0]["schema_version"] = 99


def with_fewer_rows(lines: list[Any]) -> None:
    del lines[max(place for place, line in enumerate(lines) if isinstance(line, list))]


def with_an_unknown_column(lines: list[Any]) -> None:
    lines[1]["columns"][0] = "name; DROP TABLE streams"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_another_format, "not a backup: expected the format 'anabranch backup'"),
        (of_a_newer_version, "format version 2, this program reads 1: use the version that wrote it"),
        (of_a_newer_schema, "schema version 99 is newer than this program's"),
        (with_fewer_rows, "damaged: ValueError: .* rows, expected "),
        (with_an_unknown_column, "damaged: ValueError: unknown columns of cluster"),
    ],
)
async def test_a_backup_that_this_program_cannot_read_is_refused(
    tmp_path: Path, change: Callable[[list[Any]], None], said: str
) -> None:
    path = await written(f"sqlite:///{tmp_path / 'catalog.db'}", tmp_path / "backup")
    lines = lines_of(path)
    change(lines)
    store(path, lines)
    with pytest.raises(CatalogError, match=f"^backup {path}: {said}") as raised:
        read_backup(path)
    assert "\n" not in str(raised.value)


async def test_every_kind_of_damage_is_told_in_one_line(tmp_path: Path) -> None:
    path = await written(f"sqlite:///{tmp_path / 'catalog.db'}", tmp_path / "backup")
    whole = path.read_bytes()
    text = gzip.decompress(whole)
    changed = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:60] + bytes([whole[60] ^ 1]) + whole[61:],
        "no gzip": b"hello",
        "other rows": gzip.compress(text.replace(b"flights", b"flaghts")),
        "without its end": gzip.compress(b"\n".join(text.splitlines()[:-1]) + b"\n"),
        "other JSON": gzip.compress(b"[1, 2]\n"),
    }
    for name, data in changed.items():
        path.write_bytes(data)
        with pytest.raises(CatalogError, match=r"damaged|incomplete|not a backup") as raised:
            read_backup(path)
        assert "\n" not in str(raised.value), name


async def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path / 'catalog.db'}", tmp_path / "backup"
    await written(url, tmp_path / "first")
    catalog = Catalog(url, read_only=True)
    await catalog.open(cluster="test")

    def appear(_done: int, _total: int) -> None:
        target.write_text("precious")

    try:
        with pytest.raises(CatalogError, match="the file exists"):
            await catalog.back_up(target, now_ms=NOW, overwrite=False, on_progress=appear)
    finally:
        await catalog.close()
    assert target.read_text() == "precious"
