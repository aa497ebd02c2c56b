"""A member of a streams group: its client and process, its member epoch, and the tasks that it holds (KIP-1071)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from anabranch.broker.kafka.groups.modern.member import ModernMember
from anabranch.broker.kafka.groups.streams.requests import Endpoint
from anabranch.broker.kafka.groups.streams.tasks import NO_HELD, HeldTasks


class MemberState(IntEnum):
    """Progress of a member towards its target; the numbers are those of Kafka's records."""

    STABLE = 1
    UNREVOKED = 2
    """It must revoke tasks first, and report that it has."""
    UNRELEASED = 3
    """Other members still hold tasks of its target."""
    UNKNOWN = 127
    """Recorded by a newer version. The member must rejoin."""


@dataclass(frozen=True, slots=True)
class StreamsMember(ModernMember):
    """A member, which is one thread of a process of the application."""

    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    state: MemberState = MemberState.STABLE
    assigned: HeldTasks = NO_HELD
    revoking: HeldTasks = NO_HELD
    """Tasks that it must revoke, and holds until it reports that it no longer owns them."""

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return whether it has exactly its target assignment."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def with_tasks(
        self, epoch: int, state: MemberState, assigned: HeldTasks, revoking: HeldTasks = NO_HELD
    ) -> "StreamsMember":
        """Return the member with this epoch, state and tasks."""
        return replace(self, epoch=epoch, previous_epoch=self.epoch, state=state, assigned=assigned, revoking=revoking)
