"""The balancer on real nodes: it measures, orders, and leaves alone what it must."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.balancer import balancer as balancing
from anabranch.broker.cluster.balancer import loads, planning
from anabranch.broker.cluster.balancer.balancer import Balancer
from anabranch.broker.cluster.balancer.loads import LoadMeter
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.broker import ALL_NODES
from anabranch.broker.kafka.configs.broker_table import BALANCER, BALANCER_ZONE
from anabranch.broker.kafka.configs.cluster import BROKER
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.node.net.traffic import ClientTraffic
from anabranch.broker.node.peers.relay import RelayRefused
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.internal.describe_balance import DescribeBalanceRequest
from anabranch.protocol.messages.internal.describe_zones import DescribeZonesRequest
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import NodeUnavailable
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

PARTITIONS = 12


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Three nodes that have just joined, the third of which leads nothing of the topic `t`."""
    monkeypatch.setattr(planning, "JOINED_S", (0.0, 600.0))
    async with running_nodes(tmp_path, 3, cluster_balancer=True) as running:
        first = running[0]
        await first.serving.topic_commands.create_all([TopicSpec("t", PARTITIONS, {}, leaders=[1, 2] * 6)])
        await until(lambda: all(led_by(node) == {1: 6, 2: 6} for node in running), pause_s=0.01)
        yield list(running)


def led_by(node: Node) -> Counter[int]:
    topic = node.serving.topics.get("t")
    return Counter() if topic is None else Counter(each.owner for each in topic.info.partitions if each.owner >= 0)


async def balance(balancer: Balancer) -> None:
    """Balance once no node is silent, which one may be for a second on a busy machine."""
    await balancer.balance()
    while balancer.last is None or balancer.last.plan.waits:
        await balancer.balance()


async def test_a_node_that_joins_is_filled(nodes: list[Node]) -> None:
    balancer = nodes[0].upkeep.balancer
    await balance(balancer)
    assert led_by(nodes[0]) == {1: 4, 2: 4, 3: 4}
    assert {(made.move.to_node, made.rule, made.done) for made in balancer.history} == {(3, planning.Rule.FILL, True)}
    topic = nodes[0].serving.topics.require("t")
    assert all(each.preferred == each.leader for each in topic.info.partitions), "they stay there"
    await balancer.balance()
    assert len(balancer.history) == 4


async def test_two_that_balance_at_a_time_do_no_harm(nodes: list[Node]) -> None:
    first, second, _ = (node.upkeep.balancer for node in nodes)
    await asyncio.gather(first.balance(), second.balance())
    assert led_by(nodes[0]) == {1: 4, 2: 4, 3: 4}
    topic = nodes[0].serving.topics.require("t")
    assert all(each.leader_epoch <= 2 for each in topic.info.partitions), "each has moved once at most"


async def test_a_node_that_serves_a_catch_up_as_a_replica_is_not_filled(nodes: list[Node]) -> None:
    joined = nodes[2]
    await joined.upkeep.meter.sample()
    joined.serving.replicas.object_bytes += 10**12
    await joined.upkeep.meter.sample()
    balancer = nodes[0].upkeep.balancer
    await balance(balancer)
    assert not balancer.history
    found = balancer.describe(DescribeBalanceRequest()).nodes
    assert [each.node_id for each in found if each.replica_cores] == [3]
    assert found[2].cores == found[2].replica_cores == joined.upkeep.meter.cores


async def test_a_balancer_that_is_paused_plans_and_moves_nothing(nodes: list[Node]) -> None:
    first, second, _ = nodes
    await first.serving.cluster_configs.alter(BROKER, ALL_NODES, set_configs={BALANCER: "false"}, unset=())
    await balance(first.upkeep.balancer)
    found = first.upkeep.balancer.describe(DescribeBalanceRequest())
    assert not found.is_on
    assert [move.to_node for move in found.moves] == [3] * 4
    assert not found.history
    assert [(each.node_id, each.partitions) for each in found.nodes] == [(1, 6), (2, 6), (3, 0)]
    assert found.spread_after < found.spread_before
    assert led_by(first) == {1: 6, 2: 6}
    assert "node 1" in second.upkeep.balancer.describe(DescribeBalanceRequest()).waits


async def test_nothing_moves_while_a_partition_is_being_moved(nodes: list[Node]) -> None:
    for node in nodes:
        await node.upkeep.orders.close()
    await nodes[0].serving.move_requests.request({Place("t", 0): 2}, MoveReason.OPERATOR)
    await nodes[0].upkeep.balancer.balance()
    assert not nodes[0].upkeep.balancer.history
    waits = nodes[0].upkeep.balancer.describe(DescribeBalanceRequest()).waits
    assert waits == "partition t-0 is being moved to node 2"


async def test_an_order_that_is_refused_is_told(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **_named: object) -> None:
        raise NodeUnavailable("node 3 is being drained: it takes no partitions")

    balancer = nodes[0].upkeep.balancer
    monkeypatch.setattr(nodes[0].serving.move_requests, "request", refuse)
    await balance(balancer)
    found = balancer.describe(DescribeBalanceRequest())
    assert {(move.done, move.failure) for move in found.history} == {
        (False, "node 3 is being drained: it takes no partitions")
    }
    assert (len(found.history), balancer.counts.failures) == (4, 4)


async def test_the_outcome_of_a_move_that_is_not_waited_for_is_told_later(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancing, "MOVES_S", 0.0)
    balancer = nodes[0].upkeep.balancer
    await balance(balancer)
    moves = list(balancer.history)
    assert [each.done for each in moves] == [False] * 4
    await until(lambda: led_by(nodes[0])[3] == 4, pause_s=0.01)
    await balancer.balance()
    assert all(each.done for each in moves)


async def test_what_a_person_moves_between_plan_and_order_stays_there(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = nodes[0].serving.move_requests
    order = requests.request

    by_hand: dict[Place, int] = {}

    async def after_a_person(wanted: Mapping[Place, int], reason: MoveReason, **named: Any) -> None:
        by_hand.update({place: 3 - requests.info(place).leader for place in wanted})  # from node 1 to 2, from 2 to 1
        await order(by_hand, MoveReason.OPERATOR)
        await until(lambda: len(requests.progress(by_hand).done) == len(by_hand), pause_s=0.01)
        await order(wanted, reason, **named)

    monkeypatch.setattr(requests, "request", after_a_person)
    await balance(nodes[0].upkeep.balancer)
    found = nodes[0].upkeep.balancer.describe(DescribeBalanceRequest()).history
    assert {each.failure for each in found} == {"the order was cancelled or replaced"}
    assert {place: requests.info(place).leader for place in by_hand} == by_hand


async def test_nothing_moves_while_a_node_is_silent(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    balancer = nodes[0].upkeep.balancer
    monkeypatch.setattr(balancer, "_judged", lambda: [2])
    await balancer.balance()
    assert not balancer.history
    assert balancer.describe(DescribeBalanceRequest()).waits == "node 2 is silent, or has died a moment ago"


async def test_a_partition_that_was_moved_rests_whoever_has_ordered_it(nodes: list[Node]) -> None:
    first = nodes[0]
    moved = [Place("t", index) for index in (0, 2, 4, 6, 8)]  # of node 1
    await first.serving.move_requests.request(dict.fromkeys(moved, 2), MoveReason.OPERATOR)
    await until(lambda: all(led_by(node) == {1: 1, 2: 11} for node in nodes), pause_s=0.01)
    opened = nodes[1].serving.topics.require("t").partitions
    await until(lambda: all(opened[place.partition] is not None for place in moved), pause_s=0.01)
    info = first.serving.move_requests.info
    await until(lambda: all(info(place).preferred == 2 for place in moved), pause_s=0.01)  # as the catalog says
    await nodes[1].upkeep.meter.sample()
    await balance(first.upkeep.balancer)
    left = {made.place for made in first.upkeep.balancer.history}
    assert left
    assert not left & set(moved)


@pytest.fixture
async def racks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Two nodes in the racks `a` and `b`; the first leads all of a topic, to which clients in `b` write."""
    monkeypatch.setattr(planning, "ZONE_OBSERVATIONS", 1)
    # However long the samples are: a short one shows many bytes a second, one after the node's own sample few.
    monkeypatch.setattr(planning, "OVERLOAD_CORES", math.inf)
    monkeypatch.setattr(planning, "ZONE_BYTES", 0.0)
    monkeypatch.setattr(loads, "ZONE_BYTES_MIN", 1e-9)
    shared: dict[str, Any] = {
        "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
        "objects_path": tmp_path / "objects",
        "cluster_balancer": True,
    }
    async with (
        running_node(tmp_path / "1", node_id=1, rack="a", **shared) as first,
        running_node(tmp_path / "2", node_id=2, rack="b", **shared) as second,
    ):
        both = [first, second]
        await until(lambda: all(len(each.serving.members.living()) == 2 for each in both), pause_s=0.01)
        await first.serving.topic_commands.create_all([TopicSpec("t", 2, {}, leaders=[1, 1])])
        await until(lambda: all(led_by(each) == {1: 2} for each in both), pause_s=0.01)
        await until(lambda: all(first.serving.topics.require("t").partitions), pause_s=0.01)  # they are open
        await first.upkeep.meter.sample()
        async with raw_client(first.bootstrap, "orders,rack=b") as client:
            await client.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
            for _ in range(10):
                await client.produce("t", [batch_of(b"x" * 50_000)], partition=1)
        await first.upkeep.meter.sample()
        yield both


async def test_a_partition_follows_its_clients_into_their_rack(racks: list[Node]) -> None:
    first = racks[0]
    await balance(first.upkeep.balancer)
    [made] = first.upkeep.balancer.history
    assert (made.place, made.move.to_node, made.rule, made.done) == (Place("t", 1), 2, planning.Rule.ZONE, True)
    assert made.move.reason.startswith("clients in rack b exchange ")
    assert made.move.reason.endswith(" with it, those in its rack a 0 kB/s")
    await until(lambda: led_by(racks[1]) == {1: 1, 2: 1}, pause_s=0.01)


async def test_the_racks_of_clients_do_not_count_when_they_are_off(racks: list[Node]) -> None:
    first = racks[0]
    await first.serving.cluster_configs.alter(BROKER, ALL_NODES, set_configs={BALANCER_ZONE: "off"}, unset=())
    await balance(first.upkeep.balancer)
    assert not [made for made in first.upkeep.balancer.history if made.rule is planning.Rule.ZONE]


async def test_a_node_of_an_earlier_version_tells_loads_without_the_racks_of_clients(
    racks: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    balancer = racks[0].upkeep.balancer
    ask = balancer._ask  # noqa: SLF001

    async def ask_earlier(node_id: int, request: Any) -> Any:
        if isinstance(request, DescribeZonesRequest):
            raise RelayRefused(f"node {node_id}: API key 32018 in version 0 is not relayed")
        return await ask(node_id, request)

    monkeypatch.setattr(balancer, "_ask", ask_earlier)
    await balance(balancer)
    assert [made.rule for made in balancer.history] == [planning.Rule.ZONE], "the controller knows those of its own"
    assert balancer.describe(DescribeBalanceRequest()).waits == ""


async def test_traffic_is_measured_by_partition(nodes: list[Node]) -> None:
    serving = nodes[0].serving
    meter = LoadMeter(serving.topics, serving.replicas, ClientTraffic(), lambda: time.monotonic_ns() // 1_000_000)
    await meter.sample()
    async with raw_client(nodes[0].bootstrap) as client:
        batch = batch_of(b"x" * 1000)
        await client.produce("t", [batch])
    await meter.sample()
    [traffic] = [each for each in meter.describe().partitions if each.requests]
    assert traffic.stream_id == nodes[0].serving.topics.partition("t", 0).stream.stream_id
    assert traffic.received_bytes == pytest.approx(traffic.requests * len(batch))
    assert traffic.sent_bytes == 0


async def test_a_node_that_is_alone_measures_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that another one joins knows for how long its partitions have rested."""
    monkeypatch.setattr(balancing, "SAMPLE_S", 0.01)
    async with running_node(tmp_path, cluster_balancer=True) as node:
        await node.serving.topic_commands.create_all([TopicSpec("t", PARTITIONS, {})])
        describe = node.upkeep.meter.describe
        await until(lambda: all(each.led_s for each in describe().partitions), pause_s=0.01)
        assert len(describe().partitions) == PARTITIONS


async def test_the_neighbours_of_a_hot_partition_leave_its_node(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "JOINED_S", (600.0, 600.0))  # else the third node is filled first
    for limit in ("OVERLOAD_CORES", "WORTH_CORES", "REST_CORES"):
        monkeypatch.setattr(planning, limit, 0.0)  # a share of the load counts, not its size
    for node in nodes:
        await node.upkeep.meter.sample()
    async with raw_client(nodes[0].bootstrap) as first, raw_client(nodes[1].bootstrap) as second:
        for index in range(PARTITIONS):
            client = second if index % 2 else first
            for _ in range(1 if index else PARTITIONS):
                await client.produce("t", [batch_of(b"x")], partition=index)
    for node in nodes:
        await node.upkeep.meter.sample()
    balancer = nodes[0].upkeep.balancer
    for _ in range(planning.OBSERVATIONS):
        assert not balancer.history
        await balancer.balance()
    left = {(made.place, made.move.from_node, made.rule, made.done) for made in balancer.history}
    assert left == {(Place("t", index), 1, planning.Rule.SHED, True) for index in range(2, PARTITIONS, 2)}
    assert led_by(nodes[0])[1] == 1
    hot = nodes[0].serving.topics.partition("t", 0).stream.stream_id
    assert balancer.last is not None
    assert balancer.last.plan.hot == [hot]
