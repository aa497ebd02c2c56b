"""Nodes are judged by their beats."""

from collections.abc import Mapping

import pytest

from anabranch.broker.node.peers.liveness import DEAD_AFTER_S, LISTED_FOR_S, RECONNECTION_S, Liveness, Silence
from anabranch.broker.node.peers.members import Member, Members
from anabranch.s3stream.catalog.values import NodeBeat, NodeListener

OWN, OTHER = 1, 2


def beats(number: int, *, epoch: int = 1, has_lease: bool = True, own: int = 0) -> Mapping[int, NodeBeat]:
    """The beats of this node and another one."""
    return {OWN: NodeBeat(1, own, has_lease=True), OTHER: NodeBeat(epoch, number, has_lease=has_lease)}


def lives(liveness: Liveness) -> bool:
    """The judgement of the other node; this one always lives."""
    living = liveness.living()
    assert OWN in living
    return OTHER in living


@pytest.fixture
def seen_beating() -> Liveness:
    """The other node's beat has changed to 2 at the time 0.5."""
    liveness = Liveness(OWN)
    liveness.observe(beats(1), 0.0)
    assert not lives(liveness), "it may have died long ago"
    liveness.observe(beats(2), 0.5)
    assert lives(liveness)
    return liveness


def watch(liveness: Liveness, begin_s: float, end_s: float, number: int) -> None:
    """Observe the same beat every half a second."""
    at_s = begin_s
    while at_s <= end_s:
        liveness.observe(beats(number), at_s)
        at_s += 0.5


def test_a_node_is_dead_when_its_beat_has_not_changed_for_long(seen_beating: Liveness) -> None:
    watch(seen_beating, 1.0, DEAD_AFTER_S, 2)
    assert lives(seen_beating)
    seen_beating.observe(beats(2), 0.5 + DEAD_AFTER_S)
    assert not lives(seen_beating)
    seen_beating.observe(beats(3), 10.0)
    assert lives(seen_beating), "it was only paused"


def test_after_a_pause_of_the_observer_nobodys_silence_counts(seen_beating: Liveness) -> None:
    seen_beating.observe(beats(2), 100.0)
    assert lives(seen_beating)
    watch(seen_beating, 100.5, 99.5 + RECONNECTION_S + DEAD_AFTER_S, 2)
    assert lives(seen_beating)
    seen_beating.observe(beats(2), 100.0 + RECONNECTION_S + DEAD_AFTER_S)
    assert not lives(seen_beating)


def test_after_a_short_pause_silence_counts_from_its_end(seen_beating: Liveness) -> None:
    watch(seen_beating, 1.0, 2.0, 2)
    watch(seen_beating, 4.0, 3.5 + DEAD_AFTER_S, 2)
    assert lives(seen_beating)
    seen_beating.observe(beats(2), 4.0 + DEAD_AFTER_S)
    assert not lives(seen_beating)


def test_a_pause_of_the_observer_brings_no_dead_node_back(seen_beating: Liveness) -> None:
    watch(seen_beating, 1.0, 0.5 + DEAD_AFTER_S, 2)
    assert not lives(seen_beating)
    seen_beating.observe(beats(2), 100.0)
    assert not lives(seen_beating)


def test_a_node_that_starts_again_or_stops_is_known_at_once(seen_beating: Liveness) -> None:
    seen_beating.observe(beats(2, has_lease=False), 1.0)
    assert not lives(seen_beating)
    seen_beating.observe(beats(0, epoch=2), 1.5)
    assert lives(seen_beating)


def test_silence_counts_from_the_last_change_while_the_observation_is_unbroken(seen_beating: Liveness) -> None:
    watch(seen_beating, 1.0, 2.0, 2)
    assert seen_beating.silent() == {OTHER: Silence(NodeBeat(1, 2, has_lease=True), 1.5, was_alive=True)}
    seen_beating.observe(beats(2), 100.0)
    assert seen_beating.silent()[OTHER].seconds == 0.0, "it was this node that was away"
    seen_beating.observe(beats(3), 100.5)
    assert seen_beating.silent()[OTHER].seconds == 0.0


def test_a_node_that_was_never_seen_alive_may_be_one_that_beats_slowly() -> None:
    liveness = Liveness(OWN)
    watch(liveness, 0.0, 5.0, 1)
    assert liveness.silent() == {OTHER: Silence(NodeBeat(1, 1, has_lease=True), 5.0, was_alive=False)}


@pytest.mark.parametrize(
    ("beat", "was_alive", "expected_s"),
    [
        (NodeBeat(1, 1, has_lease=True, due_ms=10_000), True, DEAD_AFTER_S),  # it knows that it is watched
        (NodeBeat(1, 1, has_lease=True, due_ms=10_000), False, 30.0),
        (NodeBeat(1, 1, has_lease=True, due_ms=500), False, DEAD_AFTER_S),
        (NodeBeat(1, 1, has_lease=True, due_ms=0), False, 40.0),  # nothing is known but its lease
        (NodeBeat(1, 1, has_lease=False, due_ms=10_000), False, DEAD_AFTER_S),
    ],
)
def test_only_a_node_that_may_beat_slowly_is_given_more_time(
    beat: NodeBeat, *, was_alive: bool, expected_s: float
) -> None:
    assert Silence(beat, 0.0, was_alive=was_alive).patience_s(40_000) == expected_s


def test_a_node_that_is_removed_is_forgotten(seen_beating: Liveness) -> None:
    seen_beating.observe({OWN: NodeBeat(1, 3, has_lease=True)}, 1.0)
    assert not lives(seen_beating)
    assert seen_beating.silent() == {}


def test_a_node_that_registers_while_others_are_watched_lives_at_once() -> None:
    liveness = Liveness(OWN)
    liveness.observe({OWN: NodeBeat(1, 3, has_lease=True)}, 0.0)
    liveness.observe(beats(1), 10.0)  # a node that was alone beats so seldom
    assert lives(liveness), "clients of this node can go to the new one as soon as it serves"
    assert not liveness.silent()[OTHER].was_alive, "it may still beat slowly"
    watch(liveness, 10.5, 10.0 + DEAD_AFTER_S, 1)
    assert not lives(liveness)


def test_a_node_that_registered_and_stopped_between_two_observations_does_not_live() -> None:
    liveness = Liveness(OWN)
    liveness.observe({OWN: NodeBeat(1, 3, has_lease=True)}, 0.0)
    liveness.observe(beats(1, has_lease=False), 0.5)
    assert not lives(liveness)


def test_a_node_that_died_or_stopped_is_listed_for_a_while(seen_beating: Liveness) -> None:
    watch(seen_beating, 1.0, DEAD_AFTER_S + 1, 2)
    assert not lives(seen_beating)
    assert seen_beating.listed() == {OWN, OTHER}
    seen_beating.observe(beats(0, epoch=2, has_lease=False), 5.0)  # it is taken over, which is no sign of its life
    assert seen_beating.listed() == {OWN, OTHER}
    at_s = 5.0
    while at_s < LISTED_FOR_S:
        at_s += 0.5
        assert seen_beating.listed() == {OWN, OTHER}
        seen_beating.observe(beats(0, epoch=2, has_lease=False), at_s)
    seen_beating.observe(beats(0, epoch=2, has_lease=False), 0.5 + LISTED_FOR_S)
    assert seen_beating.listed() == {OWN}
    seen_beating.observe(beats(1, epoch=3), 10.0)
    assert seen_beating.listed() == {OWN, OTHER}, "it is back"


def test_a_node_that_was_never_seen_alive_is_not_listed() -> None:
    liveness = Liveness(OWN)
    watch(liveness, 0.0, 2.0, 1)
    assert liveness.listed() == {OWN}


# members


def member(node_id: int, *, port: int = 9092) -> Member:
    return Member(node_id, 1, (NodeListener("PLAINTEXT", "h", port),))


def test_this_node_is_always_a_member_and_the_lowest_id_is_the_controller() -> None:
    members = Members(member(3))
    assert (members.living(), members.controller_id, members.version) == ([member(3)], 3, 0)
    members.update([member(7), member(2)])
    assert [each.node_id for each in members.living()] == [2, 3, 7]
    assert (members.controller_id, members.version) == (2, 1)
    members.update([member(2), member(7)])
    assert members.version == 1, "nothing has changed"
    members.update([member(7, port=1)])
    assert (members.get(7), members.get(2), members.version) == (member(7, port=1), None, 2)
    members.update([member(3, port=5)])
    assert members.own == members.get(3) == member(3)


def test_clients_are_told_of_nodes_that_died_lately_but_these_are_no_members() -> None:
    members = Members(member(3))
    members.update([member(7)], died_lately=[member(2)])
    assert members.listed() == [member(2), member(3), member(7)]
    assert (members.living(), members.controller_id) == ([member(3), member(7)], 3)
    assert [members.is_listed(node_id) for node_id in (2, 4)] == [True, False]
    members.update([member(7)])
    assert members.listed() == [member(3), member(7)]
