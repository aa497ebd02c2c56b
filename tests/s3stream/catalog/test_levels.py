"""The cluster's level: a newer node adds to the schema beside an older one, and it is raised when none is left."""

import pytest

from anabranch.s3stream.catalog import migration
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.schema import FIRST_ADDITIVE, MIGRATIONS, NEWEST, nodes, schema_version
from anabranch.s3stream.catalog.values import MoveReason, NewTopic, TopicInfo
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import NodeIdentity
from tests.support.catalog_node import CLUSTER, HOUR_MS, NOW, topic_id_of

BEFORE = FIRST_ADDITIVE - 1
OLDER = [step for step in MIGRATIONS if step[0] <= BEFORE]


@pytest.fixture
async def older(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog that a program of the last version without levels has made, with its node."""
    with monkeypatch.context() as patch:
        patch.setattr(migration, "MIGRATIONS", OLDER)
        catalog = Catalog(empty_url)
        await catalog.open(cluster=CLUSTER)
    register = nodes.insert().values(
        {
            column.name: "" if "TEXT" in str(column.type) else 1
            for column in nodes.columns
            if column.name not in {"level", "level_epoch"}
        }
    )
    await catalog._database.write(lambda c: c.execute(register).close())  # noqa: SLF001
    return catalog


async def register(catalog: Catalog, node_id: int) -> None:
    await catalog.register_node(node_id, "h", 9092, now_ms=NOW, lease_ms=HOUR_MS)


async def test_a_new_catalog_has_the_newest_level(catalog: Catalog) -> None:
    assert catalog.level == NEWEST
    await catalog.raise_level(NEWEST)


async def test_the_level_is_raised_when_no_older_node_lives_and_then_older_programs_do_not_start(
    older: Catalog, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await older.beat(NodeIdentity(1, 1), now_ms=NOW, lease_ms=HOUR_MS)
    newer, other = Catalog(empty_url), Catalog(empty_url)
    await newer.open(cluster=CLUSTER)  # beside the older node
    await other.open(cluster=CLUSTER)
    await register(newer, 2)
    await older.beat(NodeIdentity(1, 1), now_ms=NOW, lease_ms=HOUR_MS)
    assert (newer.level, (await newer.read_state())[1].schema_version) == (BEFORE, BEFORE)
    for validate_only in (True, False):
        with pytest.raises(CatalogError, match=f"node 1 runs a version that does not know level {NEWEST}"):
            await newer.raise_level(NEWEST, validate_only=validate_only)
    await register(newer, 1)
    await newer._database.write(lambda c: c.execute(nodes.update().values(epoch=nodes.c.epoch + 1)).close())  # noqa: SLF001
    with pytest.raises(CatalogError, match="nodes 1, 2 run a version"):  # the older program registers so
        await newer.raise_level(NEWEST)
    await register(newer, 1)
    await register(newer, 2)
    await newer.raise_level(NEWEST, validate_only=True)
    assert newer.level == BEFORE
    seen = await other.last_change()
    await newer.raise_level(NEWEST)
    changes = await other.read_changes(seen)
    assert changes is not None
    assert changes.configs_changed
    await other.list_configs()
    assert (newer.level, other.level) == (NEWEST, NEWEST)
    with pytest.raises(CatalogError, match=f"the level cannot change from {NEWEST} to {BEFORE}"):
        await newer.raise_level(BEFORE)
    monkeypatch.setattr(migration, "MIGRATIONS", OLDER)
    last = Catalog(empty_url)
    with pytest.raises(CatalogError, match=f"schema version {NEWEST} is newer than this program's {BEFORE}"):
        await last.open(cluster=CLUSTER)
    for each in (older, newer, other, last):
        await each.close()


async def test_a_program_registers_no_node_after_a_raise_to_a_level_that_it_does_not_know(catalog: Catalog) -> None:
    raised = schema_version.insert().values(version=NEWEST + 1)
    await catalog._database.write(lambda c: c.execute(raised).close())  # noqa: SLF001
    with pytest.raises(CatalogError, match=f"the cluster has level {NEWEST + 1} now"):
        await register(catalog, 7)


async def test_a_stream_gets_replicas_from_their_level_on(older: Catalog, empty_url: str) -> None:
    newer = Catalog(empty_url)
    await newer.open(cluster=CLUSTER)

    async def replicas(name: str) -> list[int]:
        wanted = NewTopic(name, topic_id_of(name), 1, {}, internal=False, factor=2)
        (created,) = await newer.create_topics([wanted], leader=1, others=[2])
        assert isinstance(created, TopicInfo)
        (partition,) = created.partitions
        stream_id, leader, other = partition.stream_id, partition.leader, 3 - partition.leader
        await newer.request_moves(
            {stream_id: other}, reason=MoveReason.OPERATOR, now_ms=NOW, replicas={stream_id: (other, leader)}
        )
        (order,) = (each for each in await newer.list_moves() if each.stream_id == stream_id)
        return [len(partition.replicas), len(order.replicas)]

    for node_id in (1, 2):
        await register(newer, node_id)
    assert await replicas("a") == [0, 0]
    await newer.raise_level(NEWEST)
    assert await replicas("b") == [2, 2]
    for each in (older, newer):
        await each.close()


async def test_an_older_program_opens_a_catalog_to_which_a_newer_one_has_added(
    older: Catalog, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Catalog(empty_url)
    await newer.open(cluster=CLUSTER)
    await newer.close()
    monkeypatch.setattr(migration, "MIGRATIONS", OLDER)
    again = Catalog(empty_url)
    await again.open(cluster=CLUSTER)
    assert again.level == BEFORE
    for each in (older, again):
        await each.close()
