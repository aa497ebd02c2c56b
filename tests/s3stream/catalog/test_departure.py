"""Contract of nodes that do not return: logs given up, registrations removed, objects inherited. On both databases."""

from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeBeat, NodeInfo, WalState
from anabranch.s3stream.errors import NodeFenced, NodeInUse, NotFound, StreamHeld
from anabranch.s3stream.model import NodeIdentity
from tests.s3stream.catalog.test_takeover import DEAD, LOG, ONE, TWO, Cluster
from tests.support.catalog_node import NODE_ID, NOW, WAL_ID, MetadataNode, span

OTHER_LOG = "0" * 15 + "2"


@pytest.fixture
async def cluster(catalog: Catalog) -> Cluster:
    return await Cluster.started(catalog)


async def registration(catalog: Catalog, node_id: int) -> NodeInfo:
    found = await catalog.get_node(node_id)
    assert found is not None
    return found


async def give_up(cluster: Cluster, seen: NodeInfo, *, whole: bool) -> None:
    """Give up the log of the dead node, or the first of its partitions."""
    if whole:
        await cluster.catalog.give_up_wal(LOG, seen=seen, leaders=(ONE,), now_ms=NOW)
    else:
        await cluster.catalog.give_up_streams(cluster.streams[:1], seen=seen, leaders=(ONE,))


# logs


async def test_the_partitions_of_a_log_that_is_given_up_get_other_leaders_at_once(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await catalog.give_up_wal(LOG, seen=cluster.nodes[DEAD], leaders=(ONE, TWO), now_ms=NOW)
    assert (await cluster.leaders(), await cluster.owners()) == ([ONE, TWO, ONE, TWO], [-1] * 4)
    assert await cluster.log_state() is WalState.GIVEN_UP
    await catalog.open_streams(cluster.streams[::2], await cluster.open_log(ONE, OTHER_LOG))


async def test_some_partitions_of_a_log_are_given_up_and_the_others_wait_for_it(cluster: Cluster) -> None:
    catalog, dead = cluster.catalog, cluster.nodes[DEAD]
    await catalog.give_up_streams(cluster.streams[1:3], seen=dead, leaders=(ONE,))
    assert await cluster.leaders() == [DEAD, ONE, ONE, DEAD]
    assert await cluster.owners() == [DEAD, -1, -1, DEAD]
    assert await cluster.log_state() is WalState.OPEN
    await catalog.open_streams(cluster.streams[1:3], await cluster.open_log(ONE, OTHER_LOG))
    with pytest.raises(NodeFenced):  # it was only paused, and continues
        await catalog.beat(NodeIdentity(DEAD, dead.epoch), now_ms=NOW, lease_ms=10_000)
    returned = await cluster.register(DEAD)
    assert returned.epoch == dead.epoch + 2
    owner = await cluster.open_log(DEAD, LOG)
    await catalog.open_streams(cluster.streams[::3], owner)
    with pytest.raises(StreamHeld):
        await catalog.open_streams(cluster.streams[1:2], owner)


@pytest.mark.parametrize("whole", [True, False])
async def test_nothing_is_given_up_while_another_node_recovers_the_log(cluster: Cluster, *, whole: bool) -> None:
    """A takeover changes the registration as giving up does: it must not pass for a repeated command."""
    seen = cluster.nodes[DEAD]
    await cluster.take_over(NodeBeat(seen.epoch, 0, has_lease=True))
    with pytest.raises(NodeInUse):
        await give_up(cluster, seen, whole=whole)
    assert (await cluster.owners(), await cluster.log_state()) == ([DEAD] * 4, WalState.FENCED)


@pytest.mark.parametrize("whole", [True, False])
async def test_nothing_is_given_up_when_the_node_lives(cluster: Cluster, *, whole: bool) -> None:
    catalog, seen = cluster.catalog, cluster.nodes[DEAD]
    await catalog.beat(NodeIdentity(DEAD, seen.epoch), now_ms=NOW + 1, lease_ms=10_000)
    with pytest.raises(NodeInUse, match="is alive"):
        await give_up(cluster, seen, whole=whole)
    assert await cluster.owners() == [DEAD] * 4


async def test_a_node_that_beats_is_fenced_on_request(cluster: Cluster) -> None:
    catalog, one = cluster.catalog, cluster.nodes[ONE]
    seen = await cluster.beat(DEAD)
    await cluster.beat(DEAD)

    async def fail(beat: NodeBeat) -> int:
        recoverer = one.identity
        return await catalog.take_over(
            DEAD, beat, wal_id=LOG, recoverer=recoverer, leaders=(ONE,), now_ms=NOW, even_if_alive=True
        )

    with pytest.raises(NodeInUse):
        await fail(replace(seen, epoch=seen.epoch - 1))
    for _ in range(2):
        assert await fail(seen) == seen.epoch + 1
    assert await cluster.leaders() == [ONE] * 4
    with pytest.raises(NodeFenced):
        await catalog.beat(NodeIdentity(DEAD, seen.epoch), now_ms=NOW, lease_ms=10_000)


# registrations


async def test_only_a_dead_node_that_leads_nothing_is_removed(cluster: Cluster) -> None:
    catalog = cluster.catalog
    with pytest.raises(NodeInUse, match=r"the log of node 1, /wal, .*`anabranch node give-up 1`"):
        await catalog.remove_node(cluster.nodes[DEAD], heir=ONE, now_ms=NOW)
    await catalog.give_up_wal(LOG, seen=cluster.nodes[DEAD], leaders=(ONE,), now_ms=NOW)
    with pytest.raises(NodeInUse, match="node 1 is alive"):
        await catalog.remove_node(cluster.nodes[DEAD], heir=ONE, now_ms=NOW)
    seen = await registration(catalog, DEAD)
    for heir in (DEAD, 9):
        with pytest.raises(NotFound, match=f"node {heir}, which is to compact"):
            await catalog.remove_node(seen, heir=heir, now_ms=NOW)
    await catalog.remove_node(seen, heir=ONE, now_ms=NOW)
    assert [node.node_id for node in await catalog.list_nodes()] == [ONE, TWO]
    with pytest.raises(NotFound, match="node 1 is not registered"):
        await catalog.remove_node(await registration(catalog, DEAD), heir=ONE, now_ms=NOW + 1)
    assert (await cluster.register(DEAD)).epoch > seen.epoch + 1
    assert [node.node_id for node in await catalog.list_nodes()] == [DEAD, ONE, TWO]


async def test_a_node_is_not_removed_while_its_log_is_recovered(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await cluster.take_over(await cluster.beat(DEAD))
    with pytest.raises(NodeInUse, match="may hold records of 4 partitions that are in no object"):
        await catalog.remove_node(await registration(catalog, DEAD), heir=ONE, now_ms=NOW)


async def test_the_log_of_a_removed_node_that_has_handed_all_over_counts_as_drained(cluster: Cluster) -> None:
    """It was killed before it could say that its log is empty."""
    catalog = cluster.catalog
    await catalog.give_up_streams(cluster.streams, seen=cluster.nodes[DEAD], leaders=(ONE,))
    assert await cluster.log_state() is WalState.OPEN
    await catalog.remove_node(await registration(catalog, DEAD), heir=ONE, now_ms=NOW)
    assert await cluster.log_state() is WalState.DRAINED


async def test_the_objects_of_a_removed_node_are_compacted_by_its_heir(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    await catalog.open_wal(WAL_ID, node=NodeIdentity(NODE_ID, scene.epoch), location="/a", now_ms=NOW)
    first, second, _ = scene.streams
    objects = await scene.upload([span(first, 0, 10), span(second, 0, 10)], [span(first, 10, 20), span(second, 10, 20)])
    (single,) = await scene.upload([span(first, 20, 30)])
    heir = await catalog.register_node(2, "a", 1, now_ms=NOW, lease_ms=1)
    await catalog.stop_node(
        NodeIdentity(NODE_ID, scene.epoch), drained_wal=WAL_ID, successors=(heir.node_id,), now_ms=NOW
    )
    ids = [each.object_id for each in objects]
    assert [each.object_id for each in await catalog.list_node_ssos(NODE_ID, limit=10)] == ids
    removed = await catalog.remove_node(await registration(catalog, NODE_ID), heir=heir.node_id, now_ms=NOW)
    assert removed == len(ids)
    assert [each.object_id for each in await catalog.list_node_ssos(heir.node_id, limit=10)] == ids
    assert not await catalog.list_node_ssos(NODE_ID, limit=10)
    kept = await catalog.get_objects([single.object_id, ids[0]])
    assert kept[single.object_id].node_id == NODE_ID, "a stream object is compacted by the leader of its stream"
