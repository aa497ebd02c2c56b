"""Requests to groups: those of the classic protocol with their responses, and commits, which groups of all kinds check.

A *ticket* identifies a request whose response is sent later. State machines pass it on and do not look inside. To the
shard it is a function, which is called with the response or with a KafkaError and must not raise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.protocol.errors import ErrorCode

NEVER_MS = 1 << 62
"""A deadline that is not set."""
Answer = TypeVar("Answer")


class Now(NamedTuple):
    """The time on two clocks: a steady one, which never jumps, for deadlines, and the wall clock for stored times."""

    steady_ms: int
    wall_ms: int


class MemberProtocol(NamedTuple):
    """An assignment strategy that a member supports, with the member's subscription in that strategy's format."""

    name: str
    metadata: bytes


class GroupRequest(Generic[Answer]):
    """A request of a member. `Answer` is what is returned at once, None if the response is sent to the ticket."""

    __slots__ = ()
    group_type: ClassVar[str]
    """Type of the groups that the request is for."""


@dataclass(frozen=True, slots=True)
class JoinRequest(GroupRequest[None]):
    """A JoinGroup request."""

    group_type = "classic"
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
class SyncRequest(GroupRequest[None]):
    """A SyncGroup request; only the leader's carries assignments."""

    group_type = "classic"
    ticket: object
    member_id: str
    group_instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: Mapping[str, bytes]


@dataclass(slots=True)
class ClassicHeartbeat(GroupRequest[ErrorCode]):
    """A Heartbeat request."""

    group_type = "classic"
    member_id: str
    group_instance_id: str | None
    generation: int


class LeavingMember(NamedTuple):
    """A member of a LeaveGroup request. Administrators name a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None


@dataclass(slots=True)
class LeaveRequest(GroupRequest[Sequence[ErrorCode]]):
    """A LeaveGroup request; its answer has an error code for each member. Administrators may remove any member."""

    group_type = "classic"
    leavers: Sequence[LeavingMember]


@dataclass(slots=True)
class CommitRequest:
    """A commit of offsets, for a group to accept or refuse."""

    member_id: str
    group_instance_id: str | None
    generation: int
    """Generation of the member, or its epoch; -1 without a member."""
    partitions: Sequence[TopicPartition] = ()
    transactional: bool = False
    knows_member_epochs: bool = True
    """False for request versions without member epochs."""


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
