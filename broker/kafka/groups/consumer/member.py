"""A member of a consumer group: its subscription, its member epoch, and the partitions assigned to it (KIP-848)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from anabranch.broker.kafka.groups.modern.member import ModernMember
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.requests import MemberProtocol

PartitionEpochs = Mapping[TopicIdPartition, int]
"""Partitions, each with the epoch in which it was assigned (KIP-1251)."""


class MemberState(IntEnum):
    """Progress of a member towards its target assignment; the numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED = 1
    """It must revoke partitions first, and report that it has."""
    UNRELEASED = 2
    """Other members still hold partitions of its target."""


@dataclass(frozen=True, slots=True)
class ClassicMemberMetadata:
    """Additional fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    """Protocols that the member supports, not empty. The first is used."""


@dataclass(frozen=True, slots=True)
class ConsumerMember(ModernMember):
    """A member with its subscription and its assignment."""

    topic_names: tuple[str, ...] = ()
    """Topic names it is subscribed to, sorted."""
    topic_regex: str = ""
    """Pattern of topic names; empty if there is none, as in the records."""
    assignor: str | None = None
    state: MemberState = MemberState.STABLE
    assigned: PartitionEpochs = field(default_factory=dict)
    revoking: PartitionEpochs = field(default_factory=dict)
    """Partitions that it must revoke, and holds until it reports that it no longer owns them."""
    classic: ClassicMemberMetadata | None = None
    """Set for a member that uses the classic protocol."""

    @property
    def held(self) -> set[TopicIdPartition]:
        """Partitions that no other member may be assigned."""
        return self.assigned.keys() | self.revoking.keys()

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return whether it has exactly its target assignment."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def with_assignment(
        self, epoch: int, state: MemberState, assigned: PartitionEpochs, revoking: PartitionEpochs
    ) -> "ConsumerMember":
        """Return the member with this epoch, state and assignment."""
        previous_epoch = self.previous_epoch if epoch == self.epoch else self.epoch
        return replace(
            self, epoch=epoch, previous_epoch=previous_epoch, state=state, assigned=assigned, revoking=revoking
        )
