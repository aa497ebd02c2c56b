"""The server-side assignors: every partition once, to a subscriber, balanced, and moved no more than needed."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from anabranch.broker.kafka.groups.consumer.assignors import ASSIGNORS, MemberSpec, assign_range, assign_uniform
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition

TOPIC_IDS = [letter * 16 for letter in (b"a", b"b", b"c")]
A, B, C = TOPIC_IDS


def parts(topic_id: bytes, *numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, number) for number in numbers)


def spec(
    member_id: str, *topic_ids: bytes, target: Partitions = frozenset(), instance: str | None = None
) -> MemberSpec:
    return MemberSpec(member_id, instance, frozenset(topic_ids), target)


def test_range_gives_contiguous_ranges_and_the_first_one_more() -> None:
    found = assign_range([spec("m2", A, B), spec("m1", A, B), spec("m3", A)], {A: 8, B: 3})
    assert found == {
        "m1": parts(A, 0, 1, 2) | parts(B, 0, 1),
        "m2": parts(A, 3, 4, 5) | parts(B, 2),
        "m3": parts(A, 6, 7),
    }


def test_range_puts_static_members_first_in_the_order_of_their_names() -> None:
    found = assign_range([spec("a", A), spec("z", A, instance="2"), spec("y", A, instance="1")], {A: 3})
    assert found == {"y": parts(A, 0), "z": parts(A, 1), "a": parts(A, 2)}


def test_range_leaves_members_without_when_there_are_too_few_partitions() -> None:
    assert assign_range([spec("a", A), spec("b", A)], {A: 1}) == {"a": parts(A, 0), "b": frozenset()}


def test_uniform_moves_only_what_balance_needs() -> None:
    former = {"m1": parts(A, 0, 1, 2), "m2": parts(A, 3, 4, 5)}
    found = assign_uniform([*(spec(name, A, target=had) for name, had in former.items()), spec("m0", A)], {A: 6})
    assert all(len(own) == 2 for own in found.values())
    assert all(found[name] < had for name, had in former.items())


def test_uniform_keeps_everything_when_it_is_balanced_already() -> None:
    former = {"m1": parts(A, 0, 5) | parts(B, 1), "m2": parts(A, 1, 2) | parts(B, 0), "m3": parts(A, 3, 4)}
    assert assign_uniform([spec(name, A, B, target=had) for name, had in former.items()], {A: 6, B: 2}) == former


def test_uniform_with_different_subscriptions_makes_up_for_what_only_some_can_take() -> None:
    found = assign_uniform([spec("m1", A), spec("m2", A, B), spec("m3", B)], {A: 2, B: 4})
    assert sorted(len(own) for own in found.values()) == [2, 2, 2]
    former = found
    grown = assign_uniform(
        [spec("m1", A, target=former["m1"]), spec("m2", A, B, target=former["m2"]), spec("m3", B, target=former["m3"])],
        {A: 2, B: 5},
    )
    assert all(former[name] <= own for name, own in grown.items())


@pytest.mark.parametrize("name", ASSIGNORS)
def test_nobody_and_nothing(name: str) -> None:
    assert ASSIGNORS[name]([], {A: 3}) == {}
    assert ASSIGNORS[name]([spec("m", A), spec("n")], {}) == {"m": frozenset(), "n": frozenset()}


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[MemberSpec], dict[bytes, int]]:
    counts = draw(st.dictionaries(st.sampled_from(TOPIC_IDS), st.integers(0, 9)))
    number = draw(st.integers(1, 6))
    same = draw(st.booleans())
    subscriptions = st.frozensets(st.sampled_from(TOPIC_IDS))
    shared = draw(subscriptions)
    # Former targets are those of other subscriptions and other partitions.
    old = assign_uniform([spec(f"m{n}", *draw(subscriptions)) for n in range(number)], dict.fromkeys(TOPIC_IDS, 6))
    members = [
        MemberSpec(
            f"m{n}",
            draw(st.sampled_from([None, f"i{n}"])),
            shared if same else draw(subscriptions),
            draw(st.sampled_from([old[f"m{n}"], frozenset()])),
        )
        for n in range(number)
    ]
    return members, counts


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_every_partition_goes_to_one_subscriber(name: str, group: tuple[list[MemberSpec], dict[bytes, int]]) -> None:
    members, counts = group
    found = ASSIGNORS[name](members, counts)
    assert found.keys() == {member.member_id for member in members}
    given_out = [partition for own in found.values() for partition in own]
    subscribed = frozenset[bytes]().union(*(member.topic_ids for member in members))
    assert sorted(given_out) == [
        TopicIdPartition(topic_id, index) for topic_id in sorted(subscribed) for index in range(counts.get(topic_id, 0))
    ]
    for member in members:
        assert {partition.topic_id for partition in found[member.member_id]} <= member.topic_ids


@given(groups())
def test_uniform_is_balanced_and_comes_to_rest(group: tuple[list[MemberSpec], dict[bytes, int]]) -> None:
    members, counts = group
    found = assign_uniform(members, counts)
    by_id = {member.member_id: member for member in members}
    for fuller, own in found.items():
        for emptier, theirs in found.items():
            if len(own) > len(theirs) + 1:
                assert not any(partition.topic_id in by_id[emptier].topic_ids for partition in own), (fuller, emptier)
    again = [MemberSpec(m.member_id, m.instance_id, m.topic_ids, found[m.member_id]) for m in members]
    assert assign_uniform(again, counts) == found


@given(groups())
def test_uniform_with_one_subscription_takes_from_nobody_what_fits_its_quota(
    group: tuple[list[MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    if any(member.topic_ids != members[0].topic_ids for member in members):
        return
    found = assign_uniform(members, counts)
    least = sum(counts.get(topic_id, 0) for topic_id in members[0].topic_ids) // len(members)
    for member in members:
        valid = {part for part in member.target if part.topic_id in member.topic_ids}
        valid = {part for part in valid if part.partition < counts.get(part.topic_id, 0)}
        assert len(valid & found[member.member_id]) >= min(len(valid), least)
