"""What goes into the group state machine and what comes out of it: plain values, no behaviour.

A *ticket* is whatever the caller wants a late answer to be handed back with; the machine never looks inside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import ErrorCode

NEVER_MS = 1 << 62
"""A deadline that is not set."""


class Now(NamedTuple):
    """The time, twice: deadlines are on the loop's clock, which never jumps; what is stored is on the wall's."""

    loop_ms: int
    wall_ms: int


class MemberProtocol(NamedTuple):
    """One of the assignment strategies a member offers, with its subscription in that strategy's format."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request."""

    ticket: object
    member_id: str
    fresh_member_id: str
    """Id to hand out if the member has none."""
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[MemberProtocol]
    member_id_required: bool
    """From version 4 on, a member learns its id before it joins (KIP-394)."""
    can_skip_assignment: bool
    """From version 9 on, a returning static leader may be told that nothing needs assigning (KIP-814)."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request; only the leader's carries assignments."""

    ticket: object
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    """One member of a LeaveGroup request. An administrator names a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader learns about each member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """Answer to a Join."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[JoinedMember] = ()


@dataclass(frozen=True, slots=True)
class SyncResponse:
    """Answer to a Sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
