"""Requests of the classic protocol and their responses, for the state machines of classic and consumer groups.

A *ticket* identifies a request whose response is sent later. State machines pass it on and do not look inside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.protocol.errors import ErrorCode

NEVER_MS = 1 << 62
"""A deadline that is not set."""


class Now(NamedTuple):
    """The time on two clocks: the loop's, which never jumps, for deadlines, and the wall clock for stored times."""

    loop_ms: int
    wall_ms: int


class MemberProtocol(NamedTuple):
    """An assignment strategy that a member supports, with the member's subscription in that strategy's format."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request."""

    ticket: object
    member_id: str
    new_member_id: str
    """Id that a member without one gets."""
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Sequence[MemberProtocol]
    member_id_required: bool
    """True from version 4 on: a member without an id gets one, and must join again with it (KIP-394)."""
    can_skip_assignment: bool
    """True from version 9 on: a returning static leader may be asked to skip the assignment (KIP-814)."""


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
    """A member of a LeaveGroup request. Administrators name a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the JoinGroup response describes it to the leader."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResponse:
    """Response to a JoinRequest."""

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
    """Response to a SyncRequest."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""
