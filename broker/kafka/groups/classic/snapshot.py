"""The durable state of a classic group: the value of its record in `__consumer_offsets`."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """Durable state of a member."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """Metadata of the chosen protocol. Those of others are not needed until the member joins again."""
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """Durable state of a group, from which a generation can continue after a crash."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: Sequence[MemberSnapshot] = field(default_factory=tuple)
