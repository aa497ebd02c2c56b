"""Errors of the database classified as outage, refusal, damage, or unknown outcome."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from sqlalchemy import Connection, make_url, text

from anabranch.s3stream.catalog import database as database_module
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.errors import CatalogDamaged, CatalogError, CatalogUnavailable, NodeFenced, OutcomeUnknown
from tests.support.catalog_node import NODE_ID, NOW, MetadataNode, span
from tests.support.postgres import PostgresServer
from tests.support.postgres_proxy import LossyServer, lossy_server
from tests.support.table_node import TableNode

READ_ONLY = "default_transaction_read_only"
FAULTS: Sequence[str] = (
    # Has every write to `configs` answered with the state in `fault`, at once or at the commit.
    "CREATE TABLE fault (state TEXT, at_commit BOOLEAN)",
    """CREATE FUNCTION raise_fault() RETURNS trigger LANGUAGE plpgsql AS $$
       DECLARE state TEXT; BEGIN
         SELECT fault.state INTO state FROM fault WHERE at_commit = TG_ARGV[0]::boolean;
         IF state IS NOT NULL THEN RAISE EXCEPTION 'injected' USING ERRCODE = state; END IF;
         RETURN NEW;
       END $$""",
    "CREATE TRIGGER fails BEFORE INSERT ON configs FOR EACH ROW EXECUTE FUNCTION raise_fault('false')",
    """CREATE CONSTRAINT TRIGGER fails_late AFTER INSERT ON configs DEFERRABLE INITIALLY DEFERRED
       FOR EACH ROW EXECUTE FUNCTION raise_fault('true')""",
)


@pytest.fixture(autouse=True)
def quick_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "REPEAT_DELAYS_S", (0.0, 0.0))


@pytest.fixture
async def lossy(postgres: PostgresServer, schema: str) -> AsyncIterator[LossyServer]:
    async with lossy_server(postgres.new_database(template=schema)) as server:
        yield server


@pytest.fixture
async def far(lossy: LossyServer) -> AsyncIterator[Catalog]:
    """A catalog behind the proxy."""
    catalog = Catalog(lossy.url)
    await catalog.open(cluster="test")
    yield catalog
    await catalog.close()


def name_of(url: str) -> str:
    name = make_url(url).database
    assert name is not None
    return name


async def set_one(catalog: Catalog) -> None:
    await catalog.alter_config("kind", "name", set_configs={"key": "value"}, unset=())


async def test_a_commit_whose_answer_is_lost_is_repeated(lossy: LossyServer, far: Catalog) -> None:
    lossy.losses = 1
    await set_one(far)
    assert lossy.lost == 1
    assert await far.list_configs() == {("kind", "name"): {"key": "value"}}


async def test_a_commit_that_is_never_answered_is_unknown(lossy: LossyServer, far: Catalog) -> None:
    lossy.losses = 3
    with pytest.raises(OutcomeUnknown, match=r"test\d+: a commit was not answered \("):
        await set_one(far)
    assert await far.list_configs() == {("kind", "name"): {"key": "value"}}


async def test_a_commit_of_a_table_is_one_snapshot_however_often_its_answer_is_lost(
    lossy: LossyServer, far: Catalog
) -> None:
    table = await TableNode.started(far)
    await table.grow(0, 20)
    first, second = await table.change({0: [(0, 10)]}), await table.change({0: [(10, 20)]}, version=1)
    lossy.losses = 1
    assert await table.tables.commit(first) == 1
    assert lossy.lost == 1
    lossy.losses = 3
    with pytest.raises(OutcomeUnknown):
        await table.tables.commit(second)
    assert await table.tables.commit(second) == 2
    state = await table.state()
    assert [each.snapshot_id for each in state.snapshots] == [first.snapshot_id, second.snapshot_id]
    assert await table.bounds() == [(0, 10), (10, 20)]


async def test_a_repeat_on_a_server_that_is_read_only_by_now_leaves_the_outcome_unknown(
    postgres: PostgresServer, lossy: LossyServer, far: Catalog
) -> None:
    """A failover of PostgreSQL does this: the commit takes effect, and the next session gets SQLSTATE 25006."""

    async def demote() -> None:
        postgres.execute(f"ALTER DATABASE {name_of(lossy.url)} SET {READ_ONLY} = on")

    lossy.after_loss = demote
    lossy.losses = 1
    with pytest.raises(OutcomeUnknown, match=r"repeated, it met: cannot execute .* in a read-only transaction"):
        await set_one(far)
    assert await far.list_configs() == {("kind", "name"): {"key": "value"}}, "it took effect"
    postgres.execute(f"ALTER DATABASE {name_of(lossy.url)} RESET {READ_ONLY}")
    await set_one(far)


async def test_a_refusal_of_a_repeat_is_no_refusal_of_the_command(lossy: LossyServer, far: Catalog) -> None:
    scene = await MetadataNode.started(far)
    elsewhere = Catalog(lossy.url)
    await elsewhere.open(cluster="test")

    async def fence() -> None:
        await elsewhere.register_node(NODE_ID, "elsewhere", 1, now_ms=NOW, lease_ms=1)

    lossy.after_loss = fence
    lossy.losses = 1
    with pytest.raises(OutcomeUnknown, match="repeated, it met: node 1: epoch 1 is not the registered 2"):
        await scene.prepare()
    with pytest.raises(NodeFenced):
        await scene.prepare()
    await elsewhere.close()


@pytest.mark.parametrize("scope", ["ALTER DATABASE {}", "ALTER SYSTEM"])
async def test_a_moment_of_a_read_only_database_is_an_outage(postgres: PostgresServer, scope: str) -> None:
    url = postgres.new_database()
    statement = scope.format(name_of(url))
    catalog = Catalog(url)
    await catalog.open(cluster="test")
    postgres.execute(f"{statement} SET {READ_ONLY} = on")
    try:
        postgres.execute("SELECT pg_reload_conf()")
        postgres.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_of(url)}'")
        with pytest.raises(CatalogUnavailable, match="read-only transaction") as raised:
            await set_one(catalog)
        assert not isinstance(raised.value, OutcomeUnknown), "no commit was asked for"
        assert await catalog.list_configs() == {}
    finally:
        postgres.execute(f"{statement} RESET {READ_ONLY}")
        postgres.execute("SELECT pg_reload_conf()")
    # `ALTER DATABASE` is for new sessions: the one that was refused must not be used again.
    await set_one(catalog)
    assert await catalog.list_configs() == {("kind", "name"): {"key": "value"}}
    await catalog.close()


async def faulty(postgres: PostgresServer) -> tuple[str, Catalog]:
    url = postgres.new_database()
    catalog = Catalog(url)
    await catalog.open(cluster="test")
    for statement in FAULTS:
        postgres.execute(statement, database=name_of(url))
    return name_of(url), catalog


OUTAGES = ("53100", "53300", "57014", "57P01", "57P03", "55P03", "40001", "40P01", "25006", "58030", "42501", "XX000")


@pytest.mark.parametrize("state", OUTAGES)
async def test_outages_of_postgresql_end(postgres: PostgresServer, state: str) -> None:
    name, catalog = await faulty(postgres)
    postgres.execute(f"INSERT INTO fault VALUES ('{state}', false)", database=name)
    with pytest.raises(CatalogUnavailable, match="injected") as raised:
        await set_one(catalog)
    assert not isinstance(raised.value, OutcomeUnknown)
    postgres.execute("DELETE FROM fault", database=name)
    await set_one(catalog)
    await catalog.close()


@pytest.mark.parametrize("state", ["22003", "23505", "42601", "P0001"])
async def test_faults_of_a_command_are_refusals(postgres: PostgresServer, state: str) -> None:
    name, catalog = await faulty(postgres)
    postgres.execute(f"INSERT INTO fault VALUES ('{state}', false)", database=name)
    with pytest.raises(CatalogError, match="injected") as raised:
        await set_one(catalog)
    assert type(raised.value) is CatalogError
    await catalog.close()


@pytest.mark.parametrize("state", ["XX001", "XX002", "58P01", "42P01"])
async def test_damage_stops_writes_and_says_what_to_do(postgres: PostgresServer, state: str) -> None:
    name, catalog = await faulty(postgres)
    postgres.execute(f"INSERT INTO fault VALUES ('{state}', false)", database=name)
    with pytest.raises(CatalogDamaged, match=r"injected.*; the database is damaged.* `anabranch catalog rebuild`"):
        await set_one(catalog)
    postgres.execute("DELETE FROM fault", database=name)
    with pytest.raises(CatalogDamaged, match="injected"):
        await set_one(catalog)
    assert await catalog.list_configs() == {}, "reads go on"
    await catalog.close()


@pytest.mark.parametrize(("state", "certain"), [("40001", True), ("23514", True), ("XX000", False), ("57P01", False)])
async def test_what_a_commit_answers(postgres: PostgresServer, state: str, *, certain: bool) -> None:
    name, catalog = await faulty(postgres)
    postgres.execute(f"INSERT INTO fault VALUES ('{state}', true)", database=name)
    with pytest.raises(CatalogError, match="injected") as raised:
        await set_one(catalog)
    assert isinstance(raised.value, OutcomeUnknown) is not certain
    await catalog.close()


async def test_a_command_that_is_cut_off_before_its_commit_has_not_happened(postgres: PostgresServer) -> None:
    database = Database(postgres.new_database())
    await database.open()
    runs = 0

    def die(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with pytest.raises(CatalogUnavailable, match="terminating connection") as raised:
        await database.write(die)
    assert not isinstance(raised.value, OutcomeUnknown)
    assert runs == 3
    await database.close()


async def test_a_lock_that_others_keep_is_an_outage(postgres: PostgresServer) -> None:
    import psycopg

    url = postgres.new_database()
    impatient = make_url(url).update_query_dict({"options": "-c lock_timeout=10ms"}).render_as_string()
    catalog = Catalog(impatient)
    await catalog.open(cluster="test")
    with psycopg.connect(url) as holder:
        holder.execute(f"SELECT pg_advisory_xact_lock({database_module.WRITER_LOCK})")
        with pytest.raises(CatalogUnavailable, match="lock timeout"):
            await set_one(catalog)
    await set_one(catalog)
    await catalog.close()


async def test_too_many_connections_are_an_outage(postgres: PostgresServer) -> None:
    url = make_url(postgres.new_database()).set(username="limited")
    postgres.execute("CREATE ROLE limited LOGIN")
    postgres.execute(f"ALTER DATABASE {url.database} OWNER TO limited")
    catalog = Catalog(url.render_as_string())
    await catalog.open(cluster="test")
    catalog._database._reader.dispose()  # noqa: SLF001 - the connection for writing is left
    postgres.execute("ALTER ROLE limited CONNECTION LIMIT 1")
    with pytest.raises(CatalogUnavailable, match="too many connections"):
        await catalog.list_configs()
    await set_one(catalog)
    postgres.execute("ALTER ROLE limited CONNECTION LIMIT -1")
    assert await catalog.list_configs() == {("kind", "name"): {"key": "value"}}
    await catalog.close()


async def test_a_restart_of_the_server_is_an_outage(postgres: PostgresServer) -> None:
    catalog = Catalog(postgres.new_database())
    await catalog.open(cluster="test")
    await set_one(catalog)
    postgres.stop()
    try:
        for ask in (set_one(catalog), catalog.list_configs()):
            with pytest.raises(CatalogUnavailable):
                await ask
    finally:
        postgres.start()
    await set_one(catalog)
    assert await catalog.list_configs() == {("kind", "name"): {"key": "value"}}
    await catalog.close()


async def test_a_server_that_hangs_is_told_in_the_log(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from structlog.testing import capture_logs

    monkeypatch.setattr(database_module, "SLOW_COMMAND_S", 0.01)
    database = Database(postgres.new_database())
    await database.open()
    with capture_logs() as said:
        await database.read(lambda c: c.execute(text("SELECT pg_sleep(0.3)")).all())
    assert [line["event"] for line in said] == ["the catalog does not answer"]
    await database.close()


async def test_a_full_disk_is_an_outage_to_sqlite(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'c.db'}")
    await database.open()

    def fill(connection: Connection) -> None:
        connection.execute(text("INSERT INTO configs VALUES ('k', 'n', :text)"), {"text": "x" * 1_000_000})

    pages = await database.write(lambda c: c.execute(text("PRAGMA page_count")).scalar_one())
    await database.write(lambda c: c.execute(text(f"PRAGMA max_page_count = {pages}")).all())
    with pytest.raises(CatalogUnavailable, match=r"c\.db: database or disk is full"):
        await database.write(fill)
    await database.write(lambda c: c.execute(text("PRAGMA max_page_count = 100000")).all())
    await database.write(fill)
    await database.close()


def damage(path: Path) -> None:
    """Overwrite all pages except the first, which identifies the file."""
    page_bytes = 4096
    with path.open("r+b") as file:
        file.seek(page_bytes)
        file.write(b"\xa5" * (path.stat().st_size - page_bytes))


async def test_a_corrupt_sqlite_file_stops_writes_and_is_told_at_the_start_too(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    catalog = Catalog(f"sqlite:///{path}")
    await catalog.open(cluster="test")
    scene = await MetadataNode.started(catalog)
    await scene.upload([span(scene.streams[0], 0, 5)])
    await catalog.close()
    catalog = Catalog(f"sqlite:///{path}")
    await catalog.open(cluster="test")
    damage(path)
    line = r"c\.db: database disk image is malformed; the database is damaged.*restore a backup"
    with pytest.raises(CatalogDamaged, match=line):
        await catalog.list_objects(after=0, limit=1_000)
    with pytest.raises(CatalogDamaged, match=line):
        await set_one(catalog)
    await catalog.close()
    catalog = Catalog(f"sqlite:///{path}")
    with pytest.raises(CatalogDamaged, match=line):
        await catalog.open(cluster="test")
    await catalog.close()
