"""Reconciliation: the step of a member from its current assignment towards its target assignment (KIP-848).

Partitions move in three steps: the response to a member lacks them, the member reports that it no longer owns them,
and only then are they assigned to others.

Invariant: a partition is assigned to a member only when no other member holds it.
"""

from collections.abc import Callable

from anabranch.broker.kafka.groups.consumer.member import ConsumerMember, MemberState, PartitionEpochs
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:
    """Return the member after its next step towards its target assignment; the same object if there is none.

    `owned` are the partitions that the member has reported, None if it has reported none: then it still owns those
    that it must revoke. `is_free` returns True for a partition that no other member holds.
    """
    if member.is_reconciled(target_epoch) and member.assigned.keys() <= target:
        return member
    if member.state is MemberState.UNREVOKED and _owns_any(owned, member.revoking):
        return member
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition in target}
    revoking = {partition: epoch for partition, epoch in member.assigned.items() if partition not in target}
    if revoking and _owns_any(owned, revoking):
        return member.with_assignment(member.epoch, MemberState.UNREVOKED, kept, revoking)
    missing = target - kept.keys()
    free = [partition for partition in missing if is_free(partition)]
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    if state is member.state and target_epoch == member.epoch and not free and not revoking:
        return member
    assigned = kept | dict.fromkeys(sorted(free), target_epoch)
    return member.with_assignment(target_epoch, state, assigned, {})


def _owns_any(owned: Partitions | None, partitions: PartitionEpochs) -> bool:
    return owned is None or not owned.isdisjoint(partitions)
