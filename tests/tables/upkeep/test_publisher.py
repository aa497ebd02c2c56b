"""Tables of a node in another catalog: never ahead, soon behind by nothing, through outages and takeovers.

The other catalogs are databases with the tables of Iceberg's JDBC catalog, read by pyiceberg.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.maintain.verify import verify
from anabranch.tables.upkeep.context import TableTopic
from anabranch.tables.upkeep.publisher import LOOK_S_MAX, TablePublisher
from anabranch.tables.upkeep.service import TableUpkeep
from anabranch.tables.upkeep.status import PublicationStatus, UpkeepStats
from tests.support.admin_api import api_client
from tests.support.events import committed_records, delete_topic
from tests.support.metrics import metrics_of
from tests.support.node import running_node
from tests.support.tables import (
    create_table,
    created_slowly,
    own_committer,
    records_of,
    sent,
    status_of,
    table_has,
)
from tests.support.waiting import until
from tests.tables.upkeep.test_committer import alter, finish, stop_at, values

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
SECRET = "s3cret"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lakes")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> AsyncIterator[Node]:
    """Start a node that knows four catalogs. There is no folder for the file of `late` yet, and never one of `own`."""
    catalogs = [
        setting
        for name in ("lake", "pond", "late/late", "own/own")
        for setting in (
            f"{name.partition('/')[0]}.type=jdbc",
            f"{name.partition('/')[0]}.uri=sqlite:///{folder}/{name}.db",
        )
    ]
    async with running_node(
        tmp_path_factory.mktemp("node"), storage_delete_delay_ms=0, table_catalogs=catalogs
    ) as node:
        yield node


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return the name of the test's topic."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[-100:]


def rows_there(folder: Path, topic: str, catalog: str = "lake") -> list[tuple[int, bytes | None, bytes | None]]:
    """Return partition, key and value of the rows that the other catalog's readers find. Raises NoSuchTableError."""
    with closing(SqlCatalog(catalog[-4:], uri=f"sqlite:///{folder}/{catalog}.db")) as opened:
        rows = opened.load_table(("default", topic)).scan().to_arrow()
    offsets = [row["offset"] for row in rows["_kafka"].to_pylist()]
    return [each for _, each in sorted(zip(offsets, records_of(rows), strict=True))]


def is_there(folder: Path, topic: str, catalog: str = "lake") -> bool:
    try:
        rows_there(folder, topic, catalog)
    except NoSuchTableError:
        return False
    return True


async def consumed(node: Node, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return await asyncio.to_thread(committed_records, node.bootstrap, topic)


def publication(node: Node, topic: str) -> PublicationStatus | None:
    status = status_of(node, topic)
    return None if status is None else status.publication


async def published(node: Node, topic: str) -> None:
    """Return when the other catalog has the version that the table has now."""
    status = status_of(node, topic)
    assert status is not None
    version = status.version
    await until(lambda: (there := publication(node, topic)) is not None and there.version >= version, pause_s=0.02)


def upkeep_of(node: Node) -> TableUpkeep:
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    return upkeep


OWN = {"table.publish": "own"}
"""Configs of a topic whose table publishers of a test put into `lake`: the node itself does not reach the catalog."""


class Topics:
    """One topic of a node, as a node knows it: it may be `paused`, and know what it was then."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name
        self._paused: Sequence[TableTopic] | None = None

    def committed(self) -> Sequence[TableTopic]:
        if self._paused is not None:
            return self._paused
        return [each for each in upkeep_of(self.node).topics.committed() if each.name == self.name]

    def pause(self) -> None:
        self._paused = self.committed()

    def resume(self) -> None:
        self._paused = None

    def followed(self) -> Sequence[TableTopic]:
        return ()

    def request_upload(self, topic: TableTopic, *, waited_ms: int) -> None: ...

    async def upload(self, topic: TableTopic) -> None: ...


def own_publisher(node: Node, topics: Topics, folder: Path, **changes: Any) -> TablePublisher:
    """Return a publisher of a topic with the configs `OWN`, as another node's."""
    upkeep = upkeep_of(node)
    context = replace(upkeep.context, folder=folder, **changes)
    lake = replace(upkeep.others.by_name["lake"], name="own")
    others = replace(upkeep.others, by_name={**upkeep.others.by_name, "own": lake})
    return TablePublisher(context, others, topics, UpkeepStats())


async def leave(node: Node, topic: str, topics: Topics) -> None:
    """Let a topic be published no more, and return when the node knows it."""
    await asyncio.to_thread(alter, node, topic, "table.publish", "")
    await until(lambda: not topics.committed()[0].options.publish, pause_s=0.02)


async def test_another_catalog_shows_the_records_of_the_topic(node: Node, topic: str, folder: Path) -> None:
    await asyncio.to_thread(create_table, node.bootstrap, topic, 2, {"table.publish": "lake"})
    for at in range(2):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await table_has(node, topic)
        await published(node, topic)
        assert await asyncio.to_thread(rows_there, folder, topic) == await consumed(node, topic)
    async with api_client(node) as api:
        found = (await api.get(f"/tables/{topic}"))["publication"]
    status = status_of(node, topic)
    assert status is not None
    shown = {"version": status.version, "snapshot_id": str(status.snapshot_id)}
    assert found == {"catalog": "lake", **shown, "lag_ms": 0, "error": None}
    samples = await metrics_of(node)
    assert samples.value("anabranch_table_publish_failing", table=topic) == 0
    assert samples.value("anabranch_table_publish_lag_seconds", table=topic) == 0
    assert samples.value("anabranch_tables_published_total") >= 2


async def test_an_outage_stops_nothing_and_is_shown(node: Node, topic: str, folder: Path) -> None:
    await asyncio.to_thread(create_table, node.bootstrap, topic, 1, {"table.publish": "late"})
    for at in range(2):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await table_has(node, topic)
    await until(lambda: (there := publication(node, topic)) is not None and bool(there.error), pause_s=0.02)
    async with api_client(node) as api:
        found = (await api.get(f"/tables/{topic}"))["publication"]
    assert (found["catalog"], found["version"], found["error"]) == (
        "late", None, "catalog late: unable to open database file"
    )  # fmt: skip
    samples = await metrics_of(node)
    assert samples.value("anabranch_table_publish_failing", table=topic) == 1
    assert samples.value("anabranch_table_publish_lag_seconds", table=topic) > 0
    (folder / "late").mkdir()
    await published(node, topic)
    assert await asyncio.to_thread(rows_there, folder, topic, "late/late") == await consumed(node, topic)
    assert (await metrics_of(node)).value("anabranch_table_publish_failing", table=topic) == 0


async def test_an_entry_moves_with_the_config_and_leaves_with_it(node: Node, topic: str, folder: Path) -> None:
    await asyncio.to_thread(create_table, node.bootstrap, topic, 1, {"table.publish": "lake"})
    await sent(node, topic, values(0, 10))
    await table_has(node, topic)
    await published(node, topic)
    await asyncio.to_thread(alter, node, topic, "table.publish", "pond")
    await until(lambda: is_there(folder, topic, "pond") and not is_there(folder, topic), pause_s=0.05)
    await asyncio.to_thread(alter, node, topic, "table.publish", "")
    await until(lambda: not is_there(folder, topic, "pond"), pause_s=0.05)
    assert publication(node, topic) is None
    assert len(await asyncio.to_thread(committed_records, node.bootstrap, topic)) == 10


async def test_a_catalog_that_an_entry_leaves_is_asked_again_after_a_pause(
    node: Node, topic: str, folder: Path, tmp_path: Path
) -> None:
    await created_slowly(node, topic, configs=OWN)
    await sent(node, topic, values(0, 10))
    await finish(own_committer(node, topic, tmp_path / "committer"))
    topics = Topics(node, topic)
    publisher = own_publisher(node, topics, tmp_path / "own")
    await until_done(publisher)
    await leave(node, topic, topics)
    (folder / "lake.db").rename(folder / "away.db")
    (folder / "lake.db").mkdir()
    try:
        assert await publisher.look() > 0, "it pauses"
    finally:
        (folder / "lake.db").rmdir()
        (folder / "away.db").rename(folder / "lake.db")
    await until_done(publisher)
    assert not is_there(folder, topic)


@pytest.mark.parametrize("how", ["deleted", "dropped"])
async def test_an_entry_leaves_with_its_table(node: Node, topic: str, folder: Path, how: str) -> None:
    await asyncio.to_thread(create_table, node.bootstrap, topic, 1, {"table.publish": "lake"})
    await sent(node, topic, values(0, 10))
    await table_has(node, topic)
    await published(node, topic)
    if how == "deleted":
        await asyncio.to_thread(delete_topic, node.bootstrap, topic)
    else:
        async with api_client(node) as api:
            await api.ask("DELETE", f"/tables/{topic}")
    await until(lambda: not is_there(folder, topic), pause_s=0.05)


async def test_an_entry_of_a_kept_table_gets_its_last_version_after_an_outage(
    node: Node, topic: str, folder: Path, tmp_path: Path
) -> None:
    await created_slowly(node, topic, configs={"table.retention": "keep", **OWN})
    committer = own_committer(node, topic, tmp_path / "committer")
    await sent(node, topic, values(0, 10))
    await finish(committer)
    topics = Topics(node, topic)
    publisher = own_publisher(node, topics, tmp_path / "own")
    await until_done(publisher)
    await sent(node, topic, values(10, 20))
    await finish(committer)
    last = await consumed(node, topic)
    (found,) = topics.committed()
    (folder / "lake.db").rename(folder / "away.db")
    (folder / "lake.db").mkdir()
    try:
        publisher.note_version(found.topic_id, -1)
        await publisher.look()
        await asyncio.to_thread(delete_topic, node.bootstrap, topic)
        await until(lambda: not topics.committed(), pause_s=0.02)
        pause_s = await publisher.look()
    finally:
        (folder / "lake.db").rmdir()
        (folder / "away.db").rename(folder / "lake.db")
    await passed(pause_s + 0.01)  # timers may be a little early
    await publisher.look()
    assert await asyncio.to_thread(rows_there, folder, topic) == last


async def test_an_entry_that_left_with_the_enabling_of_its_table_is_not_put_back(
    node: Node, topic: str, folder: Path, tmp_path: Path
) -> None:
    """The table had a version that the other catalog lacked when its topic was enabled and published no more."""
    await created_slowly(node, topic, configs=OWN)
    committer = own_committer(node, topic, tmp_path / "committer")
    await sent(node, topic, values(0, 10))
    await finish(committer)
    topics, steps = Topics(node, topic), list[str]()

    async def noted(reached: str) -> None:
        steps.append(reached)

    publisher = own_publisher(node, topics, tmp_path / "own", step=noted)
    await until_done(publisher)
    await sent(node, topic, values(10, 20))
    await finish(committer)
    steps.clear()
    for name, value in (("table.publish", ""), ("table.enable", "false")):
        await asyncio.to_thread(alter, node, topic, name, value)
    await until(lambda: not topics.committed(), pause_s=0.02)
    await publisher.look()
    assert not is_there(folder, topic)
    assert not steps, "it was put nowhere in between"
    assert await publisher.look() == LOOK_S_MAX, "nothing is left to do"


async def test_a_table_of_somebody_else_is_left_alone_until_it_is_gone(
    node: Node, topic: str, folder: Path, tmp_path: Path
) -> None:
    await created_slowly(node, topic, configs=OWN)
    await sent(node, topic, values(0, 10))
    await finish(own_committer(node, topic, tmp_path / "committer"))
    with closing(SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{tmp_path}/other")) as other:
        other.create_namespace_if_not_exists("default")
        other.create_table(("default", topic), pa.schema([("x", pa.int64())]))
        topics = Topics(node, topic)
        publisher = own_publisher(node, topics, tmp_path / "own")
        assert await publisher.look() > 0, "it pauses"
        (found,) = topics.committed()
        status = publisher.status_of(found.topic_id)
        assert status is not None
        assert re.match(rf"catalog own: default\.{topic} is another table, or .*: it is left alone; drop", status.error)
        assert other.load_table(("default", topic)).schema().column_names == ["x"]
        other.drop_table(("default", topic))
    await until_done(publisher)
    assert await asyncio.to_thread(rows_there, folder, topic) == await consumed(node, topic)


async def until_done(publisher: TablePublisher) -> None:
    """Let a publisher work until it has nothing to do."""
    while (pause_s := await publisher.look()) < LOOK_S_MAX:
        await passed(pause_s)


async def passed(pause_s: float) -> None:
    """Return after a pause that a publisher has asked for."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(pause_s, done.set_result, None)
    await done


@pytest.mark.parametrize("step", ["publishing", "published"])
async def test_a_successor_goes_on_where_a_node_has_stopped(
    node: Node, topic: str, folder: Path, tmp_path: Path, step: str
) -> None:
    await created_slowly(node, topic, configs=OWN)
    committer = own_committer(node, topic, tmp_path / "committer")
    await sent(node, topic, values(0, 10))
    await finish(committer)
    topics = Topics(node, topic)
    dying = own_publisher(node, topics, tmp_path / "dying", step=stop_at(step))
    await dying.look()
    assert is_there(folder, topic) is (step == "published")
    successor = own_publisher(node, topics, tmp_path / "successor")
    await until_done(successor)
    assert await asyncio.to_thread(rows_there, folder, topic) == await consumed(node, topic)
    await sent(node, topic, values(10, 20))
    await finish(committer)
    # A node that does not know that it has been replaced, and has read the catalog earlier, changes nothing.
    slow = own_publisher(node, topics, tmp_path / "slow", step=overtaken_by(successor, topics))
    await until_done(slow)
    assert await asyncio.to_thread(rows_there, folder, topic) == await consumed(node, topic)
    await leave(node, topic, topics)
    await until_done(own_publisher(node, topics, tmp_path / "last"))
    assert not is_there(folder, topic), "whoever comes later knows of the entry"


@pytest.mark.parametrize("why", ["left", "dropped"])
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_node_that_was_away_puts_no_entry_back(
    node: Node, topic: str, folder: Path, tmp_path: Path, why: str, *, is_known: bool
) -> None:
    """Another one has removed it meanwhile, or had nothing to remove yet."""
    await created_slowly(node, topic, configs=OWN)
    await sent(node, topic, values(0, 10))
    await finish(own_committer(node, topic, tmp_path / "committer"))
    here, there = Topics(node, topic), Topics(node, topic)
    successor = own_publisher(node, there, tmp_path / "successor")
    if is_known:
        await until_done(successor)

    async def be_away(reached: str) -> None:
        if reached != "publishing":
            return
        here.pause()
        if why == "left":
            await leave(node, topic, there)
        else:
            async with api_client(node) as api:
                await api.ask("DELETE", f"/tables/{topic}")
            await until(lambda: not there.committed(), pause_s=0.02)
        await until_done(successor)
        assert not is_there(folder, topic)

    away = own_publisher(node, here, tmp_path / "away", step=be_away)
    await away.look()
    assert not is_there(folder, topic)
    here.resume()
    await until_done(away)
    assert not is_there(folder, topic)


def overtaken_by(other: TablePublisher, topics: Topics) -> Any:
    async def step(reached: str) -> None:
        if reached == "publishing":
            (found,) = topics.committed()
            other.note_version(found.topic_id, -1)
            await until_done(other)

    return step


async def test_files_stay_while_another_catalog_is_behind_by_less_than_the_retention(
    node: Node, topic: str, folder: Path, tmp_path: Path
) -> None:
    await created_slowly(node, topic, configs={"table.snapshot.retention.ms": "3600000", **OWN})
    now_ms, ago_ms = upkeep_of(node).context.now_ms, 7_500_000
    committer = own_committer(node, topic, tmp_path / "committer", now_ms=lambda: now_ms() - ago_ms)
    await sent(node, topic, values(0, 10))
    await finish(committer)
    await until_done(own_publisher(node, Topics(node, topic), tmp_path / "own"))
    shown = await consumed(node, topic)

    async def go_on(start: int, commits: int) -> None:
        for at in range(start, start + 10 * commits, 10):
            await sent(node, topic, values(at, at + 10))
            await finish(committer)
        await node.upkeep.collector.collect()

    await go_on(10, 8)
    assert committer.stats.joined_files, "no file of what is shown is in the table any more"
    ago_ms = 4_000_000
    await go_on(100, 1)
    assert await asyncio.to_thread(rows_there, folder, topic) == shown, "it is behind, and can be read"
    ago_ms = 0
    await go_on(200, 1)
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(rows_there, folder, topic)
    report = await verify(catalog=node.serving.catalog, stores=node.stores, cluster="anabranch")
    assert report.ok
