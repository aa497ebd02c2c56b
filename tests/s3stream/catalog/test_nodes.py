"""Contract of the catalog's identity, of registrations and of nodes' logs, on both databases."""

import asyncio
import shutil
import sqlite3
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from sqlalchemy import Connection, text

from anabranch.s3stream.catalog import database as database_module
from anabranch.s3stream.catalog import migration as migration_module
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.schema import MIGRATIONS
from anabranch.s3stream.catalog.values import NodeHolder, NodeInfo, NodeListener, WalState
from anabranch.s3stream.errors import CatalogError, NodeFenced, NodeInUse, NotFound
from anabranch.s3stream.model import NodeIdentity, StreamOwner
from tests.support.catalog_node import NODE_ID, NOW, WAL_ID, MetadataNode
from tests.support.waiting import WAIT_S, until

ID = bytes(range(16))
OTHER_ID = bytes(16 * [7])
ONE, TWO = NodeHolder("here", 1, "boot:1:1"), NodeHolder("there", 2, "boot:1:2")
LOG, NEXT_LOG = "0" * 15 + "1", "0" * 15 + "2"


# identity


async def test_a_catalog_keeps_the_id_it_was_given_first(url: str) -> None:
    for new_id in (ID, OTHER_ID, None):
        catalog = Catalog(url)
        await catalog.open(cluster="c", new_id=new_id)
        assert catalog.identity() == ID
        await catalog.close()
    only = Catalog(url, read_only=True)
    await only.open(cluster="c")
    assert only.identity() == ID
    await only.close()


async def test_a_catalog_without_an_id_takes_one_later(url: str) -> None:
    for new_id, expected in ((None, bytes(16)), (ID, ID)):
        catalog = Catalog(url)
        await catalog.open(cluster="c", new_id=new_id)
        assert catalog.identity() == expected
        await catalog.close()


async def fill_catalog_of_schema_3(url: str) -> None:
    """Create a catalog as an earlier version did, with a node."""
    database = Database(url)
    await database.open()

    def fill(connection: Connection) -> None:
        connection.execute(text("INSERT INTO cluster (name) VALUES ('c')"))
        connection.execute(text("INSERT INTO nodes VALUES (1, 5, 'h', 9092, 700)"))

    await database.write(fill)
    await database.close()


async def test_a_catalog_of_schema_3_keeps_its_nodes_and_takes_an_id(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migration_module, "MIGRATIONS", MIGRATIONS[:3])
        await fill_catalog_of_schema_3(empty_url)
    monkeypatch.setattr(migration_module, "UNKNOWN_LEASE_MS", 50)

    catalog = Catalog(empty_url)
    assert not await catalog.is_blank()
    await catalog.open(cluster="c", new_id=ID)
    assert catalog.identity() == ID
    listeners = (NodeListener("PLAINTEXT", "h", 9092),)
    assert await catalog.get_node(1) == NodeInfo(1, 5, "h", 9092, 700, listeners=listeners)
    assert await catalog.list_wals(1) == []
    registered = await catalog.register_node(1, "h", 9092, now_ms=NOW, lease_ms=10, holder=ONE, after_epoch=5)
    assert registered.epoch == 6
    await catalog.close()


# whether there is anything


async def test_a_catalog_is_blank_until_something_is_registered(empty_url: str) -> None:
    catalog = Catalog(empty_url)
    assert await catalog.is_blank()
    assert _is_untouched(empty_url), "a look leaves no trace"
    await catalog.open(cluster="c")
    assert await catalog.is_blank()
    await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)
    assert not await catalog.is_blank()
    await catalog.close()


async def test_a_catalog_whose_topics_are_gone_is_not_blank(url: str) -> None:
    catalog = Catalog(url)
    await catalog.open(cluster="c")
    await catalog.create_topic("t", ID, partitions=1, configs={}, leader=-1, internal=False)
    await catalog.delete_topics([ID], now_ms=NOW, delete_after_ms=NOW)
    assert not await catalog.is_blank()
    await catalog.close()


async def test_an_empty_file_is_a_blank_catalog(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    path.touch()
    catalog = Catalog(f"sqlite:///{path}")
    assert await catalog.is_blank()
    assert not path.stat().st_size
    await catalog.close()


def _is_untouched(url: str) -> bool:
    if url.startswith("sqlite"):
        return not Path(url.removeprefix("sqlite:///")).exists()
    with psycopg.connect(url) as connection:
        tables = connection.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        return tables.fetchone() == (0,)


# registrations


async def test_of_two_that_saw_the_same_epoch_one_registers(catalog: Catalog) -> None:
    async def register(holder: NodeHolder, after_epoch: int) -> NodeInfo | NodeFenced:
        try:
            return await catalog.register_node(
                NODE_ID, holder.host_name, 1, now_ms=NOW, lease_ms=50, holder=holder, after_epoch=after_epoch
            )
        except NodeFenced as error:
            return error

    for epoch in (0, 1):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(register(holder, epoch)) for holder in (ONE, TWO)]
        won = [result for task in tasks if isinstance(result := task.result(), NodeInfo)]
        (lost,) = [result for task in tasks if isinstance(result := task.result(), NodeFenced)]
        assert [node.epoch for node in won] == [epoch + 1]
        assert "registered by another process meanwhile" in str(lost)
        assert await catalog.get_node(NODE_ID) == won[0]
        assert won[0].lease_ms == 50


async def test_a_registration_whose_answer_was_lost_may_be_repeated(catalog: Catalog) -> None:
    first = await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=50, holder=ONE, after_epoch=0)
    again = await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW + 1, lease_ms=50, holder=ONE, after_epoch=0)
    assert again == first


async def test_a_clean_stop_ends_the_lease(catalog: Catalog) -> None:
    node = await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=50)
    await catalog.open_wal(LOG, node=NodeIdentity(NODE_ID, node.epoch), location="/wal", now_ms=NOW)
    with pytest.raises(NodeFenced):
        await catalog.stop_node(NodeIdentity(NODE_ID, node.epoch - 1), drained_wal=LOG, now_ms=NOW)
    await catalog.stop_node(NodeIdentity(NODE_ID, node.epoch), drained_wal=None, now_ms=NOW)
    assert [wal.state for wal in await catalog.list_wals(NODE_ID)] == [WalState.OPEN]
    for _ in range(2):
        await catalog.stop_node(NodeIdentity(NODE_ID, node.epoch), drained_wal=LOG, now_ms=NOW + 1)
    found = await catalog.get_node(NODE_ID)
    assert found is not None
    assert found.lease_until_ms == 0
    assert [(wal.state, wal.seen_ms) for wal in await catalog.list_wals(NODE_ID)] == [(WalState.DRAINED, NOW + 1)]


# logs


async def test_a_log_is_open_from_its_first_use_on(catalog: Catalog) -> None:
    node = await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=50)
    for at in (NOW, NOW + 1):
        await catalog.open_wal(LOG, node=NodeIdentity(NODE_ID, node.epoch), location="/wal", now_ms=at)
    (wal,) = await catalog.list_wals(NODE_ID)
    assert (wal.wal_id, wal.node_epoch, wal.location, wal.state) == (LOG, node.epoch, "/wal", WalState.OPEN)
    assert await catalog.list_wals(NODE_ID + 1) == []
    with pytest.raises(NodeFenced):
        await catalog.open_wal(LOG, node=NodeIdentity(NODE_ID, node.epoch + 1), location="/wal", now_ms=NOW)


async def test_no_second_log_beside_one_that_may_hold_records(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    await catalog.open_wal(LOG, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    with pytest.raises(CatalogError, match=f"the log {LOG} of node 1 may hold records"):
        await catalog.open_wal(NEXT_LOG, node=NodeIdentity(NODE_ID, scene.epoch), location="/b", now_ms=NOW)
    await catalog.delete_topics([scene.topic.topic_id], now_ms=NOW, delete_after_ms=NOW)
    await catalog.open_wal(NEXT_LOG, node=NodeIdentity(NODE_ID, scene.epoch), location="/b", now_ms=NOW)
    states = {wal.wal_id: wal.state for wal in await catalog.list_wals(NODE_ID)}
    assert states == {LOG: WalState.DRAINED, NEXT_LOG: WalState.OPEN}, "nobody is left whose records it could hold"


async def test_a_log_is_given_up_only_while_its_node_is_gone(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    seen = await catalog.get_node(NODE_ID)
    assert seen is not None
    assert await catalog.count_open_streams(NODE_ID) == len(scene.streams)
    with pytest.raises(NotFound):
        await catalog.give_up_wal(LOG, seen=seen, now_ms=NOW)
    await catalog.open_wal(LOG, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    await catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW + 5, lease_ms=100)
    with pytest.raises(NodeInUse, match="node 1 is alive"):
        await catalog.give_up_wal(LOG, seen=seen, now_ms=NOW)
    seen = await catalog.get_node(NODE_ID)
    assert seen is not None
    for _ in range(2):
        await catalog.give_up_wal(LOG, seen=seen, now_ms=NOW)
    assert [wal.state for wal in await catalog.list_wals(NODE_ID)] == [WalState.GIVEN_UP]
    with pytest.raises(NodeFenced):  # it was only paused, and continues
        await catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW + 10, lease_ms=100)
    with pytest.raises(CatalogError, match="was given up"):
        await catalog.open_wal(LOG, node=NodeIdentity(NODE_ID, scene.epoch + 1), location="/a", now_ms=NOW)


@pytest.mark.parametrize("drained", [False, True])
async def test_a_clean_stop_releases_streams_if_the_log_has_nothing(catalog: Catalog, *, drained: bool) -> None:
    scene = await MetadataNode.started(catalog)
    await catalog.open_wal(WAL_ID, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    await catalog.stop_node(NodeIdentity(NODE_ID, scene.epoch), drained_wal=WAL_ID if drained else None, now_ms=NOW)
    infos = (await catalog.get_streams(scene.streams)).values()
    assert {(info.node_id, info.wal_id) for info in infos} == {(-1, "") if drained else (NODE_ID, WAL_ID)}
    assert {each.leader for topic in await catalog.list_topics() for each in topic.partitions} == {NODE_ID}
    assert await catalog.count_open_streams(NODE_ID) == (0 if drained else len(scene.streams))


@pytest.mark.parametrize(("claimed", "owner"), [(1, -1), (2, NODE_ID)])
async def test_an_older_copy_of_a_catalog_learns_that_the_log_has_records_of_released_streams(
    catalog: Catalog, claimed: int, owner: int
) -> None:
    scene = await MetadataNode.started(catalog)
    await catalog.open_wal(WAL_ID, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    await catalog.stop_node(NodeIdentity(NODE_ID, scene.epoch), drained_wal=WAL_ID, now_ms=NOW)
    await scene.register()
    await catalog.reclaim_streams(WAL_ID, node=NodeIdentity(NODE_ID, scene.epoch), claimed_epoch=claimed)
    assert {info.node_id for info in (await catalog.get_streams(scene.streams)).values()} == {owner}


async def test_streams_of_a_log_that_is_given_up_go_on_from_their_ends(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    await catalog.open_wal(WAL_ID, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    seen = await catalog.get_node(NODE_ID)
    assert seen is not None
    await catalog.give_up_wal(WAL_ID, seen=seen, now_ms=NOW)
    node = await catalog.register_node(NODE_ID, "h", 1, now_ms=NOW, lease_ms=1)
    await catalog.open_wal(NEXT_LOG, node=NodeIdentity(NODE_ID, node.epoch), location="/b", now_ms=NOW)
    opened = await catalog.open_streams(scene.streams, StreamOwner(NODE_ID, node.epoch, NEXT_LOG))
    assert {each.info.wal_id for each in opened} == {NEXT_LOG}


async def test_the_next_stream_id_lies_past_all_that_were_handed_out(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    assert await catalog.next_stream_id() == max(scene.streams) + 1
    await catalog.delete_topics([scene.topic.topic_id], now_ms=NOW, delete_after_ms=NOW)
    assert await catalog.next_stream_id() == max(scene.streams) + 1


# the file


@pytest.mark.parametrize("reader", [True, False])
async def test_the_file_alone_is_whole_after_a_clean_close(tmp_path: Path, *, reader: bool) -> None:
    """A concurrent reader keeps SQLite from doing this by itself when the last connection closes."""
    path = tmp_path / "c.db"
    catalog = Catalog(f"sqlite:///{path}")
    await catalog.open(cluster="c")
    with closing(sqlite3.connect(path)) as beside:
        if reader:
            beside.execute("SELECT * FROM topics").fetchall()
        await MetadataNode.started(catalog)
        await catalog.close()
        (tmp_path / "copy").mkdir()
        copy = Path(shutil.copy(path, tmp_path / "copy"))
    restored = Catalog(f"sqlite:///{copy}")
    await restored.open(cluster="c")
    assert [topic.name for topic in await restored.list_topics()] == ["t"]
    await restored.close()


async def test_a_reader_in_the_middle_of_a_snapshot_does_not_hold_up_a_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(database_module, "CHECKPOINT_ATTEMPTS", 1)
    path = tmp_path / "c.db"
    catalog = Catalog(f"sqlite:///{path}")
    await catalog.open(cluster="c")
    with closing(sqlite3.connect(path, isolation_level=None)) as beside:
        beside.execute("BEGIN")
        beside.execute("SELECT * FROM topics").fetchall()
        await MetadataNode.started(catalog)
        await catalog.close()
    assert "complete only together with its -wal file" in capsys.readouterr().out


async def test_two_nodes_that_close_at_once_leave_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is moving the log into the file, and waits for a reader: SQLite refuses the other one at once."""
    path = tmp_path / "c.db"
    catalog = Catalog(f"sqlite:///{path}")
    await catalog.open(cluster="c")
    connect = partial(sqlite3.connect, path, isolation_level=None, check_same_thread=False)
    with ExitStack() as stack:
        reader, other, third = (stack.enter_context(closing(connect())) for _ in range(3))
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM topics").fetchall()
        await MetadataNode.started(catalog)
        other.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000}")

        def move() -> None:
            while other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                pass  # the look below was in its way

        moving = Thread(target=move)
        moving.start()
        await until(lambda: bool(third.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0]), pause_s=0.01)

        def let_it_move(_: float) -> None:
            reader.close()
            moving.join(WAIT_S)

        monkeypatch.setattr("time.sleep", let_it_move)
        await catalog.close()
        assert not moving.is_alive()
    assert "complete only together with its -wal file" not in capsys.readouterr().out


async def test_manifests_are_numbered_above_all_before(catalog: Catalog) -> None:
    assert await catalog.last_manifest() == 0
    assert await catalog.next_manifest(0) == 1
    assert await catalog.next_manifest(7) == 8
    assert await catalog.next_manifest(0) == 9
    assert await catalog.last_manifest() == 9


async def test_a_node_has_named_listeners(catalog: Catalog) -> None:
    named = (NodeListener("INSIDE", "a", 1), NodeListener("OUTSIDE", "::1", 2))
    await catalog.register_node(1, "a", 1, now_ms=NOW, lease_ms=10_000, listeners=named)
    await catalog.register_node(2, "b", 3, now_ms=NOW, lease_ms=10_000)
    assert [node.listeners for node in await catalog.list_nodes()] == [named, (("PLAINTEXT", "b", 3),)]
    await catalog.register_node(1, "c", 4, now_ms=NOW, lease_ms=10_000)
    assert [node.listeners[0] for node in await catalog.list_nodes()] == [("PLAINTEXT", "c", 4), ("PLAINTEXT", "b", 3)]
