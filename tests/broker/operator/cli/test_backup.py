"""`anabranch backup` on real data directories, on both engines."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.backup import backup
from anabranch.s3stream.catalog.backup import read_backup
from anabranch.s3stream.catalog.catalog import Catalog
from tests.support.node import running_node
from tests.support.postgres import PostgresServer

CLUSTER = "anabranch"


def run(data_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(backup, ["--data-dir", str(data_dir), *arguments])


async def fill(url: str, topics: int) -> None:
    made = Catalog(url)
    await made.open(cluster=CLUSTER)
    for number in range(topics):
        await made.create_topic(
            f"topic-{number}", number.to_bytes(16), partitions=2, configs={}, leader=1, internal=False
        )
    await made.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A catalog with three topics of two partitions."""
    asyncio.run(fill(f"sqlite:///{tmp_path / 'catalog.db'}", 3))
    return tmp_path


def topics_of(path: Path) -> list[str]:
    return [topic.name for topic in read_backup(path).state.topics]


def test_a_backup_holds_the_catalog_and_says_so(data_dir: Path) -> None:
    target = data_dir / "copies" / "catalog.backup"
    target.parent.mkdir()
    result = run(data_dir, str(target))
    assert result.exit_code == 0, result.output
    assert "cluster 'anabranch', schema version" in result.output
    assert "3 topics with 6 partitions, 0 detached topics, 0 objects" in result.output
    assert [path.name for path in target.parent.iterdir()] == ["catalog.backup"], "no temporary file is left"
    assert target.stat().st_mode & 0o777 == 0o600
    assert topics_of(target) == ["topic-0", "topic-1", "topic-2"]


async def test_a_backup_beside_a_running_node_holds_what_it_has_committed(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("made-before", partitions=3, configs={})
        result = await asyncio.to_thread(run, tmp_path / "data", str(tmp_path / "copy"))
        assert result.exit_code == 0, result.output
        await node.serving.topic_commands.create("made-after", partitions=1, configs={})
    assert topics_of(tmp_path / "copy") == ["made-before"]


def test_a_file_that_exists_is_overwritten_only_when_told(data_dir: Path) -> None:
    target = data_dir / "copy"
    target.write_text("precious")
    result = run(data_dir, str(target))
    assert result.exit_code == 1
    assert "the file exists; --force overwrites it" in result.output
    assert target.read_text() == "precious"
    assert run(data_dir, "--force", str(target)).exit_code == 0
    assert topics_of(target) == ["topic-0", "topic-1", "topic-2"]


def test_a_directory_that_is_not_there_is_named(data_dir: Path) -> None:
    result = run(data_dir, str(data_dir / "nowhere" / "copy"))
    assert result.exit_code == 1
    assert "nowhere/copy: No such file or directory" in result.output


def test_a_data_directory_without_a_catalog_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, str(tmp_path / "copy"))
    assert result.exit_code == 1
    assert "catalog.db: start the node first" in result.output
    assert not (tmp_path / "copy").exists()


def test_a_database_that_is_no_catalog_makes_no_backup(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        connection.execute("CREATE TABLE other (x)")
    result = run(tmp_path, str(tmp_path / "copy"))
    assert result.exit_code == 1
    assert "there is nothing in the catalog" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalog.db"]


def test_a_damaged_catalog_makes_no_backup(data_dir: Path) -> None:
    path = data_dir / "catalog.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'partitions'").fetchone()
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    damaged = bytearray(path.read_bytes())
    damaged[(root - 1) * page_bytes : root * page_bytes] = b"\xff" * page_bytes
    path.write_bytes(damaged)
    result = run(data_dir, str(data_dir / "copy"))
    assert result.exit_code == 1
    assert "damaged" in result.output
    assert not (data_dir / "copy").exists()


def test_a_catalog_on_postgresql_is_backed_up_and_described_as_json(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    asyncio.run(fill(url, 2))
    result = run(tmp_path, "--catalog-url", url, "--output", "json", str(tmp_path / "copy"))
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert (said["cluster"], said["rows"]["topics"]) == (CLUSTER, 2)
    assert said["size_bytes"] == (tmp_path / "copy").stat().st_size
    assert topics_of(tmp_path / "copy") == ["topic-0", "topic-1"]
