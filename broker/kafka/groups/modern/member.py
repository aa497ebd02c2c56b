"""Members as all modern groups have them: who they are, and the member epoch that they have reached."""

from dataclasses import dataclass
from typing import Final

LEAVE_EPOCH: Final = -1
"""Member epoch in the heartbeat of a member that leaves."""
LEAVE_STATIC_EPOCH: Final = -2
"""Member epoch in the heartbeat of a static member that leaves temporarily: what it has stays assigned to it."""


@dataclass(frozen=True, slots=True)
class ModernMember:
    """A member of any kind of modern group."""

    member_id: str
    instance_id: str | None = None
    """Group instance id of a static member. Share groups have none."""
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    """Time in which it must do what a rebalance asks of it. Share groups have none."""
    epoch: int = 0
    previous_epoch: int = 0

    @property
    def has_left_temporarily(self) -> bool:
        """True for a static member that has left temporarily."""
        return self.epoch == LEAVE_STATIC_EPOCH
