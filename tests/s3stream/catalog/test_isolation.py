"""Transactions on databases with other defaults than PostgreSQL's: each sets its isolation level explicitly."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, make_url, text

from anabranch.s3stream.catalog import configs, nodes, topics
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.values import NodeInfo
from anabranch.s3stream.errors import NodeFenced, NotFound
from anabranch.s3stream.model import NodeIdentity, ObjectState, StreamOwner
from tests.support.catalog_node import DEADLINE, LATER, NODE_ID, NOW, WAL_ID, MetadataNode, span
from tests.support.postgres import PostgresServer

TIMEOUT_S = 30
LEVELS = ("read uncommitted", "read committed", "repeatable read", "serializable")
WAITERS = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


def database_with(postgres: PostgresServer, **defaults: str) -> str:
    """URL of an empty database with such defaults for its sessions."""
    url = postgres.new_database()
    for name, value in defaults.items():
        postgres.execute(f"ALTER DATABASE {make_url(url).database} SET {name} = '{value}'")
    return url


async def race(url: str, first: Callable[[Connection], Any], second: Callable[[], Any]) -> Any:
    """Run a command of one node; begin another's when the first has the writer's lock, and commit it only then.

    Returns the result of the second command.
    """
    database = Database(url)
    has_lock, loop = asyncio.Event(), asyncio.get_running_loop()

    def command(connection: Connection) -> None:
        loop.call_soon_threadsafe(has_lock.set)
        while not connection.execute(WAITERS).scalar_one():
            connection.execute(text("SELECT pg_sleep(0.01)"))
        first(connection)

    try:
        running = asyncio.create_task(database.write(command))
        await has_lock.wait()
        answer = asyncio.create_task(second())
        await running
        return await answer
    finally:
        await database.close()


@pytest.mark.parametrize("level", LEVELS)
async def test_an_old_epoch_is_refused_whatever_the_databases_level(postgres: PostgresServer, level: str) -> None:
    url = database_with(postgres, default_transaction_isolation=level)
    catalog = Catalog(url)
    await catalog.open(cluster="test")
    scene = await MetadataNode.started(catalog)
    with pytest.raises(NodeFenced, match="epoch 1 is not the registered 2"):
        await race(
            url,
            lambda c: nodes.register_node(c, NodeInfo(NODE_ID, 0, "elsewhere", 9092, NOW), None),
            lambda: catalog.open_streams(scene.streams, StreamOwner(NODE_ID, scene.epoch, WAL_ID)),
        )
    await catalog.close()


@pytest.mark.parametrize("level", LEVELS)
async def test_a_clone_beside_a_deletion_refers_to_nothing_destroyed(postgres: PostgresServer, level: str) -> None:
    url = database_with(postgres, default_transaction_isolation=level)
    catalog = Catalog(url)
    await catalog.open(cluster="test")
    scene = await MetadataNode.started(catalog, 1)
    (stream,) = scene.streams
    (item,) = await scene.upload([span(stream, 0, 5)])
    with pytest.raises(NotFound, match="topic 't' does not exist"):
        await race(
            url,
            lambda c: topics.delete_topics(c, [scene.topic.topic_id], DEADLINE),
            lambda: catalog.clone_topic(
                "t", "copy", b"c" * 16, ends={stream: 5}, node=NodeIdentity(NODE_ID, scene.epoch)
            ),
        )
    assert await scene.state(item) == (ObjectState.DESTROYED, DEADLINE)
    assert not (await catalog.object_ranges([item.object_id]))[item.object_id]
    await catalog.close()


async def test_defaults_of_a_database_hold_for_no_transaction_of_the_catalog(postgres: PostgresServer) -> None:
    url = database_with(
        postgres,
        default_transaction_isolation="serializable",
        default_transaction_deferrable="on",
        statement_timeout="1ms",
        synchronous_commit="off",
        client_encoding="LATIN1",
    )
    wanted = (
        "transaction_isolation",
        "transaction_read_only",
        "transaction_deferrable",
        "statement_timeout",
        "synchronous_commit",
        "client_encoding",
    )

    def settings(connection: Connection) -> tuple[str, ...]:
        return tuple(connection.execute(text(f"SHOW {name}")).scalar_one() for name in wanted)

    database = Database(url)
    await database.open()
    assert await database.write(settings) == ("read committed", "off", "off", "0", "on", "UTF8")
    assert await database.read(settings) == ("repeatable read", "on", "off", "0", "on", "UTF8")
    await database.close()


async def test_a_settled_read_waits_for_a_commit_that_was_not_answered(postgres: PostgresServer) -> None:
    """The server may still be at work on it when the connection is lost."""
    url = postgres.new_database()
    catalog = Catalog(url)
    await catalog.open(cluster="test")
    scene = await MetadataNode.started(catalog)
    altered = {"retention.ms": "5"}

    def alter(connection: Connection) -> None:
        topics.alter_topic(connection, scene.topic.topic_id, lambda own: own | altered)

    def set_config(connection: Connection) -> None:
        configs.alter_config(connection, "kind", "name", {"k": "v"}, ())

    def delete(connection: Connection) -> None:
        topics.delete_topics(connection, [scene.topic.topic_id], LATER)

    assert await race(url, alter, lambda: catalog.list_topic_configs(settled=True)) == {scene.topic.topic_id: altered}
    assert await race(url, set_config, lambda: catalog.list_configs(settled=True)) == {("kind", "name"): {"k": "v"}}
    assert await race(url, delete, lambda: catalog.list_topics_and_detached(settled=True)) == ([], [])
    await catalog.close()


async def test_two_nodes_that_race_lose_nothing_on_a_serializable_database(postgres: PostgresServer) -> None:
    url = database_with(postgres, default_transaction_isolation="serializable")
    catalogs = [Catalog(url) for _ in range(2)]
    for catalog in catalogs:
        await catalog.open(cluster="test")
    scene = await MetadataNode.started(catalogs[0])
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                catalog.prepare_objects(
                    3,
                    node=NodeIdentity(NODE_ID, scene.epoch),
                    writer_id="w",
                    store="main",
                    now_ms=NOW,
                    deadline_ms=LATER,
                )
            )
            for catalog in catalogs * 10
        ]
    ids = [object_id for task in tasks for object_id in task.result()]
    assert sorted(ids) == list(range(1, 61))
    for catalog in catalogs:
        await catalog.close()


async def test_a_lease_is_renewed_beside_a_long_commit(postgres: PostgresServer) -> None:
    """Neither another node's nor the node's own: both hold the writers' lock until the lease is renewed."""
    url = postgres.new_database()
    catalog = Catalog(url)
    await catalog.open(cluster="test")
    scene = await MetadataNode.started(catalog)
    database = Database(url)
    loop, began, renewed = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def long_commit(_: Connection) -> None:
        loop.call_soon_threadsafe(began.set)
        renewed.wait()

    commit = asyncio.create_task(database.write(long_commit))
    await began.wait()
    own = asyncio.create_task(catalog.next_producer_ids(1))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=77)
            with pytest.raises(NodeFenced):
                await catalog.beat(NodeIdentity(NODE_ID, scene.epoch - 1), now_ms=NOW, lease_ms=99)
        assert not own.done()
    finally:
        renewed.set()
    await asyncio.gather(commit, own)
    found = await catalog.get_node(NODE_ID)
    assert found is not None
    assert found.lease_until_ms == NOW + 77
    await database.close()
    await catalog.close()
