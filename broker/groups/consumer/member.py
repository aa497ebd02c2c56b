"""A member of a consumer group, and its next step towards its target assignment (KIP-848).

`reconcile` is the heart of the protocol: a pure function from what a member has, shall have and says to own, to what it
has next. It keeps true that a partition is handed to a member only when nobody else holds it: first those who must give
something up do so and say so, then the partitions are free, then they are assigned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from broker.groups.consumer.heartbeat import LEAVE_STATIC_EPOCH
from broker.groups.consumer.topic_image import Partitions, TopicIdPartition
from broker.groups.requests import MemberProtocol

PartitionEpochs = Mapping[TopicIdPartition, int]
"""Partitions, each with the epoch in which it was assigned (KIP-1251)."""


class MemberState(IntEnum):
    """Where a member is on its way to its target; the numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED = 1
    """It must give up partitions first, and say so."""
    UNRELEASED = 2
    """Partitions of its target are still with other members."""


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """What a member that speaks the classic protocol brings besides."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """Those it offers, the first of which is used; not empty."""


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member: who it is, what it wants, and what it has."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] = ()
    """Sorted."""
    topic_regex: str = ""
    """Empty for none, as in the records."""
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    revoking: PartitionEpochs = field(default_factory=dict)
    """Taken from it, and held until it says that it has let go."""
    classic: ClassicMemberMetadata | None = None
    """Of a member that speaks the classic protocol."""

    @property
    def held(self) -> set[TopicIdPartition]:
        """Everything that nobody else may be given."""
        return self.assigned.keys() | self.revoking.keys()

    @property
    def has_left_temporarily(self) -> bool:
        """Whether it is a static member that is expected back."""
        return self.epoch == LEAVE_STATIC_EPOCH

    def is_reconciled(self, target_epoch: int) -> bool:
        """Whether it has exactly what it shall have."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def at(
        self, epoch: int, state: MemberState, assigned: PartitionEpochs, revoking: PartitionEpochs
    ) -> "ConsumerMember":
        """Return the member a step further."""
        previous_epoch = self.previous_epoch if epoch == self.epoch else self.epoch
        return replace(
            self, epoch=epoch, previous_epoch=previous_epoch, state=state, assigned=assigned, revoking=revoking
        )


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[TopicIdPartition], bool],
) -> ConsumerMember:
    """Take the member as far towards its target as what it owns and what others hold allow.

    `owned` is what the member has reported, None if nothing: then it still owns what it must give up. `is_free` tells
    whether a partition is held by nobody else.
    """
    if member.is_reconciled(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED and _owns_any(owned, member.revoking):
        return member
    kept = {partition: epoch for partition, epoch in member.assigned.items() if partition in target}
    revoking = {partition: epoch for partition, epoch in member.assigned.items() if partition not in target}
    if revoking and _owns_any(owned, revoking):
        return member.at(member.epoch, MemberState.UNREVOKED, kept, revoking)
    missing = target - kept.keys()
    free = [partition for partition in missing if is_free(partition)]
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    if state is member.state and target_epoch == member.epoch and not free and not revoking:
        return member
    assigned = kept | dict.fromkeys(sorted(free), target_epoch)
    return member.at(target_epoch, state, assigned, {})


def _owns_any(owned: Partitions | None, partitions: PartitionEpochs) -> bool:
    return owned is None or not owned.isdisjoint(partitions)
