"""The classic group protocol: its theory, its states and events, and the table of the action for each event and state.

Theory
------
A group agrees on two things: its members, and the assignment of work to members in the current *generation*. The broker
decides the first. One member, the *leader*, decides the second by a strategy that the broker knows only by name. A
rebalance makes a new generation in two phases. Each is a barrier: responses wait until all members have sent their
request, or until a timeout.

*join* (PreparingRebalance)
    Every member must send JoinGroup again. When all have, or when the rebalance timeout ends and the missing members
    have been removed, the generation number goes up, a protocol that all support is chosen by vote, and all JoinGroups
    get their response together. The leader's holds the list of members and their subscriptions. A group that was Empty
    waits for the initial delay instead, which new members extend, so that the consumers of an application that starts
    make one generation instead of one each.
*sync* (CompletingRebalance)
    Members send SyncGroup; the leader's holds the assignment. When the assignment is durable, all SyncGroups get their
    response and the group is Stable. So no crash loses an assignment that a member acts on.

    Empty --join--> PreparingRebalance --all joined--> CompletingRebalance --leader's assignment durable--> Stable
      ^                |          ^                          |                                               |
      +--all left------+          +-----member joins, leaves, changes its subscription, or is silent---------+
    Dead: deleted. Requests get COORDINATOR_NOT_AVAILABLE, and clients look for the coordinator again.

Each request names the member's generation. A past one is refused (ILLEGAL_GENERATION), which fences a consumer that
missed a rebalance. *Static members* (KIP-345) have a name that survives restarts, the group instance id. One that joins
again without a member id takes over its predecessor's place and assignment, and the predecessor, if it is still alive,
is fenced (FENCED_INSTANCE_ID). A member whose session deadline passes is removed; heartbeats, commits and responses
extend the session.

`TABLE` gives the action for each event in each state. `broker.kafka.groups.classic.machine` and
`broker.kafka.groups.classic.rebalance` carry the actions out. Behaviour follows Apache Kafka.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto

from anabranch.protocol.errors import ErrorCode


class ClassicGroupState(StrEnum):
    """States of a classic group, with the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(Enum):
    """Events of a group, after the checks that do not depend on its state."""

    NEW_MEMBER = auto()
    """JoinGroup of a client that is not a member yet."""
    REJOIN = auto()
    """JoinGroup of a member with the same protocols and subscription as before."""
    REJOIN_LEADER = auto()
    """The same from the leader: it asks for a new generation, for instance because partitions were added."""
    REJOIN_CHANGED = auto()
    """JoinGroup of a member with different protocols or a different subscription."""
    STATIC_RETURN = auto()
    """JoinGroup of a static member that has lost its member id."""
    SYNC = auto()
    HEARTBEAT = auto()
    COMMIT = auto()
    """OffsetCommit of a member."""
    MEMBER_GONE = auto()
    """A member has left, or its session has ended."""
    PENDING_GONE = auto()
    """A client that was given a member id has not joined with it in time."""
    DELETE = auto()
    DELETE_OFFSETS = auto()


class GroupAction(Enum):
    """Action of the group on an event."""

    REBALANCE = auto()
    """Begin the join phase."""
    JOIN = auto()
    """Take part in the join phase, and end it if no member is missing."""
    REPEAT = auto()
    """Repeat the last response, which the member has not received."""
    TAKE_OVER = auto()
    """Put the static member in its predecessor's place, without a rebalance if the vote stays as it is."""
    COLLECT = auto()
    """Hold the SyncGroup until the leader's assignment is durable."""
    ASSIGNMENT = auto()
    """Respond with the current assignment."""
    NOTHING = auto()


def _row(
    *,
    empty: GroupAction | ErrorCode,
    preparing: GroupAction | ErrorCode,
    completing: GroupAction | ErrorCode,
    stable: GroupAction | ErrorCode,
    dead: GroupAction | ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE,
) -> Mapping[ClassicGroupState, GroupAction | ErrorCode]:
    return {
        ClassicGroupState.EMPTY: empty,
        ClassicGroupState.PREPARING: preparing,
        ClassicGroupState.COMPLETING: completing,
        ClassicGroupState.STABLE: stable,
        ClassicGroupState.DEAD: dead,
    }


_UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
_REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
_NON_EMPTY = ErrorCode.NON_EMPTY_GROUP
_NO_GROUP = ErrorCode.GROUP_ID_NOT_FOUND

TABLE: Mapping[GroupEvent, Mapping[ClassicGroupState, GroupAction | ErrorCode]] = {
    GroupEvent.NEW_MEMBER: _row(
        empty=GroupAction.REBALANCE,
        preparing=GroupAction.JOIN,
        completing=GroupAction.REBALANCE,
        stable=GroupAction.REBALANCE,
    ),
    GroupEvent.REJOIN: _row(
        empty=_UNKNOWN, preparing=GroupAction.JOIN, completing=GroupAction.REPEAT, stable=GroupAction.REPEAT
    ),
    GroupEvent.REJOIN_LEADER: _row(
        empty=_UNKNOWN, preparing=GroupAction.JOIN, completing=GroupAction.REPEAT, stable=GroupAction.REBALANCE
    ),
    GroupEvent.REJOIN_CHANGED: _row(
        empty=_UNKNOWN, preparing=GroupAction.JOIN, completing=GroupAction.REBALANCE, stable=GroupAction.REBALANCE
    ),
    # While the leader computes an assignment it knows the old member id: the new one would get no partitions.
    GroupEvent.STATIC_RETURN: _row(
        empty=_UNKNOWN, preparing=GroupAction.JOIN, completing=GroupAction.REBALANCE, stable=GroupAction.TAKE_OVER
    ),
    GroupEvent.SYNC: _row(
        empty=_UNKNOWN, preparing=_REBALANCING, completing=GroupAction.COLLECT, stable=GroupAction.ASSIGNMENT
    ),
    # Heartbeats may come between the two phases: the member has its JoinGroup response and computes an assignment.
    GroupEvent.HEARTBEAT: _row(
        empty=_UNKNOWN, preparing=_REBALANCING, completing=GroupAction.NOTHING, stable=GroupAction.NOTHING
    ),
    GroupEvent.COMMIT: _row(
        empty=GroupAction.NOTHING, preparing=GroupAction.NOTHING, completing=_REBALANCING, stable=GroupAction.NOTHING
    ),
    GroupEvent.MEMBER_GONE: _row(
        empty=GroupAction.NOTHING,
        preparing=GroupAction.JOIN,
        completing=GroupAction.REBALANCE,
        stable=GroupAction.REBALANCE,
        dead=GroupAction.NOTHING,
    ),
    GroupEvent.PENDING_GONE: _row(
        empty=GroupAction.NOTHING,
        preparing=GroupAction.JOIN,
        completing=GroupAction.NOTHING,
        stable=GroupAction.NOTHING,
        dead=GroupAction.NOTHING,
    ),
    GroupEvent.DELETE: _row(
        empty=GroupAction.NOTHING, preparing=_NON_EMPTY, completing=_NON_EMPTY, stable=_NON_EMPTY, dead=_NO_GROUP
    ),
    # Consumers in the group are checked topic by topic; members of other protocol types may use any topic.
    GroupEvent.DELETE_OFFSETS: _row(
        empty=GroupAction.NOTHING, preparing=_NON_EMPTY, completing=_NON_EMPTY, stable=_NON_EMPTY, dead=_NO_GROUP
    ),
}
