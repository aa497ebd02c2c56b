"""The server-side assignors of consumer groups, `uniform` and `range`: pure functions with Apache Kafka's semantics.

Both assign each partition of the subscribed topics to exactly one member.

uniform
    Balanced and sticky. If all members have the same subscription, each gets an equal quota; where the number of
    partitions does not divide evenly, the members with the most partitions get one more. Each member keeps the part of
    its former target that fits its quota, and the other partitions go to members below their quota. If subscriptions
    differ, a partition goes to the subscribed member with the fewest partitions, and partitions are moved from members
    with more to members with fewer as long as that improves the balance. range Topic by topic, contiguous ranges of
    partitions in the order of members: equal subscriptions to equally partitioned topics are co-partitioned, so that
    one member receives all records with the same key. Not sticky.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition

UNIFORM = "uniform"
RANGE = "range"


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member as assignors see it: ids of the topics that it is subscribed to, and its former target assignment."""

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[bytes]
    target: Partitions = frozenset()


Assignor = Callable[[Sequence[MemberSpec], Mapping[bytes, int]], dict[str, Partitions]]
"""Function from members, and the number of partitions by topic id, to partitions by member id.

A topic without a number of partitions does not exist.
"""


def assign_range(members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Assign contiguous ranges, topic by topic. Static members come first, so that restarts change nothing."""
    ordered = sorted(members, key=_range_order)
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    for member in ordered:
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(member.member_id)
    found: dict[str, list[TopicIdPartition]] = {member.member_id: [] for member in members}
    for topic_id, member_ids in subscribers.items():
        quota, extra = divmod(partition_counts.get(topic_id, 0), len(member_ids))
        start = 0
        for index, member_id in enumerate(member_ids):
            end = start + quota + (index < extra)
            found[member_id] += (TopicIdPartition(topic_id, partition) for partition in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in found.items()}


def _range_order(member: MemberSpec) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member.member_id


def assign_uniform(members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    """Balance the number of partitions and move as few of them as possible."""
    if not members:
        return {}
    if all(member.topic_ids == members[0].topic_ids for member in members):
        return _uniform_same(members, partition_counts)
    return _uniform_different(members, partition_counts)


def _all_partitions(topic_ids: frozenset[bytes], partition_counts: Mapping[bytes, int]) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic_id, partition)
        for topic_id in sorted(topic_ids)
        for partition in range(partition_counts.get(topic_id, 0))
    ]


def _uniform_same(members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    partitions = _all_partitions(members[0].topic_ids, partition_counts)
    existing = frozenset(partitions)
    quota, extra = divmod(len(partitions), len(members))
    kept: dict[str, list[TopicIdPartition]] = {}
    taken: set[TopicIdPartition] = set()
    # Members with the most partitions get the extra ones, so that fewer partitions move.
    ordered = sorted(members, key=lambda member: (-len(member.target & existing), member.member_id))
    quotas = {member.member_id: quota + (index < extra) for index, member in enumerate(ordered)}
    for member in ordered:
        former = sorted(member.target & existing - taken)[: quotas[member.member_id]]
        kept[member.member_id] = former
        taken.update(former)
    rest = iter([partition for partition in partitions if partition not in taken])
    for member_id, own in kept.items():
        own.extend(partition for _, partition in zip(range(quotas[member_id] - len(own)), rest, strict=False))
    return {member_id: frozenset(own) for member_id, own in kept.items()}


def _uniform_different(members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]) -> dict[str, Partitions]:
    subscribers: dict[bytes, list[str]] = defaultdict(list)
    owners: dict[TopicIdPartition, str] = {}
    loads: dict[str, int] = {}
    for member in sorted(members, key=lambda member: member.member_id):
        loads[member.member_id] = 0
        for topic_id in member.topic_ids:
            subscribers[topic_id].append(member.member_id)
    partitions = _all_partitions(frozenset(subscribers), partition_counts)
    existing = frozenset(partitions)
    for member in members:
        for partition in member.target & existing:
            if partition.topic_id in member.topic_ids and partition not in owners:
                owners[partition] = member.member_id
                loads[member.member_id] += 1
    # Topics with few subscribers come first: those with many can correct the imbalance that these leave.
    partitions.sort(key=lambda partition: (len(subscribers[partition.topic_id]), partition))
    for partition in partitions:
        if partition not in owners:
            owner = min(subscribers[partition.topic_id], key=loads.__getitem__)
            owners[partition] = owner
            loads[owner] += 1
    _rebalance_loads(partitions, owners, loads, subscribers)
    found: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    for partition, owner in owners.items():
        found[owner].add(partition)
    return {member_id: frozenset(own) for member_id, own in found.items()}


def _rebalance_loads(
    partitions: Sequence[TopicIdPartition],
    owners: dict[TopicIdPartition, str],
    loads: dict[str, int],
    subscribers: Mapping[bytes, Sequence[str]],
) -> None:
    """Move partitions from members with more to members with fewer.

    The loop ends, because each move lowers the sum of the squares of the loads.
    """
    moved = True
    while moved:
        moved = False
        for partition in partitions:
            owner = owners[partition]
            emptiest = min(subscribers[partition.topic_id], key=loads.__getitem__)
            if loads[owner] > loads[emptiest] + 1:
                owners[partition] = emptiest
                loads[owner] -= 1
                loads[emptiest] += 1
                moved = True


ASSIGNORS: Mapping[str, Assignor] = MappingProxyType({UNIFORM: assign_uniform, RANGE: assign_range})
"""Assignors by name. The first is the default."""
