"""The storage commands on a real data directory."""

import asyncio
import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.storage import storage
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.schema import MIGRATIONS
from anabranch.s3stream.catalog.values import UploadCommit
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectKind, StreamBatch, StreamOwner, object_key
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.store.files import TEMPORARY
from anabranch.s3stream.store.local import LocalStore
from tests.support.catalog_node import WAL_ID

CLUSTER = "anabranch"
NOW = 1_700_000_000_000


def run(data_dir: Path, *arguments: str, width: int = 200) -> Result:
    command, *rest = arguments
    environment = {"COLUMNS": str(width)}
    return CliRunner().invoke(storage, [command, "--data-dir", str(data_dir), *rest], env=environment)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Two objects of the topic `flights`: partition 0 and 1 together, then partition 0 alone."""
    asyncio.run(fill(tmp_path))
    return tmp_path


async def fill(folder: Path) -> None:
    catalog = Catalog(f"sqlite:///{folder / 'catalog.db'}")
    store = LocalStore("local", folder / "objects")
    await catalog.open(cluster=CLUSTER)
    await store.open()
    node = await catalog.register_node(1, "h", 1, now_ms=NOW, lease_ms=1)
    topic = await catalog.create_topic("flights", b"f" * 16, partitions=2, configs={}, leader=1, internal=False)
    streams = [partition.stream_id for partition in topic.partitions]
    await catalog.open_streams(streams, StreamOwner(1, node.epoch, WAL_ID))
    ids = await catalog.prepare_objects(
        3, node=NodeIdentity(1, node.epoch), writer_id="w-1", store="local", now_ms=NOW, deadline_ms=NOW + 1
    )
    a, b = streams
    objects = [
        await write(store, ids[0], ObjectKind.SSO, [(a, 0, 1000), (b, 0, 500)]),
        await write(store, ids[1], ObjectKind.SO, [(a, 1000, 3000)]),
    ]
    await catalog.commit_upload(UploadCommit(NodeIdentity(1, node.epoch), objects, dict.fromkeys(streams, 1), {}, NOW))
    await store.close()
    await catalog.close()


async def write(store: LocalStore, object_id: int, kind: ObjectKind, runs: Sequence[tuple[int, int, int]]) -> NewObject:
    key = object_key(CLUSTER, object_id)
    writer = ObjectWriter(store, key, object_id=object_id, kind=kind, writer_id="w-1", block_bytes=4096)
    for stream, start, end in runs:
        for offset in range(start, end, 100):
            await writer.write(StreamBatch(stream, offset, offset + 100, 100, NOW, bytes(1000)))
    return await writer.finish()


def stored(data_dir: Path, object_id: int) -> Path:
    """File of an object."""
    (found,) = [
        path for path in (data_dir / "objects").rglob("*") if path.is_file() and f"/{CLUSTER}/{object_id}" in str(path)
    ]
    return found


def test_ls_shows_objects_with_their_state(data_dir: Path) -> None:
    result = run(data_dir, "ls", width=80)
    assert result.exit_code == 0, result.output
    rows = {words[0]: words for words in map(str.split, result.output.splitlines()) if words}
    assert rows["1"][1:4] == ["SSO", "committed", "local"]
    assert rows["2"][1:4] == ["SO", "committed", "local"]
    assert "flights-0" in rows["2"]
    assert rows["3"][1:3] == ["-", "prepared"]
    assert "SSO prepared" in result.output


def test_looking_needs_no_right_to_write(data_dir: Path) -> None:
    """These commands change no file or folder."""

    def there() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (data_dir, *data_dir.rglob("*"))}

    shutil.rmtree(data_dir / "objects" / TEMPORARY)
    for folder in (data_dir, data_dir / "objects"):
        folder.chmod(0o555)
    before = there()
    for command in (["ls"], ["inspect", "1"], ["verify", "--deep"]):
        result = run(data_dir, *command)
        assert result.exit_code == 0, result.output
    after = there()
    assert after.keys() == before.keys()
    if os.geteuid() != 0:  # for whom SQLite may make its log and take it away again
        assert after == before
    for folder in (data_dir, data_dir / "objects"):
        folder.chmod(0o755)


def test_an_older_catalog_is_not_migrated_by_looking(data_dir: Path) -> None:
    newest = MIGRATIONS[-1][0]
    with closing(sqlite3.connect(data_dir / "catalog.db", isolation_level=None)) as database:
        database.execute("DELETE FROM schema_version WHERE version = ?", [newest])
        result = run(data_dir, "ls")
        assert result.exit_code == 1
        assert f"schema version {newest - 1} is older than this program's {newest}" in result.output
        assert database.execute("SELECT max(version) FROM schema_version").fetchone() == (newest - 1,)


def test_ls_can_be_narrowed(data_dir: Path) -> None:
    assert "prepared  local" not in run(data_dir, "ls", "--state", "committed").output
    assert "(more than 1; --limit shows more)" in run(data_dir, "ls", "--limit", "1").output
    found = json.loads(run(data_dir, "ls", "--limit", "1", "--output", "json").stdout)
    assert (len(found["objects"]), found["more"]) == (1, True)
    assert found["objects"][0]["size_bytes"] > 0
    assert sum(each["count"] for each in found["total"]) > 1
    of_topic = run(data_dir, "ls", "--topic", "flights").output.splitlines()
    assert [line.split()[:4] for line in of_topic[1:4]] == [
        ["0", "0", "1,000", "1,000"],
        ["0", "1,000", "3,000", "2,000"],
        ["1", "0", "500", "500"],
    ]
    assert {line.split()[-1] for line in of_topic[1:4]} == {"local"}
    both = run(data_dir, "ls", "--topic", "flights", "--state", "prepared")
    assert (both.exit_code, "--state cannot be combined with --topic" in both.output) == (2, True)
    missing = run(data_dir, "ls", "--topic", "absent")
    assert (missing.exit_code, missing.output) == (1, "Error: topic absent does not exist\n")


@pytest.mark.parametrize("which", ["1", object_key(CLUSTER, 1)])
def test_inspect_shows_ranges_and_index(data_dir: Path, which: str) -> None:
    result = run(data_dir, "inspect", which)
    assert result.exit_code == 0, result.output
    assert "footer: SSO of object 1, index of 6 blocks" in result.output
    assert "2023-11-14T22:13:20Z" in result.output
    assert "flights-1" in result.output
    assert object_key(CLUSTER, 1) in result.output
    short = run(data_dir, "inspect", which, "--blocks", "2")
    assert "(4 more blocks; --blocks shows more)" in short.output


def test_inspect_refuses_what_is_no_object(data_dir: Path) -> None:
    assert "object 99 is not in the catalog" in run(data_dir, "inspect", "99").output
    assert "expected the id or key of an object, found 'x/y'" in run(data_dir, "inspect", "x/y").output


def test_verify_finds_nothing_in_sound_storage(data_dir: Path) -> None:
    result = run(data_dir, "verify", "--deep")
    assert result.exit_code == 0, result.output
    assert "sound: nothing missing, nothing damaged, nothing unaccounted for" in result.output


def test_verify_fails_with_the_finding(data_dir: Path) -> None:
    file = stored(data_dir, 2)
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    assert run(data_dir, "verify").exit_code == 0
    result = run(data_dir, "verify", "--deep")
    assert result.exit_code == 1
    assert "block CRC32C" in result.output
    assert "Error: 1 finding: the storage is not sound" in result.output
    narrow = run(data_dir, "verify", "--deep", width=70).output
    assert "…" not in narrow, "a key must not be cut off"
    file.unlink()
    assert "a committed object is not in its store" in run(data_dir, "verify").output
    report = json.loads(run(data_dir, "verify", "--output", "json").stdout)
    assert (report["sound"], len(report["findings"])) == (False, 1)


def test_nothing_is_created_where_nothing_is(tmp_path: Path) -> None:
    result = run(tmp_path / "empty", "verify")
    assert result.exit_code == 1
    assert "no catalog in the data directory" in result.output
    assert not (tmp_path / "empty").exists()


def test_a_bad_setting_is_one_line(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("[node]\nnonsense = 1\n")
    result = run(data_dir, "ls", "--config", str(tmp_path / "node.toml"))
    assert result.exit_code == 2
    assert "unknown setting node.nonsense" in result.output
