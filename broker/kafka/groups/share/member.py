"""A member of a share group: its subscription, its member epoch, and the partitions that it shares (KIP-932)."""

from dataclasses import dataclass, replace
from typing import Final

from anabranch.broker.kafka.groups.modern.member import ModernMember
from anabranch.broker.kafka.groups.modern.topic_image import NO_PARTITIONS, Partitions

STABLE: Final = 0
"""State of all members in Kafka's records: a member of a share group has nothing to revoke first."""


@dataclass(frozen=True, slots=True)
class ShareMember(ModernMember):
    """A member with its subscription and its assignment."""

    topic_names: tuple[str, ...] = ()
    """Topic names it is subscribed to, sorted."""
    assigned: Partitions = NO_PARTITIONS

    def with_assignment(self, epoch: int, assigned: Partitions) -> "ShareMember":
        """Return the member with this epoch and assignment."""
        previous_epoch = self.previous_epoch if epoch == self.epoch else self.epoch
        return replace(self, epoch=epoch, previous_epoch=previous_epoch, assigned=assigned)
