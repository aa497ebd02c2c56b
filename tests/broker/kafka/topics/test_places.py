"""Tests of which of two states of a topic's partitions is the newer one, and of what a move changes in them."""

from dataclasses import replace

import pytest

from anabranch.broker.kafka.topics.places import with_leader, without_older
from anabranch.s3stream.catalog.values import MoveOrder, MoveReason, PartitionInfo, TopicInfo


def topic(*leaders: tuple[int, int]) -> TopicInfo:
    """A topic whose partitions have these leaders and leader epochs."""
    partitions = [
        PartitionInfo(index, 10 + index, leader, epoch, leader, order=MoveOrder(10 + index, 9, MoveReason.DRAIN, 0))
        for index, (leader, epoch) in enumerate(leaders)
    ]
    return TopicInfo("t", bytes(16), {}, partitions)


def test_a_moved_partition_has_its_leader_and_no_order() -> None:
    moved = with_leader(topic((1, 4), (1, 4)), 1, 2, 5)
    first, second = moved.partitions
    assert (first.leader, first.leader_epoch) == (1, 4)
    assert (second.leader, second.owner, second.leader_epoch, second.order) == (2, 2, 5, None)


@pytest.mark.parametrize(
    ("reason", "ordered", "replicas", "expected"),
    [
        (MoveReason.REASSIGNMENT, (3, 2), (), (3, (3, 2))),
        (MoveReason.REASSIGNMENT, (2, 3), (1, 2), (2, (2, 3))),
        (MoveReason.REASSIGNMENT, (), (), (3, ())),
        (MoveReason.DRAIN, (), (1, 2), (1, (1, 2))),
    ],
)
def test_a_move_sets_the_replicas_that_its_order_names(
    reason: MoveReason, ordered: tuple[int, ...], replicas: tuple[int, ...], expected: tuple[int, tuple[int, ...]]
) -> None:
    """As the catalog does: a client that asks both nodes must not see the number of replicas change."""
    order = MoveOrder(10, 3, reason, 0, replicas=ordered)
    info = topic((1, 4))
    (partition,) = info.partitions
    info = replace(info, partitions=[replace(partition, preferred=1, replicas=replicas, order=order)])
    (moved,) = with_leader(info, 0, 3, 5).partitions
    assert (moved.preferred, moved.replicas) == expected
    (elsewhere,) = with_leader(info, 0, 2, 5).partitions
    assert (elsewhere.preferred, elsewhere.replicas) == (1, replicas), "it was not its order that moved it"


def test_what_was_read_before_a_move_does_not_undo_it() -> None:
    known = with_leader(topic((1, 4), (1, 4)), 1, 2, 5)
    found = without_older(topic((3, 6), (1, 4), (1, 1)), known)
    assert [(each.leader, each.leader_epoch) for each in found.partitions] == [(3, 6), (2, 5), (1, 1)]


def test_what_is_as_new_is_taken() -> None:
    found = topic((3, 5), (2, 5))
    assert without_older(found, topic((1, 5), (2, 5))) is found
