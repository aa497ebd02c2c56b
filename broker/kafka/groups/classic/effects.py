"""Effects of the state machine of classic groups: responses to send and snapshots to store."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot
from anabranch.broker.kafka.groups.requests import JoinResponse, SyncResponse


@dataclass(frozen=True, slots=True)
class Respond:
    """Send `response` to the request that `ticket` identifies."""

    ticket: object
    response: JoinResponse | SyncResponse


@dataclass(frozen=True, slots=True)
class AssignmentStored:
    """The leader's assignment for a generation has been stored, or could not be."""

    generation: int
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReplacementStored:
    """A static member's new id has been stored, or could not be."""

    ticket: object
    member_id: str
    leader_before: str
    can_skip_assignment: bool


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """Write `snapshot` to the log. When that is durable or has failed, call `snapshot_stored` with `then`, if given."""

    snapshot: GroupSnapshot
    then: AssignmentStored | ReplacementStored | None


Effect: TypeAlias = Respond | StoreSnapshot
