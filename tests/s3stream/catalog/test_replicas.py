"""Replicas of partitions: where they lie, who of them leads, and which orders change them; on both databases."""

from collections.abc import Mapping, Sequence

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.placement import led_by, place_replicas, place_successors, place_topic
from anabranch.s3stream.catalog.schema import nodes
from anabranch.s3stream.catalog.values import MoveReason, NewTopic, TopicInfo
from anabranch.s3stream.model import NodeIdentity
from tests.s3stream.catalog.test_takeover import DEAD, ONE, TWO, Cluster, cluster
from tests.support.catalog_node import NOW

__all__ = ["cluster"]  # the fixture

REPLICATED = b"r" * 16
RACKS = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}


async def replicated(catalog: Catalog, *replicas: Sequence[int]) -> list[int]:
    """Create a topic whose partitions have these replicas and are led by the first of each; return its streams."""
    leaders = [each[0] for each in replicas]
    wanted = NewTopic("r", REPLICATED, len(replicas), {}, leaders=leaders, replicas=replicas)
    (created,) = await catalog.create_topics([wanted], leader=ONE, others=(TWO,))
    assert isinstance(created, TopicInfo)
    return [each.stream_id for each in created.partitions]


async def placed(catalog: Catalog) -> list[tuple[int, int, tuple[int, ...]]]:
    """Leader, preferred leader and replicas of each partition of the replicated topic."""
    (topic,) = [each for each in await catalog.list_topics() if each.name == "r"]
    return [(each.leader, each.preferred, each.replicas) for each in topic.partitions]


@pytest.mark.parametrize(
    ("racks", "there", "expected"),
    [
        ("", {}, [1, 2, 3, 4, 5, 1, 2]),
        ("aaabc", {}, [1, 4, 5, 2, 3, 4, 5]),
        ("aabbb", {}, [1, 3, 2, 4, 5, 1, 2]),
        ("aaabc", {4: 1, 5: 1}, [1, 2, 3, 4, 5, 1, 2]),
        ("aabbb", {1: 1, 2: 1}, [3, 4, 5, 1, 2, 3, 4]),
    ],
)
def test_a_new_topic_is_spread_over_all_nodes_and_racks(racks: str, there: dict[int, int], expected: list[int]) -> None:
    by_node = dict(enumerate(racks, 1))
    assert place_topic(7, [1, 2, 3, 4, 5], there, {}, by_node) == expected


def test_of_a_rack_the_node_that_leads_the_fewest_is_first() -> None:
    assert place_topic(2, [1, 2, 3], {}, {1: 9, 2: 3, 3: 5}, {1: "a", 2: "a", 3: "b"}) == [2, 3]


@pytest.mark.parametrize(
    ("leaders", "factor", "living", "expected"),
    [
        ([1, 3], 1, [1, 2, 3, 4, 5], [[1], [3]]),
        ([1, 3], 2, [1, 2, 3, 4, 5], [[1, 3], [3, 5]]),
        ([1], 3, [1, 2, 3, 4, 5], [[1, 3, 5]]),
        ([1, 1, 1], 2, [1, 2, 3, 4, 5], [[1, 3], [1, 4], [1, 5]]),
        ([1], 4, [1, 2, 3, 4, 5], [[1, 3, 5, 2]]),
        ([1], 3, [1, 2, 4], [[1, 4, 2]]),
        ([1], 4, [1, 2, 4], [[1, 4, 2, 5]]),
        ([5], 9, [1, 2, 3, 4, 5], [[5, 1, 3, 2, 4]]),
    ],
)
def test_replicas_are_spread_over_racks_and_lie_on_dead_nodes_last(
    leaders: list[int], factor: int, living: list[int], expected: list[list[int]]
) -> None:
    assert list(place_replicas(leaders, factor, RACKS, living)) == expected


def test_a_successor_is_a_replica_if_one_lives() -> None:
    assert place_successors([(9, 2, 3), (9, 3, 2), (9,), ()], [1, 2, 3], {1: 0, 2: 5, 3: 5}) == [2, 3, 1, 1]


@pytest.mark.parametrize(
    ("replicas", "leader", "racks", "expected"),
    [
        ((1, 2, 3), 3, {}, (3, 1, 2)),
        ((1, 2, 3), 4, {}, (4, 2, 3)),
        ((), 4, RACKS, (4,)),
        ((1, 3, 5), 3, RACKS, (3, 1, 5)),
        ((1, 3, 5), 4, RACKS, (4, 1, 5)),
        ((1, 3, 5), 2, RACKS, (2, 3, 5)),
        ((1, 3), 5, RACKS, (5, 3)),
        ((3, 4), 5, RACKS, (5, 4)),
    ],
)
def test_a_leader_from_elsewhere_takes_the_place_of_a_replica_in_its_rack_or_else_of_the_first(
    replicas: tuple[int, ...], leader: int, racks: Mapping[int, str], expected: tuple[int, ...]
) -> None:
    assert led_by(replicas, leader, racks) == expected


async def test_new_partitions_have_as_many_replicas_as_were_asked_for(cluster: Cluster) -> None:
    catalog = cluster.catalog
    (created,) = await catalog.create_topics(
        [NewTopic("r", REPLICATED, 2, {}, factor=2)], leader=DEAD, others=(ONE, TWO)
    )
    assert isinstance(created, TopicInfo)
    assert await placed(catalog) == [(ONE, ONE, (ONE, TWO)), (TWO, TWO, (TWO, DEAD))]
    await catalog.add_partitions(REPLICATED, 3, leader=ONE)
    assert (await placed(catalog))[2] == (ONE, ONE, (ONE, TWO)), "nodes that live come first"
    await catalog.add_partitions(REPLICATED, 4, leader=ONE, leaders=[TWO], replicas=[(DEAD, TWO)])
    assert (await placed(catalog))[3] == (TWO, DEAD, (DEAD, TWO)), "the preferred leader is dead"
    (plain,) = await catalog.create_topics([NewTopic("p", b"p" * 16, 1, {})], leader=ONE)
    assert isinstance(plain, TopicInfo)
    assert plain.partitions[0].replicas == ()


async def test_a_dead_leader_is_followed_by_a_replica(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await replicated(catalog, (DEAD, TWO), (DEAD, TWO), (DEAD, TWO, ONE), (DEAD,))
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    leaders = [leader for leader, *_ in await placed(catalog)]
    assert leaders[:2] == [TWO, TWO]
    assert leaders[2:] == [ONE, ONE], "of several the one that leads the fewest"
    assert (await placed(catalog))[0] == (TWO, DEAD, (DEAD, TWO)), "the dead node keeps its place"


async def test_a_reassignment_changes_replicas_when_its_target_leads(cluster: Cluster) -> None:
    catalog = cluster.catalog
    stays, moves, single = await replicated(catalog, (DEAD, ONE), (DEAD, ONE), (DEAD, ONE))
    version = await catalog.last_change()
    await catalog.request_moves(
        {stays: DEAD, moves: TWO, single: ONE},
        reason=MoveReason.REASSIGNMENT,
        now_ms=NOW,
        replicas={stays: (TWO, DEAD, ONE), moves: (TWO, ONE), single: (ONE,)},
    )
    unmoved = (DEAD, DEAD, (DEAD, ONE))
    assert await placed(catalog) == [(DEAD, TWO, (TWO, DEAD, ONE)), unmoved, unmoved]
    changes = await catalog.read_changes(version)
    assert changes is not None, "other nodes read them"
    assert {each.stream_id: each.replicas for each in await catalog.list_moves()} == {moves: (TWO, ONE), single: (ONE,)}
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    assert (await placed(catalog))[1:] == [(TWO, TWO, (TWO, ONE)), (ONE, ONE, ())]


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (MoveReason.OPERATOR, [(TWO, TWO, (TWO, ONE)), (ONE, ONE, (ONE, DEAD)), (TWO, TWO, ())]),
        (MoveReason.GATHERING, [(TWO, DEAD, (DEAD, ONE)), (ONE, DEAD, (DEAD, ONE)), (TWO, DEAD, ())]),
    ],
)
async def test_a_lasting_order_puts_its_target_in_front(
    cluster: Cluster, reason: MoveReason, expected: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    catalog = cluster.catalog
    streams = await replicated(catalog, (DEAD, ONE), (DEAD, ONE), (DEAD,))
    await catalog.request_moves(dict(zip(streams, (TWO, ONE, TWO), strict=True)), reason=reason, now_ms=NOW)
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    assert await placed(catalog) == expected


async def test_a_move_leaves_each_rack_its_replica(cluster: Cluster) -> None:
    catalog = cluster.catalog
    for node_id, rack in ((DEAD, "a"), (ONE, "b"), (TWO, "b")):
        located = nodes.update().where(nodes.c.node_id == node_id).values(rack=rack)
        await catalog._database.write(lambda c, located=located: c.execute(located).close())  # type: ignore[misc]  # noqa: SLF001
    (stream,) = await replicated(catalog, (DEAD, ONE))
    await catalog.request_moves({stream: TWO}, reason=MoveReason.PLACEMENT, now_ms=NOW)
    assert [each.replicas for each in await catalog.list_moves()] == [(TWO, DEAD)], "not two in rack b"
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    assert await placed(catalog) == [(TWO, TWO, (TWO, DEAD))]


async def test_a_topic_keeps_its_replicas_when_it_is_cloned_or_returns(cluster: Cluster) -> None:
    catalog, node = cluster.catalog, NodeIdentity(TWO, cluster.nodes[TWO].epoch)
    streams = await replicated(catalog, (ONE, TWO), (ONE, DEAD))
    ends = dict.fromkeys(streams, 0)
    clone = await catalog.clone_topic("r", "c", b"c" * 16, ends=ends, node=node)
    assert [each.replicas for each in clone.partitions] == [(TWO, ONE), (TWO, DEAD)]
    await catalog.detach_topic("r", REPLICATED, ends=ends, node=node, now_ms=NOW)
    await catalog.attach_topic(REPLICATED, "r", node=node)
    assert await placed(catalog) == [(TWO, TWO, (TWO, ONE)), (TWO, TWO, (TWO, DEAD))]
