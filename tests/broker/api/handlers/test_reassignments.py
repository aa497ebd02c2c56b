"""Orders of moves as Kafka's APIs give, list and cancel them, and elections of preferred leaders, on three nodes."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from anabranch.s3stream.catalog.schema import REPLICAS_SINCE
from anabranch.s3stream.catalog.values import MoveReason
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create, describe
from tests.support.held_moves import hold_moves, moves_carried_out
from tests.support.node import running_nodes
from tests.support.raw_client import raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow

REFUSED = ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Node]]:
    """Three nodes, of which the first leads `t-0` and `t-1`, the second `t-2`."""
    hold_moves(monkeypatch)
    async with running_nodes(tmp_path, 3) as running:
        assert await create(running[0], assigned("t", [1], [1], [2])) == [(0, None)]
        await all_serve(running, "t")
        yield running
        monkeypatch.undo()  # the nodes move their partitions before they stop


async def reassign(
    node: Node, wanted: dict[int, Sequence[int] | None], topic: str = "t"
) -> list[tuple[ErrorCode, str | None]]:
    partitions = [ReassignablePartition(partition_index=key, replicas=value) for key, value in wanted.items()]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=partitions)])
    async with raw_client(node.bootstrap) as client:
        answer = await client.call(request, 1)
    assert (answer.error_code, answer.error_message) == (0, None)
    return [(ErrorCode(each.error_code), each.error_message) for each in answer.responses[0].partitions]


async def test_below_the_level_of_replicas_answers_say_that_there_is_one(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that ask for three replicas work while the cluster is upgraded, as they did with the version before."""
    monkeypatch.setattr(nodes[0].serving.catalog, "_level", REPLICAS_SINCE - 1)
    wanted = CreatableTopic(name="u", num_partitions=1, replication_factor=3)
    async with raw_client(nodes[0].bootstrap) as client:
        (created,) = (await client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=9000), 7)).topics
    assert (created.error_code, created.replication_factor) == (0, 1)
    (refused,) = await reassign(nodes[0], {0: [1, 2]})
    said = "Partition t-0 gets no further replicas below level 13 of the cluster, which has 12: `anabranch cluster "
    assert refused == (REFUSED, f"{said}upgrade` raises it.")
    assert await reassign(nodes[0], {0: [2]}) == [(0, None)]


async def ongoing(node: Node, *indexes: int) -> dict[int, tuple[list[int], list[int], list[int]]]:
    """Replicas, adding and removing ones of the reassignments of `t`, by partition."""
    named = [ListPartitionReassignmentsTopics(name="t", partition_indexes=indexes)] if indexes else None
    async with raw_client(node.bootstrap) as client:
        answer = await client.call(ListPartitionReassignmentsRequest(topics=named), 0)
    return {
        each.partition_index: (list(each.replicas), list(each.adding_replicas), list(each.removing_replicas))
        for topic in answer.topics
        for each in topic.partitions
    }


async def described(node: Node, topic: str = "t") -> list[tuple[int, list[int], list[int]]]:
    """Leader, replicas and in-sync replicas of each partition, in which two APIs agree."""
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name=topic)])
    async with raw_client(node.bootstrap) as client:
        (answer,) = (await client.call(request, 0)).topics
    found, metadata = (
        [(each.leader_id, list(each.replica_nodes), list(each.isr_nodes)) for each in partitions]
        for partitions in (answer.partitions, await describe(node, topic))
    )
    assert found == metadata
    return found


async def elect(node: Node, *indexes: int, timeout_ms: int = 60_000) -> dict[int, ErrorCode]:
    """The answers of a preferred election, of some or all partitions of `t`."""
    wanted = [TopicPartitions(topic="t", partitions=indexes)] if indexes else None
    async with raw_client(node.bootstrap) as client:
        answer = await client.call(ElectLeadersRequest(topic_partitions=wanted, timeout_ms=timeout_ms), 2)
    (topic,) = answer.replica_election_results
    return {each.partition_id: ErrorCode(each.error_code) for each in topic.partition_result}


def leaders(node: Node) -> list[int]:
    topic = node.serving.topics.get("t")
    assert topic is not None
    return [each.leader for each in topic.info.partitions]


async def all_see(nodes: Sequence[Node], *expected: int) -> None:
    await until(lambda: all(leaders(node) == list(expected) for node in nodes), timeout_s=60, pause_s=0.01)
    await all_serve(nodes, "t")


async def test_an_order_is_listed_by_every_node_until_it_is_carried_out(nodes: list[Node]) -> None:
    assert await reassign(nodes[1], {0: [3], 2: [1]}) == [(0, None), (0, None)]
    expected = {0: ([3, 1], [3], [1]), 2: ([1, 2], [1], [2])}
    assert await ongoing(nodes[1]) == expected, "the node that took the orders knows them at once"
    for node in nodes:
        await node.serving.membership.catch_up()
        assert await ongoing(node) == expected
    assert await ongoing(nodes[2], 0, 1, 9) == {0: expected[0]}
    async with moves_carried_out(nodes):
        await all_see(nodes, 3, 1, 1)
    assert await ongoing(nodes[0]) == {}
    (topic,) = await nodes[0].serving.catalog.list_topics()
    assert [each.preferred for each in topic.partitions] == [3, 1, 1]


async def test_an_order_is_cancelled_or_replaced(nodes: list[Node]) -> None:
    assert await reassign(nodes[0], {0: None}) == [(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)]
    await reassign(nodes[0], {0: [2], 1: [2]})
    assert await reassign(nodes[0], {0: None, 1: [3]}) == [(0, None), (0, None)]
    assert await ongoing(nodes[0]) == {1: ([3, 1], [3], [1])}
    assert await reassign(nodes[0], {1: [1]}) == [(0, None)], "back to where it is"
    assert await ongoing(nodes[0]) == {}


async def test_an_order_that_has_failed_is_not_ongoing(nodes: list[Node]) -> None:
    await reassign(nodes[0], {0: [2]})
    (order,) = await nodes[0].serving.catalog.list_moves()
    await nodes[0].serving.catalog.fail_move(order, "busy")
    await nodes[0].serving.membership.catch_up()
    assert await ongoing(nodes[0]) == {}
    assert await reassign(nodes[0], {0: None}) == [(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)]
    assert nodes[0].serving.move_requests.progress({Place("t", 0): 2}).failed == {Place("t", 0): "busy"}


async def test_replicas_change_at_once_if_the_leader_stays_and_otherwise_when_it_has_moved(nodes: list[Node]) -> None:
    assert await reassign(nodes[1], {0: [2, 1, 3], 1: [3, 2]}) == [(0, None), (0, None)]
    assert await described(nodes[1]) == [(1, [2, 1, 3], [2, 1, 3]), (1, [1], [1]), (2, [2], [2])]
    assert await ongoing(nodes[1]) == {1: ([3, 2, 1], [3, 2], [1])}
    async with moves_carried_out(nodes):
        await all_see(nodes, 1, 3, 2)
        assert await described(nodes[0]) == [(1, [2, 1, 3], [2, 1, 3]), (3, [3, 2], [3, 2]), (2, [2], [2])]
        assert await elect(nodes[2]) == {0: ErrorCode.NONE}, "the first replica is the preferred leader"
        await all_see(nodes, 2, 3, 2)
    assert await reassign(nodes[0], {0: [2]}) == [(0, None)]
    assert (await described(nodes[0]))[0] == (2, [2], [2])


async def test_the_replicas_of_a_new_topic_lead_it_when_its_leader_leaves(nodes: list[Node]) -> None:
    new = CreatableTopic(name="u", num_partitions=3, replication_factor=2)
    assert await create(nodes[0], new) == [(0, None)]
    await all_serve(nodes, "u")
    before = await described(nodes[1], "u")
    assert 3 in [leader for leader, *_ in before], "it leads nothing else"
    assert all(replicas[0] == leader and len(set(replicas)) == 2 for leader, replicas, _ in before)
    async with raw_client(nodes[2].bootstrap) as client:
        grown = CreatePartitionsTopic(name="u", count=4, assignments=None)
        answer = await client.call(CreatePartitionsRequest(topics=[grown], timeout_ms=10_000), 3)
    assert [each.error_code for each in answer.results] == [0]
    await all_serve(nodes, "u", 4)
    assert len((await described(nodes[2], "u"))[3][1]) == 2, "as the others"
    async with moves_carried_out(nodes):
        await nodes[0].serving.move_requests.set_draining(3, draining=True)
        await until(lambda: all(not node.serving.move_requests.led_by(3) for node in nodes), timeout_s=60)
    for (leader, replicas, _), (after, still, _) in zip(before, await described(nodes[0], "u"), strict=False):
        assert still == replicas
        assert after == (replicas[1] if leader == 3 else leader)


async def test_what_cannot_be_ordered_is_refused_alone(nodes: list[Node]) -> None:
    await nodes[2].serving.move_requests.set_draining(3, draining=True)
    await nodes[0].serving.membership.catch_up()
    what = "The manual partition assignment includes"
    assert await reassign(nodes[0], {0: [2], 1: [3], 2: [9], 5: [1]}) == [
        (0, None),
        (REFUSED, f"{what} broker 3, which is being drained and takes no partitions."),
        (REFUSED, f"{what} broker 9, but no such broker is registered."),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:5."),
    ]
    assert await ongoing(nodes[0]) == {0: ([2, 1], [2], [1])}


async def test_a_preferred_election_moves_partitions_back(nodes: list[Node]) -> None:
    assert await elect(nodes[2], 0, 2) == dict.fromkeys((0, 2), ErrorCode.ELECTION_NOT_NEEDED)
    async with moves_carried_out(nodes):
        await nodes[0].serving.move_requests.request(
            dict.fromkeys((Place("t", 0), Place("t", 1)), 2), MoveReason.GATHERING
        )
        await all_see(nodes, 2, 2, 2)
        await nodes[2].serving.move_requests.set_draining(1, draining=True)
        assert await elect(nodes[2], 0) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        await nodes[2].serving.move_requests.set_draining(1, draining=False)
        await nodes[0].serving.membership.catch_up()  # until it knows, it drains what the election brings back
        assert await elect(nodes[2]) == dict.fromkeys((0, 1), ErrorCode.NONE), "others are not named"
        await all_see(nodes, 1, 1, 2)


async def test_an_election_leaves_reassignments_alone(nodes: list[Node]) -> None:
    async with moves_carried_out(nodes):
        await nodes[0].serving.move_requests.request({Place("t", 0): 2}, MoveReason.GATHERING)
        await all_see(nodes, 2, 1, 2)
    await reassign(nodes[2], {0: [3]})
    assert await elect(nodes[2], 0) == {0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert await ongoing(nodes[2]) == {0: ([3, 2], [3], [2])}


async def test_an_election_is_answered_in_time(nodes: list[Node]) -> None:
    async with moves_carried_out(nodes):
        await nodes[0].serving.move_requests.request({Place("t", 0): 2}, MoveReason.GATHERING)
        await all_see(nodes, 2, 1, 2)
    assert await elect(nodes[2], 0, 1, timeout_ms=10) == {
        0: ErrorCode.REQUEST_TIMED_OUT,
        1: ErrorCode.ELECTION_NOT_NEEDED,
    }
    assert await ongoing(nodes[2]) == {0: ([1, 2], [1], [2])}, "and the move goes on"
