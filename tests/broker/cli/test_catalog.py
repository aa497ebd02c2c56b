"""The catalog commands on real data directories."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.catalog import catalog
from s3stream.catalog.backup import back_up
from s3stream.catalog.catalog import Catalog
from s3stream.errors import CatalogError
from tests.support.node import running_node

CLUSTER = "anabranch"


def run(data_dir: Path, *arguments: str) -> Result:
    command, *rest = arguments
    return CliRunner().invoke(catalog, [command, "--data-dir", str(data_dir), *rest], env={"COLUMNS": "200"})


async def fill(data_dir: Path, topics: int) -> None:
    made = Catalog(f"sqlite:///{data_dir / 'catalog.db'}")
    await made.open(cluster=CLUSTER)
    for number in range(topics):
        await made.create_topic(
            f"topic-{number}", number.to_bytes(16), partitions=2, configs={}, leader=1, internal=False
        )
    await made.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A catalog with three topics of two partitions."""
    asyncio.run(fill(tmp_path, 3))
    return tmp_path


async def topics_of(path: Path) -> list[str]:
    found = Catalog(f"sqlite:///{path}", read_only=True)
    await found.open(cluster=CLUSTER)
    try:
        return [topic.name for topic in await found.list_topics()]
    finally:
        await found.close()


def test_a_backup_holds_the_catalog_and_says_so(data_dir: Path) -> None:
    target = data_dir / "copies" / "catalog.backup"
    target.parent.mkdir()
    result = run(data_dir, "backup", str(target))
    assert result.exit_code == 0, result.output
    assert "cluster 'anabranch', schema version" in result.output
    assert "3 topics with 6 partitions, 0 detached topics, 0 objects" in result.output
    assert [path.name for path in target.parent.iterdir()] == ["catalog.backup"], "no temporary file is left"
    assert asyncio.run(topics_of(target)) == ["topic-0", "topic-1", "topic-2"]


async def test_a_backup_beside_a_running_node_holds_what_it_has_committed(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.topics.create("made-before", partitions=3, configs={})
        result = await asyncio.to_thread(run, tmp_path / "data", "backup", str(tmp_path / "copy"))
        assert result.exit_code == 0, result.output
        await node.topics.create("made-after", partitions=1, configs={})
    assert await topics_of(tmp_path / "copy") == ["made-before"]


def test_a_file_that_exists_is_overwritten_only_when_told(data_dir: Path) -> None:
    target = data_dir / "copy"
    target.write_text("precious")
    result = run(data_dir, "backup", str(target))
    assert result.exit_code == 1
    assert "the file exists; --force overwrites it" in result.output
    assert target.read_text() == "precious"
    assert run(data_dir, "backup", "--force", str(target)).exit_code == 0
    assert asyncio.run(topics_of(target)) == ["topic-0", "topic-1", "topic-2"]


def test_a_directory_that_is_not_there_is_named(data_dir: Path) -> None:
    result = run(data_dir, "backup", str(data_dir / "nowhere" / "copy"))
    assert result.exit_code == 1
    assert "nowhere/copy: No such file or directory" in result.output


def test_a_data_directory_without_a_catalog_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "backup", str(tmp_path / "copy"))
    assert result.exit_code == 1
    assert "catalog.db: no such file" in result.output
    assert not (tmp_path / "copy").exists()


def test_a_database_that_is_no_catalog_makes_no_backup(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        connection.execute("CREATE TABLE other (x)")
    result = run(tmp_path, "backup", str(tmp_path / "copy"))
    assert result.exit_code == 1
    assert "there is no catalog in the database" in result.output
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
    result = run(data_dir, "backup", str(data_dir / "copy"))
    assert result.exit_code == 1
    assert "damaged" in result.output
    assert not (data_dir / "copy").exists()


def test_postgresql_is_left_to_its_own_tools(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text('[catalog]\nurl = "postgresql://nobody@127.0.0.1:1/nothing"\n')
    result = CliRunner().invoke(catalog, ["backup", "--config", str(config), str(tmp_path / "copy")])
    assert result.exit_code == 1
    assert "pg_dump" in result.output


@contextmanager
def commits_under_way(path: Path) -> Iterator[list[int]]:
    """Another connection commits again and again."""
    done: list[int] = []
    stop = threading.Event()

    def commit() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not stop.is_set():
                connection.execute("UPDATE counters SET next = next + 1 WHERE name = 'producer'")
                done.append(1)

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def test_commits_meanwhile_do_not_make_the_copy_begin_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(fill(tmp_path, 40))
    monkeypatch.setattr("s3stream.catalog.backup.PAGES_PER_STEP", 1)
    steps: list[int] = []
    with commits_under_way(tmp_path / "catalog.db") as commits:

        def wait_for_a_commit(done: int, _total: int) -> None:
            steps.append(done)
            before = len(commits)
            while len(commits) == before:
                pass

        back_up(tmp_path / "catalog.db", tmp_path / "copy", on_progress=wait_for_a_commit)
    assert steps == list(range(1, len(steps) + 1)), "each page was copied once"
    assert len(steps) > 10


def test_a_file_that_appears_meanwhile_is_not_overwritten(data_dir: Path) -> None:
    target = data_dir / "copy"

    def appear(_done: int, _total: int) -> None:
        target.write_text("precious")

    with pytest.raises(CatalogError, match="the file exists"):
        back_up(data_dir / "catalog.db", target, on_progress=appear)
    assert target.read_text() == "precious"
