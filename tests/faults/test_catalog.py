"""A catalog that refuses writes, is unavailable, or is damaged, under a serving node: clients wait, nothing is lost."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from anabranch.broker.app import StartError
from anabranch.s3stream.errors import CatalogDamaged
from tests.faults.rig import CountingProducer, Rig, read_back
from tests.support.node import NodeProcess, running_node
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

TOPIC = "events"
SMALL = {
    "storage_upload_age_ms": 100,
    "storage_gc_period_ms": 200,
    "storage_delete_delay_ms": 0,
    "storage_prepare_ttl_ms": 4000,
    "compaction_enabled": "false",
}


class Trouble:
    """A temporary fault of a database. `match` is part of the reason that the node reports."""

    match = ""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.name = make_url(url).database

    def begin(self) -> None:
        """Make every later commit fail."""
        raise NotImplementedError

    def end(self) -> None:
        """Restore normal operation."""
        raise NotImplementedError

    def cut_sessions(self) -> None:
        """End the node's sessions, so that it must reconnect."""
        self.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'")


class ReadOnly(Trouble):
    """The database is read-only, as during a move to another server."""

    match = "read-only transaction"

    def begin(self) -> None:
        self.server.execute(f"ALTER DATABASE {self.name} SET default_transaction_read_only = on")
        self.cut_sessions()

    def end(self) -> None:
        self.server.execute(f"ALTER DATABASE {self.name} RESET default_transaction_read_only")


class ReadOnlyServer(Trouble):
    """The same for all of the server: sessions learn of it when the configuration is read again."""

    match = "read-only transaction"

    def begin(self) -> None:
        self.server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        self.server.execute("SELECT pg_reload_conf()")

    def end(self) -> None:
        self.server.execute("ALTER SYSTEM RESET default_transaction_read_only")
        self.server.execute("SELECT pg_reload_conf()")


class NoConnections(Trouble):
    """The database refuses connections, as when other clients have used up the limit."""

    match = "not currently accepting connections"

    def begin(self) -> None:
        self.server.execute(f"ALTER DATABASE {self.name} WITH ALLOW_CONNECTIONS false")
        self.cut_sessions()

    def end(self) -> None:
        self.server.execute(f"ALTER DATABASE {self.name} WITH ALLOW_CONNECTIONS true")


class Restart(Trouble):
    """The server crashes, stays away for a while, and recovers."""

    match = "Connection refused"

    def begin(self) -> None:
        self.server.stop()

    def end(self) -> None:
        self.server.start()


@contextlib.contextmanager
def begun(trouble: Trouble) -> Iterator[None]:
    """The trouble, which is over in any case when the body ends: other tests use the server, too."""
    trouble.begin()
    try:
        yield
    finally:
        trouble.end()


async def test_a_catalog_in_trouble_holds_up_nothing_but_uploads(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with NodeProcess(tmp_path, catalog_url=url, catalog_lease_ms=1_000, **SMALL) as node:
        rig = Rig(node, tmp_path, tmp_path / "data" / "objects", {"catalog_url": url})
        load = CountingProducer(node.bootstrap, TOPIC, value_bytes=1_000, pause_s=0.02)
        for kind in (ReadOnly, ReadOnlyServer, NoConnections, Restart):
            go_through(kind(postgres, url), node, load)
        load.finish()
        node.wait_uploaded()
        await rig.expect_accounts_to_agree()
        assert node.terminate() == 0
        node.start()
        read_back(node.bootstrap, load)
        assert node.terminate() == 0


def go_through(trouble: Trouble, node: NodeProcess, load: CountingProducer) -> None:
    """Keep a node under load from its last upload before the trouble to the end of the outage."""
    uploads, waits = node.status()["storage"]["uploads"], len(node.events("upload waits"))
    load.send_while(lambda: node.status()["storage"]["uploads"] == uploads)
    with begun(trouble):
        load.send_while(
            lambda: not any(trouble.match in line["reason"] for line in node.events("upload waits")[waits:])
        )
        before = len(load.acked)
        load.send_while(lambda: len(load.acked) < before + 500)
        status = node.status()
        assert status["node"]["error"] is None
        assert status["node"]["writable"], "the log takes what the catalog does not"
        (outage,) = [each for each in status["outages"] if each["where"] == "catalog"]
        assert trouble.match in outage["reason"]
        assert not node.events("storage stopped")
    wait_until(lambda: not node.status()["outages"], "the outage is over")
    node.wait_uploaded()


async def test_a_start_on_a_read_only_database_fails_at_once_in_one_line(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.new_database()
    async with running_node(tmp_path, catalog_url=url):
        pass
    refusal = pytest.raises(StartError, match=r"^catalog .*: cannot execute .* in a read-only transaction$")
    with begun(ReadOnly(postgres, url)), refusal:
        async with running_node(tmp_path, catalog_url=url):
            pass
    async with running_node(tmp_path, catalog_url=url):
        pass


def overwrite(path: Path) -> bytes:
    """Damage all pages of an SQLite file except the first, which identifies it; returns the original contents."""
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (len(before) - 4096))
    return before


async def test_a_corrupt_sqlite_catalog_ends_a_start_with_the_way_on(tmp_path: Path) -> None:
    path = tmp_path / "data" / "catalog.db"
    with NodeProcess(tmp_path, catalog_lease_ms=1_000, **SMALL) as node:
        load = CountingProducer(node.bootstrap, TOPIC, value_bytes=1_000)
        load.send_while(lambda: len(load.acked) < 100)
        load.finish()
        assert node.terminate() == 0
        good = overwrite(path)
        node.spawn()
        assert node.wait() == 1
        line = node.lines[-1]
        assert "catalog.db: database disk image is malformed; the database is damaged" in line
        assert "`anabranch catalog rebuild` (docs/operations.md)" in line
        path.write_bytes(good)
        node.start()
        read_back(node.bootstrap, load)
        assert node.terminate() == 0


async def test_damage_that_is_met_while_a_node_runs_ends_it(tmp_path: Path) -> None:
    async def damaged(*_: object, **__: object) -> None:
        raise CatalogDamaged("catalog c.db: database disk image is malformed; restore a backup")

    # The stop is then like a crash: acknowledged records are in the log.
    with pytest.MonkeyPatch.context() as patch:
        async with running_node(tmp_path, catalog_lease_ms=1_000) as node:
            patch.setattr(node.serving.catalog, "beat", damaged)
            assert await node.failed == "catalog c.db: database disk image is malformed; restore a backup"
            patch.undo()
