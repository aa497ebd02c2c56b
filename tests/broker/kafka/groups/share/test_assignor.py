"""The assignor of share groups: each partition has a member, members have equal shares, and keep what they have."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition
from anabranch.broker.kafka.groups.share.assignor import ShareMemberSpec, assign_simple

T, U = bytes(16), bytes([1]) * 16
BOTH = frozenset({T, U})


def members(count: int, topic_ids: frozenset[bytes] = BOTH) -> list[ShareMemberSpec]:
    return [ShareMemberSpec(f"m{number:04}", topic_ids) for number in range(count)]


def indexes(partitions: Partitions) -> list[tuple[int, int]]:
    return sorted((partition.topic_id[0], partition.partition) for partition in partitions)


def test_fewer_members_than_partitions_share_nothing() -> None:
    found = assign_simple(members(2), {T: range(3), U: range(2)})
    assert sorted(map(len, found.values())) == [2, 3]
    assert not found["m0000"] & found["m0001"]


def test_members_beyond_the_partitions_share_them() -> None:
    found = assign_simple(members(5), {T: range(2), U: ()})
    shares = Counter(partition for own in found.values() for partition in own)
    assert sorted(shares.values()) == [3, 3]
    assert min(map(len, found.values())) == 1, "nobody is idle"


def test_each_topic_is_shared_by_its_subscribers() -> None:
    found = assign_simple(
        [ShareMemberSpec("a", frozenset({T})), ShareMemberSpec("b", frozenset({U})), ShareMemberSpec("c", BOTH)],
        {T: range(2), U: range(2)},
    )
    assert [len(found["a"]), len(found["b"]), len(found["c"])] == [1, 1, 2]
    assert {each.topic_id for each in found["a"]} == {T}
    assert {each.topic_id for each in found["b"]} == {U}


def test_partitions_without_a_state_and_unknown_topics_are_not_assigned() -> None:
    assert assign_simple(members(1), {T: [1]})["m0000"] == {TopicIdPartition(T, 1)}
    assert assign_simple(members(2, frozenset()), {T: [1]}) == {"m0000": frozenset(), "m0001": frozenset()}
    assert assign_simple([], {T: [1]}) == {}


def test_a_member_that_joins_moves_as_little_as_balance_needs() -> None:
    before = assign_simple(members(3), {T: range(6)})
    specs = [ShareMemberSpec(spec.member_id, BOTH, before.get(spec.member_id, frozenset())) for spec in members(4)]
    after = assign_simple(specs, {T: range(6)})
    assert sorted(map(len, after.values())) == [1, 1, 2, 2]
    assert all(after[member_id] <= own for member_id, own in before.items())


subscriptions = st.sampled_from([frozenset({T}), frozenset({U}), BOTH, frozenset()])


@given(
    st.lists(subscriptions, min_size=1, max_size=12),
    st.integers(0, 6),
    st.integers(0, 6),
    st.dictionaries(st.integers(0, 11), st.frozensets(st.tuples(st.sampled_from([T, U]), st.integers(0, 8)))),
)
def test_each_assignment_covers_all_partitions_evenly_and_is_stable(
    subscribed: list[frozenset[bytes]], of_t: int, of_u: int, former: dict[int, frozenset[tuple[bytes, int]]]
) -> None:
    assignable = {T: range(of_t), U: range(of_u)}
    specs = [
        ShareMemberSpec(f"m{number}", ids, frozenset(TopicIdPartition(*each) for each in former.get(number, ())))
        for number, ids in enumerate(subscribed)
    ]
    found = assign_simple(specs, assignable)
    for topic_id, count in ((T, of_t), (U, of_u)):
        readers = [spec for spec in specs if topic_id in spec.topic_ids]
        shares = Counter(each.partition for own in found.values() for each in own if each.topic_id == topic_id)
        if readers:
            assert set(shares) == set(range(count)), "each partition is assigned"
            if count:
                assert max(shares.values()) <= -(-len(readers) // count)
        else:
            assert not shares
    assert all(each.topic_id in spec.topic_ids for spec in specs for each in found[spec.member_id])
    again = [ShareMemberSpec(spec.member_id, spec.topic_ids, found[spec.member_id]) for spec in specs]
    assert assign_simple(again, assignable) == found
