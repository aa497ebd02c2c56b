"""Parts of the catalog below its contract: schema, transactions, lost connections, error messages."""

import asyncio
import shutil
import socket
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, make_url, text

from anabranch.s3stream.catalog import database as database_module
from anabranch.s3stream.catalog import migration as migration_module
from anabranch.s3stream.catalog import objects
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.nodes import list_nodes
from anabranch.s3stream.catalog.rows import find_objects, find_streams
from anabranch.s3stream.catalog.schema import FIRST_ADDITIVE, METADATA, MIGRATIONS
from anabranch.s3stream.catalog.topics import parse_configs
from anabranch.s3stream.errors import CatalogDamaged, CatalogError, CatalogUnavailable
from tests.support.catalog_node import MetadataNode, opened_catalog, span
from tests.support.postgres import PostgresServer
from tests.support.quick import real_sqlite
from tests.support.table_node import NEW_TABLE
from tests.support.transaction_pooler import transaction_pooler
from tests.support.waiting import until


@pytest.fixture
def url(empty_url: str) -> str:
    return empty_url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "expected sqlite:///PATH or postgresql://USER@HOST/DB"),
        ("sqlite://", "found sqlite"),
        ("mysql://u:secret@h/d", r"mysql://u:\*\*\*@h/d: .* found mysql"),
        ("postgresql://u:secret@h:abc/d", "expected sqlite:///PATH or postgresql://USER@HOST/DB"),
        (
            "mysql://u@h/d?password=secret&sslPassword=secret2",
            r"u@h/d.password=[.]{3}&sslPassword=[.]{3}: .* found",
        ),
        ("sqlite:////c.db?timeout=soon", "c.db.timeout=soon: could not convert string to float"),
    ],
)
def test_a_bad_url_is_named_without_its_password(url: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message) as caught:
        Catalog(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_pooler_of_transactions_is_refused(postgres: PostgresServer, *, read_only: bool) -> None:
    url = postgres.new_database()
    direct = Database(url)
    await direct.open()
    await direct.close()
    async with transaction_pooler(url) as pooled:
        database = Database(pooled, read_only=read_only)
        with pytest.raises(CatalogError, match="a pooler that gives each transaction another session"):
            await database.open()
        await database.close()


async def test_the_tables_are_those_the_migrations_make(url: str) -> None:
    database = Database(url)
    await database.open()

    def columns(connection: Connection) -> dict[str, list[str]]:
        found = inspect(connection)
        return {name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()}

    found = await database.read(columns)
    await database.close()
    declared = {table.name: [column.name for column in table.columns] for table in METADATA.tables.values()}
    assert found == {**declared, "schema_version": ["version"], "schema_additions": ["version"]}


OLD_WRITER_IDS = {
    # The age and "cleaned" of an object of schema 4, by its writer id. All were committed at 900.
    "0a1b.upload-1-7": (900, 0),
    "0a1b.born-850": (850, 0),
    "0a1b.cleaned": (900, 1),
    "0a1b": (900, 0),
    "": (900, 0),
    "cleaned": (900, 0),
    "0a1b.born-": (900, 0),
    "0a1b.born-850x": (900, 0),
}


async def test_schema_5_takes_the_age_of_objects_from_their_writer_ids(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", [step for step in MIGRATIONS if step[0] <= 4])
        database = Database(url)
        await database.open()
        row = (
            "INSERT INTO objects (object_id, kind, state, store, size_bytes, node_id, writer_id, deadline_ms, "
            "committed_ms, upload_id) VALUES (:object_id, 1, :state, 's', 1, 1, :writer_id, 0, :committed_ms, '')"
        )
        committed = [
            {"object_id": object_id, "state": 2, "writer_id": writer_id, "committed_ms": 900}
            for object_id, writer_id in enumerate(OLD_WRITER_IDS)
        ]
        prepared = [{"object_id": 99, "state": 1, "writer_id": "0a1b", "committed_ms": 0}]
        await database.write(lambda c: c.execute(text(row), committed + prepared))
        await database.close()
    database = Database(url)
    await database.open()
    found = await database.read(lambda c: find_objects(c, [*range(len(committed)), 99]))
    assert {
        info.writer_id: (info.oldest_data_ms, info.cleaned) for key, info in found.items() if key != 99
    } == OLD_WRITER_IDS
    assert (found[99].oldest_data_ms, found[99].cleaned) == (0, False)
    await database.close()


async def test_a_data_directory_of_schema_10_opens_and_its_topics_may_get_tables(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", [step for step in MIGRATIONS if step[0] <= 10])
        database = Database(url)
        await database.open()
        topic = "INSERT INTO topics (name, topic_id, internal, configs, changed) VALUES ('t', :topic_id, 0, '{}', 0)"
        await database.write(lambda c: c.execute(text(topic), {"topic_id": NEW_TABLE.topic_id}).close())
        assert "tables" not in await database.read(lambda c: inspect(c).get_table_names())
        await database.close()
    async with opened_catalog(url) as catalog:
        await catalog.tables.create(NEW_TABLE, now_ms=1)
        assert [(info.name, info.version) for info in await catalog.tables.list()] == [("t", 0)]


def stops_half_way(steps: Sequence[tuple[int, Sequence[str]]]) -> Sequence[tuple[int, Sequence[str]]]:
    """The migrations, the last of them with an error before its last statement."""
    *before, (version, statements) = steps
    return [*before, (version, [*statements[:-1], "SELECT no_such_column FROM objects", statements[-1]])]


async def test_a_migration_that_stops_half_way_changes_nothing_and_is_repeated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", [step for step in MIGRATIONS if step[0] <= 4])
        database = Database(url)
        await database.open()
        row = (
            "INSERT INTO objects (object_id, kind, state, store, size_bytes, node_id, writer_id, deadline_ms, "
            "committed_ms, upload_id) VALUES (:object_id, 1, 1, 's', 0, 1, :writer_id, 5000, 0, '')"
        )
        prepared = [{"object_id": key, "writer_id": writer} for key, writer in enumerate(OLD_WRITER_IDS, 1)]
        await database.write(lambda c: c.execute(text(row), prepared))
        await database.close()
    with monkeypatch.context() as broken:
        broken.setattr(migration_module, "MIGRATIONS", stops_half_way(MIGRATIONS))
        database = Database(url)
        with pytest.raises(CatalogError, match="no_such_column"):
            await database.open()
        await database.close()
    database = Database(url)
    await asyncio.gather(*(database.open() for _ in range(3)))
    found = await database.read(lambda c: find_objects(c, range(1, 1 + len(prepared))))
    assert {info.writer_id: (info.oldest_data_ms or 900, info.cleaned) for info in found.values()} == OLD_WRITER_IDS
    await database.close()


OLDER = [step for step in MIGRATIONS if step[0] <= 5]
REGISTER = (
    "INSERT INTO nodes (node_id, epoch, host, port, lease_until_ms, lease_ms, host_name, pid, lock_id) "
    "VALUES (1, 1, 'h', 9092, 5000, :lease_ms, '', 0, '')"
)


async def test_a_schema_is_not_changed_while_a_node_of_an_older_version_lives(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older node renews its lease by its own clock, which says nothing here."""
    monkeypatch.setattr(database_module, "LEASE_POLL_S", 0.0)
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", OLDER)
        database = Database(url)
        await database.open()
        await database.write(lambda c: c.execute(text(REGISTER), {"lease_ms": 60_000}).close())
    newer = Database(url)
    opening = asyncio.create_task(newer.open())
    renewals = 0
    while not opening.done():
        renewals += 1
        await database.write(lambda c: c.execute(text("UPDATE nodes SET lease_until_ms = lease_until_ms + 1")).close())
    with pytest.raises(CatalogError, match=f"node 1 of an older version is alive.* to version {MIGRATIONS[-1][0]}"):
        await opening
    assert await database.read(lambda c: c.execute(text("SELECT max(version) FROM schema_version")).scalar_one()) == 5
    await newer.close()
    await database.close()


async def test_a_schema_is_changed_when_leases_of_older_nodes_have_passed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", OLDER)
        database = Database(url)
        await database.open()
        await database.write(lambda c: c.execute(text(REGISTER), {"lease_ms": 200}).close())
        await database.close()
    database = Database(url)
    began = asyncio.get_running_loop().time()
    await database.open()
    assert asyncio.get_running_loop().time() - began >= 0.2
    assert (
        await database.read(lambda c: c.execute(text("SELECT max(version) FROM schema_version")).scalar_one())
        == FIRST_ADDITIVE - 1
    )
    await database.close()


async def test_topics_of_before_a_default_retention_keep_their_records(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"bare": "{}", "own": '{"a": "1", "retention.ms": "5"}', "other": '{"a": "1"}', "internal": "{}"}
    add = text("INSERT INTO topics (name, topic_id, internal, configs) VALUES (:name, :topic_id, :internal, :configs)")
    rows = [
        {"name": name, "topic_id": name.encode(), "internal": int(name == "internal"), "configs": configs}
        for name, configs in before.items()
    ]
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", MIGRATIONS[:9])
        database = Database(url)
        await database.open()
        await database.write(lambda c: c.execute(add, rows).close())
        await database.close()
    database = Database(url)
    await database.open()
    read = text("SELECT name, configs FROM topics")
    found = await database.read(lambda c: {row.name: row.configs for row in c.execute(read)})
    assert {name: parse_configs(configs) for name, configs in found.items()} == {
        "bare": {"retention.ms": "-1"},
        "own": {"a": "1", "retention.ms": "5"},
        "other": {"a": "1", "retention.ms": "-1"},
        "internal": {},
    }
    await database.close()


async def test_starts_of_before_they_were_noted_count_as_asked_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add = text(
        "INSERT INTO streams (stream_id, epoch, node_id, leader, leader_epoch, start_offset, end_offset,"
        " peak_timestamp_ms, snapshot) VALUES (1, 1, -1, -1, 1, 7, 9, 0, :snapshot)"
    )
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", MIGRATIONS[:11])
        database = Database(url)
        await database.open()
        await database.write(lambda c: c.execute(add, {"snapshot": b""}).close())
        await database.close()
    database = Database(url)
    await database.open()
    read = text("SELECT start_offset, deleted_offset FROM streams")
    assert await database.read(lambda c: tuple(c.execute(read).one())) == (7, 7)
    await database.close()


async def test_a_newer_schema_is_refused(url: str) -> None:
    database = Database(url)
    await database.open()
    await database.write(lambda c: c.execute(text("INSERT INTO schema_version (version) VALUES (99)")))
    with pytest.raises(CatalogError, match=f"schema version 99 is newer than this program's {MIGRATIONS[-1][0]}"):
        await database.open()
    await database.close()


async def test_whoever_only_looks_changes_nothing(url: str) -> None:
    database = Database(url)
    await database.open()
    only = Database(url, read_only=True)
    await only.open()
    await database.write(lambda c: c.execute(text("INSERT INTO cluster (name) VALUES ('x')")))
    count = text("SELECT count(*) FROM cluster")
    assert await only.read(lambda c: c.execute(count).scalar_one()) == 1, "a read sees the commits before it"
    with pytest.raises(CatalogError, match="was opened read-only"):
        await only.write(lambda c: c.execute(text("DELETE FROM cluster")))
    with pytest.raises(CatalogError, match=r"read-only|readonly"):
        await only.read(lambda c: c.execute(text("DELETE FROM cluster")))
    await only.close()
    await database.close()


async def test_whoever_only_looks_needs_the_schema_as_it_is(url: str) -> None:
    newest = MIGRATIONS[-1][0]
    database = Database(url)
    only = Database(url, read_only=True)
    with pytest.raises(CatalogError, match=r"there is no catalog in this database|unable to open database file"):
        await only.open()
    await database.open()
    await database.write(lambda c: c.execute(text(f"DELETE FROM schema_version WHERE version = {newest}")))
    with pytest.raises(CatalogError, match=f"schema version {newest - 1} is older than this program's {newest}"):
        await only.open()
    await database.write(lambda c: c.execute(text("INSERT INTO schema_version (version) VALUES (99)")))
    with pytest.raises(CatalogError, match=f"schema version 99 is newer than this program's {newest}"):
        await only.open()
    await only.close()
    await database.close()


async def test_a_catalog_that_is_looked_at_must_be_of_the_cluster(url: str) -> None:
    catalog = Catalog(url)
    await catalog.open(cluster="c")
    only = Catalog(url, read_only=True)
    with pytest.raises(CatalogError, match="belongs to cluster 'c', not to 'other'"):
        await only.open(cluster="other")
    await only.open(cluster="c")
    assert await only.list_topics() == []
    await only.close()
    await catalog.close()


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("state", ["running", "crashed", "stopped"])
async def test_a_look_leaves_files_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, writable: bool
) -> None:
    home = tmp_path / "running"
    home.mkdir()
    catalog = Catalog(f"sqlite:///{home / 'c.db'}")
    await catalog.open(cluster="c")
    await MetadataNode.started(catalog)
    if state == "crashed":
        home = Path(shutil.copytree(home, tmp_path / "crashed"))
    elif state == "stopped":
        await catalog.close()
    # Tests may run as root, which may write despite the permissions.
    monkeypatch.setattr("os.access", lambda path, mode: writable)
    before = {path.name: path.read_bytes() for path in home.iterdir() if not path.name.endswith("-shm")}
    only = Catalog(f"sqlite:///{home / 'c.db'}", read_only=True)
    await only.open(cluster="c")
    assert [topic.name for topic in await only.list_topics()] == ["t"]
    await only.close()
    assert {path.name: path.read_bytes() for path in home.iterdir() if not path.name.endswith("-shm")} == before
    if state != "stopped":
        await catalog.close()


async def test_a_failed_command_leaves_nothing(url: str) -> None:
    database = Database(url)
    await database.open()

    def fail(connection: Connection) -> None:
        connection.execute(text("INSERT INTO cluster (name) VALUES ('x')"))
        raise CatalogError("no")

    with pytest.raises(CatalogError, match=r"^no$"):
        await database.write(fail)
    assert await database.read(lambda c: c.execute(text("SELECT count(*) FROM cluster")).scalar_one()) == 0
    await database.close()


async def test_a_read_sees_one_snapshot(url: str) -> None:
    database = Database(url)
    await database.open()
    count = text("SELECT count(*) FROM cluster")
    loop = asyncio.get_running_loop()

    def read(connection: Connection) -> tuple[int, int]:
        before = connection.execute(count).scalar_one()
        write = database.write(lambda c: c.execute(text("INSERT INTO cluster (name) VALUES ('x')")))
        asyncio.run_coroutine_threadsafe(write, loop).result()
        return before, connection.execute(count).scalar_one()

    assert await database.read(read) == (0, 0)
    assert await database.read(lambda c: c.execute(count).scalar_one()) == 1
    await database.close()


async def test_writers_of_two_processes_take_turns(url: str) -> None:
    """Each transaction adds one to the value it read: an interleaving would lose an addition."""
    databases = [Database(url) for _ in range(2)]
    for database in databases:
        await database.open()

    def add_one(connection: Connection) -> None:
        found = connection.execute(text("SELECT next FROM counters WHERE name = 'producer'")).scalar_one()
        connection.execute(text("UPDATE counters SET next = :next WHERE name = 'producer'"), {"next": found + 1})

    async with asyncio.TaskGroup() as group:
        for database in databases * 20:
            group.create_task(database.write(add_one))
    query = text("SELECT next FROM counters WHERE name = 'producer'")
    assert await databases[0].read(lambda c: c.execute(query).scalar_one()) == 40
    for database in databases:
        await database.close()


async def test_lookups_cost_the_answer_not_the_history(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, which no other load on the computer changes."""
    url = f"sqlite:///{tmp_path / 'c.db'}"
    catalog = Catalog(url)
    await catalog.open(cluster="c")
    scene = await MetadataNode.started(catalog)
    stream = scene.streams[0]

    async def steps(query: Callable[[Connection], object]) -> int:
        seen = 0

        def count() -> None:
            nonlocal seen
            seen += 1

        def run(connection: Connection) -> None:
            query(connection)  # the first run looks up the schema
            sqlite: Any = connection.connection.dbapi_connection
            sqlite.set_progress_handler(count, 1)
            query(connection)
            sqlite.set_progress_handler(None, 1)

        database = Database(url)
        await database.read(run)
        await database.close()
        return seen

    costs: list[list[int]] = []
    for round_ in range(2):
        begin, end = ((0, 100), (100, 3_000))[round_]
        spans = [span(stream, at, at + 1, timestamp=at) for at in range(begin, end)]
        await scene.upload(*([one] for one in spans))
        costs.append(
            [
                await steps(lambda c: objects.find_ranges(c, stream, 5, 8, 100)),
                await steps(lambda c: objects.find_ranges(c, stream, 95, 2**62, 3)),
                await steps(partial(objects.find_time, stream_id=stream, timestamp_ms=end - 10)),
            ]
        )
    await catalog.close()
    assert costs[0] == costs[1]


async def test_sqlite_is_durable_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_sqlite(monkeypatch)
    database = Database(f"sqlite:///{tmp_path / 'c.db'}")
    pragmas = ("journal_mode", "synchronous", "foreign_keys")

    def settings(connection: Connection) -> list[object]:
        return [connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in pragmas]

    assert await database.read(settings) == ["wal", 2, 1]
    assert await database.write(settings) == ["wal", 2, 1]
    await database.close()


async def test_an_unusable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "c.db"
    catalog = Catalog(f"sqlite:///{path}")
    with pytest.raises(CatalogUnavailable, match=r"absent/c\.db: unable to open database file"):
        await catalog.open(cluster="c")
    await catalog.close()


async def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"not a database" * 100)
    catalog = Catalog(f"sqlite:///{path}")
    with pytest.raises(CatalogDamaged, match=r"file is not a database; .*`anabranch catalog rebuild`"):
        await catalog.open(cluster="c")
    await catalog.close()
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(path).execute("SELECT * FROM objects")


async def test_a_lost_connection_is_opened_again(postgres: PostgresServer) -> None:
    database = Database(postgres.new_database())
    await database.open()
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    others = text(f"{kill} AND pid <> pg_backend_pid()")
    for _ in range(3):
        # The reader ends the writer's session and the other way round; the next command finds its own gone.
        await database.read(lambda c: c.execute(others).all())
        assert await database.write(lambda c: c.execute(text("SELECT 1")).scalar_one()) == 1
        await database.write(lambda c: c.execute(others).all())
        assert await database.read(lambda c: c.execute(text("SELECT 2")).scalar_one()) == 2
    await database.close()


async def test_options_in_the_url_come_beside_those_that_keep_commits_durable(postgres: PostgresServer) -> None:
    url = make_url(postgres.new_database()).update_query_dict({"options": "-c lock_timeout=7s"})
    database = Database(url.render_as_string(hide_password=False))
    await database.open()
    query = text("SELECT name, setting, source FROM pg_settings WHERE name IN ('lock_timeout', 'synchronous_commit')")
    found = await database.write(lambda c: [tuple(row) for row in c.execute(query)])
    assert sorted(found) == [("lock_timeout", "7000", "client"), ("synchronous_commit", "on", "client")]
    await database.close()


async def test_a_server_that_is_not_there_is_unavailable(postgres: PostgresServer) -> None:
    port = postgres.port
    database = Database(f"postgresql://anabranch:secret@127.0.0.1:{port}/absent")
    with pytest.raises(CatalogUnavailable, match='database "absent" does not exist') as caught:
        await database.open()
    assert "secret" not in str(caught.value)
    await database.close()


async def test_no_server_at_the_start_is_told_at_once_in_one_line() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # the port is taken, but not listening
        catalog = Catalog(f"postgresql://u:secret@127.0.0.1:{nobody.getsockname()[1]}/db")
        with pytest.raises(CatalogUnavailable, match="Connection refused") as raised:
            await catalog.open(cluster="test")
        await catalog.close()
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


async def test_a_server_that_does_not_answer_does_not_hold_up_the_end(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "CLOSE_TIMEOUT_S", 0.1)
    database = Database(postgres.new_database())
    await database.open()
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask(connection: Connection) -> None:
        loop.call_soon_threadsafe(asked.set)
        connection.execute(text("SELECT pg_sleep(3600)"))

    for run in (database.write, database.read):
        asked.clear()
        asking = asyncio.create_task(run(ask))
        await asked.wait()
        asking.cancel()
    await database.close()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE topics SET name = CAST(x'1b5b324aff' AS TEXT)", "UTF-8"),
        ("UPDATE topics SET configs = '?'", "JSONDecodeError"),
        ("UPDATE objects SET state = 99", "ValueError: 99"),
    ],
)
async def test_content_that_nobody_has_written_is_damage(tmp_path: Path, change: str, found: str) -> None:
    file = tmp_path / "catalog.db"
    catalog = Catalog(f"sqlite:///{file}")
    await catalog.open(cluster="c")
    node = await MetadataNode.started(catalog)
    await node.upload([span(node.streams[0], 0, 10)])
    with sqlite3.connect(file) as connection:
        connection.execute(change)
    connection.close()

    async def read() -> None:
        await catalog.list_topics()
        await catalog.list_objects(after=-1, limit=10)

    with pytest.raises(CatalogDamaged, match=f"{found}.*the database is damaged") as raised:
        await read()
    assert str(raised.value).isprintable()
    with pytest.raises(CatalogDamaged, match="the database is damaged"):
        await node.create_topic("u", 1)
    await catalog.close()


@pytest.mark.parametrize(
    "command",
    [
        lambda catalog: catalog.alter_config("group", "\ud800", set_configs={"k": "v"}, unset=()),
        lambda catalog: catalog.register_node(7, "h", 2**63, now_ms=0, lease_ms=1),
    ],
    ids=["a lone surrogate", "more than 64 bits"],
)
async def test_a_parameter_that_does_not_fit_is_refused_and_is_no_damage(
    url: str, command: Callable[[Catalog], Awaitable[object]]
) -> None:
    """The database has never seen it."""
    catalog = Catalog(url)
    await catalog.open(cluster="c")
    node = await MetadataNode.started(catalog)
    with pytest.raises(CatalogError) as raised:
        await command(catalog)
    assert not isinstance(raised.value, CatalogDamaged | CatalogUnavailable)
    await node.create_topic("u", 1)
    await catalog.close()


OLD_STREAMS = {
    # node that had it open -> node and log that schema 6 gives it
    -1: (-1, ""),
    1: (1, "open"),
    2: (-1, ""),  # its log is drained
    3: (-1, ""),  # its log was given up
    4: (4, ""),  # it has not started since logs are recorded
}


async def test_schema_6_names_the_log_of_each_stream(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", OLDER)
        database = Database(url)
        await database.open()
        wal = "INSERT INTO wals VALUES (:wal_id, :node_id, 1, 'device', '/wal', :state, 0)"
        logs = [("drained-1", 1, 3), ("open", 1, 1), ("drained-2", 2, 3), ("given-up", 3, 4)]
        rows = [dict(zip(("wal_id", "node_id", "state"), each, strict=True)) for each in logs]
        stream = "INSERT INTO streams VALUES (:key, 1, :node_id, 1, 1, 0, 5, -1, :snapshot)"
        held = [{"key": key, "node_id": node_id, "snapshot": b""} for key, node_id in enumerate(OLD_STREAMS)]
        await database.write(lambda c: c.execute(text(wal), rows))
        await database.write(lambda c: c.execute(text(stream), held))
        await database.close()
    database = Database(url)
    await database.open()
    found = await database.read(lambda c: find_streams(c, range(len(OLD_STREAMS))))
    assert [(info.node_id, info.wal_id) for _, info in sorted(found.items())] == list(OLD_STREAMS.values())
    await database.close()


async def test_schema_9_prefers_the_leaders_of_before(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", MIGRATIONS[:8])
        database = Database(url)
        await database.open()
        stream = "INSERT INTO streams VALUES (:key, 1, -1, :key, 1, 0, 5, -1, :snapshot, '', 0)"
        await database.write(lambda c: c.execute(text(stream), [{"key": key, "snapshot": b""} for key in (1, 2)]))
        node = "INSERT INTO nodes VALUES (1, 1, 'h', 1, 0, 0, '', 0, '', 0, '', '', 0)"
        await database.write(lambda c: c.execute(text(node)))
        await database.close()
    database = Database(url)
    await database.open()
    query = text("SELECT leader, preferred FROM streams ORDER BY leader")
    assert (await database.read(lambda c: c.execute(query).all())) == [(1, 1), (2, 2)]
    assert (await database.read(lambda c: c.execute(text("SELECT draining FROM nodes")).scalars().all())) == [0]
    (known,) = await database.read(list_nodes)
    assert known.listeners == (("PLAINTEXT", "h", 1),)
    await database.close()


async def test_a_read_that_is_running_at_the_end_leaves_no_connection_open(postgres: PostgresServer) -> None:
    database = Database(postgres.new_database())
    await database.open()
    reading, may_go_on = threading.Event(), threading.Event()
    used: list[Any] = []

    def read(connection: Connection) -> None:
        used.append(connection.connection.dbapi_connection)
        reading.set()
        assert may_go_on.wait(60)

    running = asyncio.ensure_future(database.read(read))
    await asyncio.to_thread(reading.wait)
    closing = asyncio.ensure_future(database.close())
    # By now the other reader's thread has nothing left to do.
    await until(lambda: database._reader_threads._shutdown)  # noqa: SLF001 - no other sign of it
    may_go_on.set()
    await asyncio.gather(running, closing)
    assert used
    assert all(connection.closed for connection in used)
