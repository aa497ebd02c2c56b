"""Contract of the orders of moves: who asks for them, what replaces, settles, fails and removes them."""

from collections.abc import Mapping

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import MoveOrder, MoveReason, NewTopic, PartitionInfo, TopicInfo
from anabranch.s3stream.errors import NodeFenced, NodeUnavailable, StreamNotFound
from anabranch.s3stream.model import NodeIdentity
from tests.s3stream.catalog.test_takeover import DEAD, LOG, ONE, TOPIC_ID, TWO, Cluster, cluster
from tests.support.catalog_node import LATER, NOW

__all__ = ["cluster"]  # the fixture

REASSIGN = MoveReason.REASSIGNMENT


async def request(cluster: Cluster, *targets: int, reason: MoveReason = REASSIGN) -> None:
    """Order the first streams of the topic to the nodes, one each."""
    wanted = dict(zip(cluster.streams, targets, strict=False))
    await cluster.catalog.request_moves(wanted, reason=reason, now_ms=NOW)


async def targets(cluster: Cluster) -> Mapping[int, int]:
    """Return the targets of the orders that have not failed, by partition."""
    orders = await cluster.catalog.list_moves()
    return {cluster.streams.index(order.stream_id): order.to_node for order in orders if not order.failure}


async def partitions_of(catalog: Catalog) -> list[PartitionInfo]:
    (topic,) = await catalog.list_topics()
    return list(topic.partitions)


async def changed(cluster: Cluster, seen: int) -> TopicInfo:
    changes = await cluster.catalog.read_changes(seen)
    assert changes is not None
    (topic,) = changes.topics
    return topic


async def test_other_nodes_read_orders_with_their_partitions(cluster: Cluster) -> None:
    catalog, streams = cluster.catalog, cluster.streams
    version = await catalog.last_change()
    await request(cluster, ONE, TWO)
    orders = [MoveOrder(streams[0], ONE, REASSIGN, NOW), MoveOrder(streams[1], TWO, REASSIGN, NOW)]
    assert await catalog.list_moves() == orders
    assert [each.order for each in (await changed(cluster, version)).partitions] == [*orders, None, None]

    version = await catalog.last_change()
    await catalog.cancel_moves(streams[:1])
    assert [each.order for each in (await changed(cluster, version)).partitions] == [None, orders[1], None, None]

    version = await catalog.last_change()
    await catalog.fail_move(orders[1], "busy")
    failed = MoveOrder(streams[1], TWO, REASSIGN, NOW, "busy")
    assert (await changed(cluster, version)).partitions[1].order == failed


async def test_a_later_order_replaces_an_earlier_one_and_its_failure(cluster: Cluster) -> None:
    await request(cluster, ONE)
    (earlier,) = await cluster.catalog.list_moves()
    await cluster.catalog.fail_move(earlier, "busy")
    for later in (
        MoveOrder(cluster.streams[0], TWO, REASSIGN, NOW),
        MoveOrder(cluster.streams[0], ONE, MoveReason.OPERATOR, NOW),
        MoveOrder(cluster.streams[0], ONE, REASSIGN, NOW + 1),
    ):
        wanted = {later.stream_id: later.to_node}
        await cluster.catalog.request_moves(wanted, reason=later.reason, now_ms=later.asked_ms)
        await cluster.catalog.fail_move(earlier, "a late failure of the earlier order")
        assert await cluster.catalog.list_moves() == [later]


async def test_an_order_to_the_present_leader_removes_the_earlier_order(cluster: Cluster) -> None:
    await request(cluster, ONE)
    await request(cluster, DEAD)
    assert await cluster.catalog.list_moves() == []


async def test_nothing_is_ordered_unless_all_can_be(cluster: Cluster) -> None:
    await request(cluster, ONE)
    before = await cluster.catalog.list_moves()
    with pytest.raises(NodeUnavailable, match="node 9 is not registered"):
        await request(cluster, TWO, 9)
    with pytest.raises(StreamNotFound, match="stream 99 does not exist"):
        await cluster.catalog.request_moves({cluster.streams[0]: TWO, 99: TWO}, reason=MoveReason.OPERATOR, now_ms=NOW)
    assert await cluster.catalog.list_moves() == before


async def test_a_node_that_is_fenced_orders_nothing(cluster: Cluster) -> None:
    catalog = cluster.catalog
    catalog.act_for(NodeIdentity(DEAD, cluster.nodes[DEAD].epoch))
    await request(cluster, ONE)
    await cluster.register(DEAD)
    with pytest.raises(NodeFenced):
        await request(cluster, TWO)
    with pytest.raises(NodeFenced):
        await catalog.fail_move(MoveOrder(cluster.streams[0], ONE, REASSIGN, NOW), "busy")


@pytest.mark.parametrize("reason", list(MoveReason))
async def test_orders_of_people_change_the_preferred_leader_and_others_do_not(
    cluster: Cluster, reason: MoveReason
) -> None:
    assert [each.preferred for each in await partitions_of(cluster.catalog)] == [DEAD] * 4
    await cluster.take_over(await cluster.beat(DEAD))
    await request(cluster, ONE, reason=reason)
    lasting = reason in {MoveReason.REASSIGNMENT, MoveReason.OPERATOR, MoveReason.PLACEMENT}
    assert [each.preferred for each in await partitions_of(cluster.catalog)] == [ONE if lasting else DEAD, *[DEAD] * 3]


async def test_a_takeover_carries_out_orders_and_ends_those_that_nobody_can(cluster: Cluster) -> None:
    await request(cluster, TWO, TWO)
    await cluster.catalog.drain_node(DEAD, draining=True)
    await cluster.catalog.request_moves(
        {cluster.streams[2]: ONE, cluster.streams[3]: TWO}, reason=MoveReason.DRAIN, now_ms=NOW
    )
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE,))
    assert await cluster.leaders() == [ONE] * 4
    assert await targets(cluster) == {0: TWO, 1: TWO}, "the new leader has them, but needs not leave as the dead one"


async def test_a_takeover_places_partitions_where_they_were_ordered(cluster: Cluster) -> None:
    await request(cluster, TWO, TWO, TWO)
    await cluster.catalog.fail_move(MoveOrder(cluster.streams[2], TWO, REASSIGN, NOW), "busy")
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    assert await cluster.leaders() == [TWO, TWO, ONE, ONE]
    assert await cluster.catalog.list_moves() == []
    assert [each.preferred for each in await partitions_of(cluster.catalog)] == [TWO, TWO, DEAD, DEAD]


async def test_orders_to_a_node_that_dies_fail(cluster: Cluster) -> None:
    catalog = cluster.catalog
    topic = await catalog.create_topic("u", b"u" * 16, partitions=1, configs={}, leader=TWO, internal=False)
    stream_id = topic.partitions[0].stream_id
    await catalog.request_moves({stream_id: DEAD}, reason=REASSIGN, now_ms=NOW)
    await cluster.take_over(await cluster.beat(DEAD))
    assert [order.failure for order in await catalog.list_moves()] == [f"node {DEAD} has died"]


async def test_orders_to_a_node_that_stops_fail(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await request(cluster, ONE)
    await catalog.stop_node(NodeIdentity(ONE, cluster.nodes[ONE].epoch), drained_wal=None, now_ms=NOW)
    assert [order.failure for order in await catalog.list_moves()] == [f"node {ONE} was stopped"]


async def test_a_node_that_stops_leaves_its_partitions_where_they_were_ordered(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await request(cluster, TWO, TWO, TWO, TWO, reason=MoveReason.OPERATOR)
    epoch = cluster.nodes[DEAD].epoch
    await catalog.stop_node(NodeIdentity(DEAD, epoch), drained_wal=LOG, successors=(ONE, TWO), now_ms=NOW)
    assert await cluster.leaders() == [TWO] * 4
    assert await catalog.list_moves() == []


async def test_deleted_and_detached_topics_have_no_orders(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await request(cluster, ONE)
    await catalog.detach_topic(
        "t",
        TOPIC_ID,
        ends=dict.fromkeys(cluster.streams, 0),
        node=NodeIdentity(DEAD, cluster.nodes[DEAD].epoch),
        now_ms=NOW,
    )
    assert await catalog.list_moves() == []
    await catalog.attach_topic(TOPIC_ID, "t", node=NodeIdentity(TWO, cluster.nodes[TWO].epoch))
    assert [each.preferred for each in await partitions_of(catalog)] == [TWO] * 4
    await request(cluster, ONE)
    await catalog.delete_topics([TOPIC_ID], now_ms=NOW, delete_after_ms=LATER)
    assert await catalog.list_moves() == []


async def test_a_clone_has_no_orders_and_prefers_its_first_leader(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await request(cluster, ONE)
    clone = await catalog.clone_topic(
        "t",
        "c",
        b"c" * 16,
        ends=dict.fromkeys(cluster.streams, 0),
        node=NodeIdentity(TWO, cluster.nodes[TWO].epoch),
    )
    assert [(each.preferred, each.order) for each in clone.partitions] == [(TWO, None)] * 4


async def test_a_node_that_is_drained_gets_no_partitions(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await request(cluster, ONE)
    version = await catalog.last_change()
    await catalog.drain_node(ONE, draining=True)
    changes = await catalog.read_changes(version)
    assert changes is not None
    assert [(each.node_id, each.draining) for each in changes.nodes] == [(DEAD, False), (ONE, True), (TWO, False)]
    assert [order.failure for order in await catalog.list_moves()] == [f"node {ONE} is being drained"]
    with pytest.raises(NodeUnavailable, match="is being drained"):
        await request(cluster, ONE)
    (topic,) = await catalog.create_topics([NewTopic("u", b"u" * 16, 2, {})], leader=ONE, others=(TWO,))
    assert isinstance(topic, TopicInfo)
    assert [each.leader for each in topic.partitions] == [TWO, TWO]
    await cluster.take_over(await cluster.beat(DEAD), leaders=(ONE, TWO))
    assert {partition.leader for each in await catalog.list_topics() for partition in each.partitions} == {TWO}


async def test_a_node_that_has_stopped_gets_no_new_partitions(cluster: Cluster) -> None:
    """The node that creates them may not have seen it yet."""
    catalog = cluster.catalog
    await catalog.stop_node(NodeIdentity(ONE, cluster.nodes[ONE].epoch), drained_wal=None, now_ms=NOW)
    topic = await catalog.create_topic("u", b"u" * 16, partitions=1, configs={}, leader=TWO, internal=False)
    grown = await catalog.add_partitions(topic.topic_id, 3, leader=TWO, others=(ONE,))
    assert [each.leader for each in grown.partitions] == [TWO] * 3


async def test_the_end_of_a_drain_cancels_its_orders_and_no_others(cluster: Cluster) -> None:
    catalog = cluster.catalog
    await catalog.drain_node(DEAD, draining=True)
    await request(cluster, ONE)
    await catalog.request_moves({cluster.streams[1]: ONE}, reason=MoveReason.DRAIN, now_ms=NOW)
    version = await catalog.last_change()
    await catalog.drain_node(DEAD, draining=False)
    assert await targets(cluster) == {0: ONE}
    assert (await changed(cluster, version)).partitions[1].order is None
    assert not any(node.draining for node in await catalog.list_nodes())


async def test_a_drain_orders_nothing_of_leaders_that_are_not_drained(cluster: Cluster) -> None:
    """The node may not have seen yet that its drain has ended."""
    await request(cluster, ONE)
    await cluster.catalog.drain_node(TWO, draining=True)
    await request(cluster, ONE, ONE, reason=MoveReason.DRAIN)
    assert [order.reason for order in await cluster.catalog.list_moves()] == [REASSIGN]
    await cluster.catalog.drain_node(DEAD, draining=True)
    await request(cluster, ONE, ONE, reason=MoveReason.DRAIN)
    assert [order.reason for order in await cluster.catalog.list_moves()] == [REASSIGN, MoveReason.DRAIN]


@pytest.mark.parametrize("reason", [MoveReason.DRAIN, MoveReason.STOP, MoveReason.ELECTION, MoveReason.PLACEMENT])
async def test_orders_of_people_are_replaced_by_people_or_when_they_have_failed(
    cluster: Cluster, reason: MoveReason
) -> None:
    """The node that orders the others may not have seen them yet."""
    catalog = cluster.catalog
    await cluster.take_over(await cluster.beat(DEAD))  # the preferred leader
    await catalog.drain_node(ONE, draining=reason is MoveReason.DRAIN)
    await request(cluster, TWO, TWO)
    _, failed = await catalog.list_moves()
    await catalog.fail_move(failed, "busy")
    await request(cluster, DEAD, DEAD, DEAD, reason=reason)
    assert [order.reason for order in await catalog.list_moves()] == [REASSIGN, reason, reason]
    await request(cluster, TWO, TWO, TWO, reason=MoveReason.GATHERING)
    assert [order.reason for order in await catalog.list_moves()] == [MoveReason.GATHERING] * 3


async def test_an_election_orders_nothing_to_nodes_that_are_not_preferred(cluster: Cluster) -> None:
    """The node that holds it may not have seen yet that a reassignment has ended."""
    before = await cluster.catalog.last_change()
    await request(cluster, ONE, reason=MoveReason.ELECTION)
    assert (await cluster.catalog.list_moves(), await cluster.catalog.last_change()) == ([], before)


async def test_a_restart_ends_a_drain(cluster: Cluster) -> None:
    await cluster.catalog.drain_node(ONE, draining=True)
    await cluster.register(ONE)
    assert not any(node.draining for node in await cluster.catalog.list_nodes())
