"""The theory of the classic group protocol, its states and events, and the table of what each event does in each state.

Theory
------
A group agrees on two things: who its members are, and which member does what in the current *generation*. The broker
decides the first; one member, the *leader*, decides the second with a strategy the broker knows only by name. A
generation is made in two phases, each a barrier that holds back answers until everybody is there or time is up:

*join* (PreparingRebalance)
    Every member must send JoinGroup again. When all have, or when the rebalance timeout ends and those missing have
    been dropped, the generation number goes up, a protocol that all support is chosen by vote, and all waiting
    JoinGroups are answered at once: the leader's with the list of members and their subscriptions. A group that was
    Empty waits for the initial delay instead, extended while members keep coming, so that the consumers of an
    application starting up make one generation and not one each.
*sync* (CompletingRebalance)
    Members send SyncGroup; the leader's brings the assignment. Only when that is durable are all waiting SyncGroups
    answered, and the group is Stable: an assignment that a member acts on is never forgotten by a crash.

    Empty --join--> PreparingRebalance --all joined--> CompletingRebalance --leader's assignment durable--> Stable
      ^                |          ^                          |                                               |
      +--all left------+          +-----member joins, leaves, changes its subscription, or is silent---------+
    Dead: deleted; whoever still holds the group object is told to look for the coordinator again.

Each request names the generation it believes in: one of the past is refused (ILLEGAL_GENERATION), which is what fences
a consumer that slept through a rebalance. *Static members* (KIP-345) have a name of their own, the group instance id.
One that comes back without a member id takes over its predecessor's place and assignment, and the predecessor, should
it still be alive, is fenced (FENCED_INSTANCE_ID). Silence is noticed by the session deadline of each member, which
heartbeats, commits and answers given move forward.

`TABLE` says what each event does in each state; `broker.groups.classic.group` says how. Behaviour follows Apache
Kafka's.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum, auto

from protocol.errors import ErrorCode


class ClassicGroupState(StrEnum):
    """States, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupEvent(Enum):
    """What can happen to a group, after the checks that do not depend on its state."""

    NEW_MEMBER = auto()
    """JoinGroup of someone who is no member yet."""
    REJOIN = auto()
    """JoinGroup of a member that offers what it offered before."""
    REJOIN_LEADER = auto()
    """The same from the leader: it wants a new generation, for instance because partitions were added."""
    REJOIN_CHANGED = auto()
    """JoinGroup of a member with other protocols or another subscription."""
    STATIC_RETURN = auto()
    """JoinGroup of a static member that has lost its member id."""
    SYNC = auto()
    HEARTBEAT = auto()
    COMMIT = auto()
    """OffsetCommit of a member."""
    MEMBER_GONE = auto()
    """A member left or was silent too long."""
    PENDING_GONE = auto()
    """Someone who was given a member id never joined with it."""
    DELETE = auto()
    DELETE_OFFSETS = auto()


class GroupAction(Enum):
    """What an event makes the group do."""

    REBALANCE = auto()
    """Begin the join phase."""
    JOIN = auto()
    """Take part in the join phase, which ends if nobody is missing."""
    REPEAT = auto()
    """Answer as before: the member has missed our answer."""
    TAKE_OVER = auto()
    """Put the static member in its predecessor's place, without a rebalance if the vote stays as it is."""
    COLLECT = auto()
    """Hold the SyncGroup until the leader's assignment is durable."""
    ASSIGNMENT = auto()
    """Answer with the current assignment."""
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
    # While the leader works on an assignment it knows the old member id: the new one would get nothing.
    GroupEvent.STATIC_RETURN: _row(
        empty=_UNKNOWN, preparing=GroupAction.JOIN, completing=GroupAction.REBALANCE, stable=GroupAction.TAKE_OVER
    ),
    GroupEvent.SYNC: _row(
        empty=_UNKNOWN, preparing=_REBALANCING, completing=GroupAction.COLLECT, stable=GroupAction.ASSIGNMENT
    ),
    # Heartbeats may come between the two phases: the member has its JoinGroup answer and is busy assigning.
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
    # Consumers in the group are checked topic by topic; other kinds of members may be using anything.
    GroupEvent.DELETE_OFFSETS: _row(
        empty=GroupAction.NOTHING, preparing=_NON_EMPTY, completing=_NON_EMPTY, stable=_NON_EMPTY, dead=_NO_GROUP
    ),
}
