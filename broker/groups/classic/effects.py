"""Effects of the state machine of classic groups: responses to send and snapshots to store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from broker.groups.classic.snapshot import GroupSnapshot
from broker.groups.requests import JoinResponse, SyncResponse


@dataclass(frozen=True, slots=True)
class Respond:
    """Hand `answer` to whoever holds `ticket`."""

    ticket: object
    answer: JoinResponse | SyncResponse


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The leader's assignment for `generation` is durable, or could not be made so."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReplacementStored:
    """A static member's new id is durable, or could not be made so."""

    ticket: object
    member_id: str
    leader_before: str
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Store `snapshot`; when that is durable or has failed, give `then` (unless None) to `ClassicGroup.written`."""

    snapshot: GroupSnapshot
    then: AssignmentStored | ReplacementStored | None


Effect: TypeAlias = Respond | StoreSnapshot
