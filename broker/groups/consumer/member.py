"""A member of a consumer group: its subscription, its member epoch, and the partitions assigned to it (KIP-848)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from broker.groups.consumer.heartbeat import LEAVE_STATIC_EPOCH
from broker.groups.consumer.topic_image import TopicIdPartition
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

    def with_assignment(
        self, epoch: int, state: MemberState, assigned: PartitionEpochs, revoking: PartitionEpochs
    ) -> "ConsumerMember":
        """Return the member a step further."""
        previous_epoch = self.previous_epoch if epoch == self.epoch else self.epoch
        return replace(
            self, epoch=epoch, previous_epoch=previous_epoch, state=state, assigned=assigned, revoking=revoking
        )
