"""What goes into the group state machine and what comes out of it: plain values, no behaviour.

A *ticket* is whatever the caller wants a late answer to be handed back with; the machine never looks inside.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from protocol.errors import ErrorCode


class Now(NamedTuple):
    """The time, twice: deadlines are on the loop's clock, which never jumps; what is stored is on the wall's."""

    loop_ms: int
    wall_ms: int


class MemberProtocol(NamedTuple):
    """One of the assignment strategies a member offers, with its subscription in that strategy's format."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Join:
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
class Sync:
    """A SyncGroup request; only the leader's carries assignments."""

    ticket: object
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


class Leaver(NamedTuple):
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
class JoinAnswer:
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
class SyncAnswer:
    """Answer to a Sync."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """Hand `answer` to whoever holds `ticket`."""

    ticket: object
    answer: JoinAnswer | SyncAnswer


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


@dataclass(frozen=True, slots=True)
class AssignmentWritten:
    """The leader's assignment for `generation` is durable, or could not be made so."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReplacementWritten:
    """A static member's new id is durable, or could not be made so."""

    ticket: object
    member_id: str
    leader_before: str
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class Write:
    """Store `snapshot`; when that is durable or has failed, give `then` (unless None) to `ClassicGroup.written`."""

    snapshot: GroupSnapshot
    then: AssignmentWritten | ReplacementWritten | None


Effect: TypeAlias = Reply | Write
