"""The durable state of a classic group: the value of its record in `__consumer_offsets`."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """A member as it is stored."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """Metadata of the chosen protocol only: the others are not needed until the member joins again."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A group as it is stored: enough to continue a generation after a crash."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: Sequence[MemberSnapshot] = field(default_factory=tuple)
