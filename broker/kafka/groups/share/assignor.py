"""The server-side assignor of share groups, `simple`: a pure function with Apache Kafka's semantics.

Several members may share a partition. With P partitions and M members, each partition is wanted by ceil(M / P) members,
and members get an equal number of partitions, or one more. Where members subscribe to different topics, this holds for
each topic on its own. The assignment is sticky: a member keeps the part of its former target that fits.

Invariant: each partition of a subscribed topic is assigned to at least one member.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition

SIMPLE: Final = "simple"


class ShareMemberSpec(NamedTuple):
    """A member as the assignor sees it: ids of the topics that it is subscribed to, and its former target."""

    member_id: str
    topic_ids: frozenset[bytes]
    target: Partitions = frozenset()


def assign_simple(
    members: Sequence[ShareMemberSpec], assignable: Mapping[bytes, Collection[int]]
) -> dict[str, Partitions]:
    """Return the partitions of each member. `assignable` has the partitions that may be assigned, by topic id."""
    assigned: dict[str, set[TopicIdPartition]] = {member.member_id: set() for member in members}
    if members and all(member.topic_ids == members[0].topic_ids for member in members):
        _balance(members, _partitions(members[0].topic_ids, assignable), assigned)
    else:
        for topic_id in sorted(frozenset().union(*(member.topic_ids for member in members))):
            subscribed = [member for member in members if topic_id in member.topic_ids]
            _balance(subscribed, _partitions((topic_id,), assignable), assigned)
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _partitions(topic_ids: Iterable[bytes], assignable: Mapping[bytes, Collection[int]]) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic_id, index)
        for topic_id in sorted(topic_ids)
        for index in sorted(assignable.get(topic_id, ()))
    ]


def _balance(
    members: Sequence[ShareMemberSpec],
    partitions: Sequence[TopicIdPartition],
    assigned: dict[str, set[TopicIdPartition]],
) -> None:
    """Assign these partitions to members that are all subscribed to them."""
    if not partitions:
        return
    sharing = -(-len(members) // len(partitions))
    existing = frozenset(partitions)
    former = {member.member_id: sorted(member.target & existing) for member in members}
    # Members with the most partitions get the extra ones, so that fewer partitions move.
    ordered = sorted(former, key=lambda member_id: (-len(former[member_id]), member_id))
    quotas = dict(zip(ordered, _quotas(len(members), sharing * len(partitions)), strict=True))
    shares: dict[TopicIdPartition, int] = defaultdict(int)
    own: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in ordered}
    for member_id in ordered:
        # The least shared first, so that what is dropped beyond the quota is dropped where others have it.
        for partition in sorted(former[member_id], key=lambda partition: (shares[partition], partition)):
            if len(own[member_id]) < quotas[member_id] and shares[partition] < sharing:
                own[member_id].add(partition)
                shares[partition] += 1
    heap = [(shares[partition], partition) for partition in partitions if shares[partition] < sharing]
    heap.sort()
    for member_id in ordered:
        _fill(own[member_id], quotas[member_id], heap, sharing)
        assigned[member_id] |= own[member_id]


def _quotas(members: int, total: int) -> Iterable[int]:
    """Distribute a total over members: equal numbers, the larger ones first."""
    each, extra = divmod(total, members)
    return (each + (place < extra) for place in range(members))


def _fill(own: set[TopicIdPartition], quota: int, heap: list[tuple[int, TopicIdPartition]], sharing: int) -> None:
    """Give a member the partitions that fewest members share, as far as it has room."""
    passed = []
    while heap and len(own) < quota:
        shares, partition = heappop(heap)
        if partition in own:
            passed.append((shares, partition))
            continue
        own.add(partition)
        if shares + 1 < sharing:
            passed.append((shares + 1, partition))
    for entry in passed:
        heappush(heap, entry)
