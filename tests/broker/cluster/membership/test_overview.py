"""The state of a cluster as values: states of nodes, and why partitions have no leader."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.cluster.membership.failover import Judgement
from anabranch.broker.cluster.membership.overview import (
    ClusterFacts,
    NodeState,
    SilentNode,
    describe_cluster,
    describe_nodes,
    state_of,
)
from anabranch.s3stream.catalog.values import (
    MoveOrder,
    MoveReason,
    NodeHolder,
    NodeInfo,
    PartitionInfo,
    Takeover,
    TopicInfo,
    WalInfo,
    WalState,
)

NOW = 1_000_000
NODE = NodeInfo(1, 3, "h", 9092, NOW + 5, 10, NodeHolder("machine", 7, "lock"))
LOG = WalInfo("a" * 16, 1, 3, "/wal", WalState.OPEN, NOW - 10, Takeover.MACHINE)
FENCED = replace(LOG, state=WalState.FENCED, recoverer=2, recoverer_epoch=5)
DRAINED = replace(LOG, state=WalState.DRAINED)


@pytest.mark.parametrize(
    ("lease_until_ms", "logs", "lives", "draining", "expected"),
    [
        (NOW, [LOG], True, False, NodeState.UP),
        (NOW, [LOG], True, True, NodeState.DRAINING),
        (NOW, [LOG], False, False, NodeState.FAILED),
        (NOW, [], False, False, NodeState.FAILED),
        (0, [LOG], False, False, NodeState.FAILED),
        (0, [FENCED], False, False, NodeState.FAILED),
        (0, [replace(FENCED, state=WalState.DRAINED)], False, False, NodeState.FAILED),
        (0, [replace(LOG, state=WalState.GIVEN_UP)], False, False, NodeState.FAILED),
        (0, [replace(LOG, state=WalState.GIVEN_UP), DRAINED], False, False, NodeState.LEFT),
        (0, [DRAINED], False, False, NodeState.LEFT),
        (0, [], False, False, NodeState.LEFT),
    ],
)
def test_the_state_of_a_node_follows_from_lease_and_logs(
    lease_until_ms: int, logs: Sequence[WalInfo], *, lives: bool, draining: bool, expected: NodeState
) -> None:
    node = replace(NODE, lease_until_ms=lease_until_ms, draining=draining)
    assert state_of(node, logs, lives=lives) is expected


def facts(*partitions: tuple[int, int], **wanted: Any) -> ClusterFacts:
    """Node 1 is dead, nodes 2 and 3 live; a topic has partitions with these leaders and owners."""
    nodes = [replace(NODE, node_id=node_id) for node_id in (1, 2, 3)]
    infos = [PartitionInfo(index, 10 + index, leader, 0, owner) for index, (leader, owner) in enumerate(partitions)]
    topic = TopicInfo("t", b"t" * 16, {}, infos)
    given: dict[str, Any] = {"logs": [LOG], "living": frozenset({2, 3}), **wanted}
    return ClusterFacts(nodes=nodes, topics=[topic], last_commits={}, now_ms=NOW, **given)


def reasons(*partitions: tuple[int, int], **wanted: Any) -> list[str]:
    found = describe_cluster(facts(*partitions, **wanted), controller=2, observer=2).unavailable
    return [each.reason for each in found]


def test_a_partition_without_a_leader_is_shown_with_the_reason() -> None:
    assert reasons((2, 2), (3, 3)) == []
    assert reasons((3, -1), (1, -1), (-1, -1), (3, 2)) == [
        "node 3 is opening it",
        "its leader, node 1, is not there",
        "no node leads it",
        "node 2 still has it open, and node 3 is to lead it",
    ]
    lost = "its newest records may be in the log of node 1: "
    assert reasons((1, 1)) == [lost + "the log of node 1, /wal, was not recovered yet"]
    judged = [Judgement(1, 4.0, is_dead=True, reason="it is on another machine")]
    assert reasons((1, 1), judgements=judged) == [lost + "it is on another machine"]
    assert reasons((3, 1), logs=[FENCED]) == ["node 2 recovers the log of node 1, /wal"]
    assert reasons((2, 2), stopped={10: "a record is missing"}) == ["a record is missing"]


def test_logs_of_dead_nodes_that_are_not_drained_are_shown() -> None:
    others = [replace(LOG, wal_id="b" * 16, node_id=2), replace(DRAINED, wal_id="c" * 16, node_id=3)]
    judged = [Judgement(1, 4.0, is_dead=True, reason="no such file")]
    found = describe_cluster(facts((2, 2), logs=[LOG, *others], judgements=judged), controller=2, observer=3)
    assert [(log.node, log.location, log.node_state) for log in found.logs_not_drained] == [(1, "/wal", "FAILED")]
    assert found.silent == [SilentNode(1, 4000, dead=True, reason="no such file")]
    assert (found.controller, found.observer, found.partitions) == (2, 3, 1)


def test_moves_under_way_and_failed_are_shown() -> None:
    given = facts((2, 2), (3, 3))
    (topic,) = given.topics
    under_way = MoveOrder(10, 3, MoveReason.OPERATOR, NOW - 7)
    failed = MoveOrder(11, 2, MoveReason.DRAIN, NOW - 9, "busy")
    moving = [replace(each, order=order) for each, order in zip(topic.partitions, (under_way, failed), strict=True)]
    given = replace(given, topics=[replace(topic, partitions=moving)])
    found = describe_cluster(given, controller=2, observer=2).moves
    assert [(each.partition, each.from_node, each.to, each.reason, each.asked_ms) for each in found] == [
        (0, 2, 3, "operator", NOW - 7),
        (1, 3, 2, "drain", NOW - 9),
    ]
    assert [each.failure for each in found] == [None, "busy"]


@pytest.mark.parametrize("ahead_ms", [-420_000, 0, 86_400_000])
def test_the_age_of_an_upload_does_not_depend_on_the_clocks_of_machines(ahead_ms: int) -> None:
    now_ms = NOW + ahead_ms  # by the clock of the node
    node = replace(NODE, node_id=2, lease_until_ms=now_ms + NODE.lease_ms)
    commits, ages = {2: now_ms - 3_000}, {2: 500}
    given = replace(facts((2, 2)), nodes=[node], last_commits=commits, beat_ages_ms=ages)
    assert describe_nodes(given)[0].commit_age_ms == 3_500
    assert describe_nodes(replace(given, beat_ages_ms={}))[0].commit_age_ms is None, "nobody has observed it"


def test_without_an_observer_a_node_lives_while_its_lease_lasts() -> None:
    given = facts((1, 1), living=None)
    assert [row.state for row in describe_cluster(given, controller=None, observer=None).nodes] == ["UP"] * 3
    later = replace(given, now_ms=NOW + 6)
    assert [row.state for row in describe_cluster(later, controller=None, observer=None).nodes] == ["FAILED"] * 3
