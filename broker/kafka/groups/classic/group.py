"""State of a classic group: members, static members, sessions, and the outcome of the step that changes them.

`broker.kafka.groups.classic.rebalance` and `broker.kafka.groups.classic.machine` change it.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.classic.member import ClassicMember, choose_protocol, subscribed_topics
from anabranch.broker.kafka.groups.classic.records import group_record
from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot
from anabranch.broker.kafka.groups.classic.state_table import TABLE, ClassicGroupState, GroupEvent
from anabranch.broker.kafka.groups.interface import Continuation, Outcome, Response, UnusedSince
from anabranch.broker.kafka.groups.requests import NEVER_MS, JoinedMember, JoinRequest, JoinResponse, Now, SyncResponse
from anabranch.protocol.errors import ErrorCode


class ClassicGroup:
    """The state of one group and the small steps that change it, without the decisions."""

    group_type = "classic"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        self.static: dict[str, str] = {}
        """Group instance id to member id."""
        self.pending: dict[str, int] = {}
        """Member ids handed out to clients that have not joined with them yet, each with its deadline."""
        self.state_timestamp_ms = -1
        """Wall-clock time of the last change of state."""
        self.wake_ms = NEVER_MS
        """A lower bound of the next deadline."""
        self._responses: list[Response] = []
        self._records: list[KeyValue] = []
        self._then: Continuation | None = None

    @classmethod
    def restore(cls, group_id: str, stored: GroupSnapshot, now: Now) -> Self:
        """Rebuild a group from its last record. Members continue their generation, each with a new session."""
        group = cls(group_id)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol_name = stored.protocol_name
        group.leader = stored.leader
        group.state_timestamp_ms = stored.state_timestamp_ms
        for kept in stored.members:
            member = ClassicMember.restore(kept, stored.protocol_name or "")
            group.members[kept.member_id] = member
            if kept.group_instance_id is not None:
                group.static[kept.group_instance_id] = kept.member_id
            group.extend_session(member, now)
        if group.members:
            group.state = ClassicGroupState.STABLE
        return group

    @classmethod
    def converted(cls, group_id: str, generation: int, members: Sequence[ClassicMember], now: Now) -> Self:
        """Return a group of the members of a consumer group, in a stable generation without a leader."""
        group = cls(group_id)
        group.generation = generation
        group.protocol_type = "consumer"
        group.protocol_name = choose_protocol(members)
        for member in members:
            group.members[member.member_id] = member
            if member.group_instance_id is not None:
                group.static[member.group_instance_id] = member.member_id
            group.extend_session(member, now)
        group.change_state(ClassicGroupState.STABLE, now)
        return group

    # -- Views -----------------------------------------------------------------------------------------------------

    def snapshot(self, assignments: Mapping[str, bytes] | None = None) -> GroupSnapshot:
        """Return the durable state of the group, with `assignments` in place of the current ones if given."""
        return GroupSnapshot(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.leader,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                member.snapshot(
                    self.protocol_name, member.assignment if assignments is None else assignments[member.member_id]
                )
                for member in self.members.values()
            ),
        )

    @property
    def is_unused(self) -> bool:
        """True if the group has no members, and no member id has been handed out for one to join."""
        return self.state is ClassicGroupState.EMPTY and not self.pending

    def check_delete(self) -> ErrorCode:
        """Return why the group may not be deleted, or NONE."""
        action = TABLE[GroupEvent.DELETE][self.state]
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def check_delete_offsets(self) -> ErrorCode:
        """Return why no offset may be deleted, or NONE: those of consumers are checked topic by topic."""
        action = TABLE[GroupEvent.DELETE_OFFSETS][self.state]
        if action is ErrorCode.NON_EMPTY_GROUP and self.protocol_type == "consumer":
            return ErrorCode.NONE
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def check_fetch(self, _member_id: str | None, _epoch: int, /) -> ErrorCode:
        """Return NONE: anyone may read the offsets."""
        return ErrorCode.NONE

    def topics_in_use(self) -> frozenset[str] | None:
        """Return the topics that the group's consumers are subscribed to; None if members may be using any topic."""
        if self.protocol_type != "consumer" or self.protocol_name is None:
            return None if self.members else frozenset()
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = subscribed_topics(member.metadata(self.protocol_name))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def unused_since(self) -> UnusedSince:
        """Return a function that gives the time from which an offset's retention counts, None while it is in use.

        It is the time when the group has become empty. Offsets of consumers that assign themselves, and of topics that
        no member of a stable group is subscribed to, count from their commit.
        """
        if self.state is ClassicGroupState.EMPTY:
            if self.protocol_type is None or self.state_timestamp_ms == -1:
                return lambda _, committed: committed.commit_timestamp_ms
            empty_since_ms = self.state_timestamp_ms
            return lambda *_: empty_since_ms
        in_use = self.topics_in_use() if self.state is ClassicGroupState.STABLE else None
        if in_use is None:
            return lambda *_: None
        return lambda key, committed: None if key.topic in in_use else committed.commit_timestamp_ms

    # -- Steps -----------------------------------------------------------------------------------------------------

    def drop_member(self, member_id: str) -> None:
        """Remove a member, or a member id that was handed out. Its requests that wait get no response."""
        self.pending.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Return why a request is not one of a member, or NONE."""
        if group_instance_id is not None:
            current = self.static.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def check_generation(self, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        """Return why a request is not one of a member in the current generation, or NONE."""
        if error := self.check_member(member_id, group_instance_id):
            return error
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def extend_session(self, member: ClassicMember, now: Now) -> None:
        """Begin a new session of a member."""
        member.deadline_ms = deadline_ms = now.steady_ms + member.session_timeout_ms
        if deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def set_session(self, member: ClassicMember, deadline_ms: int) -> None:
        """Let the session of a member end at this time."""
        member.deadline_ms = deadline_ms
        self.wake_at_latest(deadline_ms)

    def wake_at_latest(self, deadline_ms: int) -> None:
        """Bring the next deadline forward to this time if it is later."""
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def next_deadline_ms(self) -> int:
        """Return the earliest deadline of a member, or of a member id that was handed out."""
        return min(
            min(self.pending.values(), default=NEVER_MS),
            min((member.deadline_ms for member in self.members.values()), default=NEVER_MS),
        )

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def change_state(self, state: ClassicGroupState, now: Now) -> None:
        """Change the state, and the time of its last change."""
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    # -- Outcome ---------------------------------------------------------------------------------------------------

    def respond(self, ticket: object, response: JoinResponse | SyncResponse) -> None:
        """Send a response."""
        self._responses.append(Response(ticket, response))

    def refuse_join(self, request: JoinRequest, error: ErrorCode) -> None:
        """Respond to a JoinGroup with an error."""
        self.respond(request.ticket, JoinResponse(error, request.member_id))

    def join_response(
        self, member: ClassicMember, *, with_members: bool, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResponse:
        """Return the response to a member that has joined the current generation."""
        members = [
            JoinedMember(other.member_id, other.group_instance_id, other.metadata(self.protocol_name))
            for other in (self.members.values() if with_members else ())
        ]
        return JoinResponse(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader if leader is not None else self.leader or "",
            skip_assignment=skip_assignment,
            members=members,
        )

    def respond_to_join(self, member: ClassicMember, answer: JoinResponse, now: Now) -> None:
        """Respond to a member's JoinGroup if one waits, and begin a new session."""
        if member.join_ticket is not None:
            self.respond(member.join_ticket, answer)
            member.join_ticket = None
            self.extend_session(member, now)

    def respond_to_sync(self, member: ClassicMember, answer: SyncResponse, now: Now) -> None:
        """Respond to a member's SyncGroup if one waits, and begin a new session."""
        if member.sync_ticket is not None:
            self.respond(member.sync_ticket, answer)
            member.sync_ticket = None
            self.extend_session(member, now)

    def store(self, then: Continuation, assignments: Mapping[str, bytes] | None = None) -> None:
        """Write the state of the group, with `assignments` in place of the current ones if given; continue with `then`.

        A step writes one record at most.
        """
        assert not self._records, "a step has one write"
        self._records = [group_record(self.group_id, self.snapshot(assignments))]
        self._then = then

    def take_outcome(self) -> Outcome:
        """Return the outcome of the step that ends here."""
        outcome = Outcome(responses=self._responses, records=self._records, then=self._then)
        self._responses, self._records, self._then = [], [], None
        return outcome
