"""State of a classic group: members, static members, deadlines, and responses that wait to be sent.

`broker.kafka.groups.classic.rebalance` and `broker.kafka.groups.classic.group` change it.
"""

from collections.abc import Mapping, Sequence
from typing import Self

from anabranch.broker.kafka.groups.classic.effects import Effect, Respond
from anabranch.broker.kafka.groups.classic.member import ClassicMember, choose_protocol
from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot
from anabranch.broker.kafka.groups.classic.state_table import ClassicGroupState
from anabranch.broker.kafka.groups.requests import NEVER_MS, JoinedMember, JoinRequest, JoinResponse, Now, SyncResponse
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode


class ClassicGroupBase:
    """The state of one group and the small steps that change it, without the decisions."""

    group_type = "classic"

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
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
        self._settings = settings
        self._effects: list[Effect] = []
        self._join_deadline_ms = NEVER_MS
        self._initial_delay_left_ms: int | None = None
        """In the first join phase after Empty, the time by which new members may still extend the delay; else None."""
        self._member_added = False
        self._sync_deadline_ms = NEVER_MS

    @classmethod
    def restore(cls, group_id: str, settings: GroupSettings, stored: GroupSnapshot, now: Now) -> Self:
        """Rebuild a group from its last record. Members continue their generation, each with a new session."""
        group = cls(group_id, settings)
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
            group._extend_session(member, now)
        if group.members:
            group.state = ClassicGroupState.STABLE
        return group

    @classmethod
    def converted(
        cls, group_id: str, settings: GroupSettings, generation: int, members: Sequence[ClassicMember], now: Now
    ) -> Self:
        """Return a group of the members of a consumer group, in a stable generation without a leader."""
        group = cls(group_id, settings)
        group.generation = generation
        group.protocol_type = "consumer"
        group.protocol_name = choose_protocol(members)
        for member in members:
            group.members[member.member_id] = member
            if member.group_instance_id is not None:
                group.static[member.group_instance_id] = member.member_id
            group._extend_session(member, now)
        group._change_state(ClassicGroupState.STABLE, now)
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

    def _drop_member(self, member_id: str) -> None:
        self.pending.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    # -- Small helpers ---------------------------------------------------------------------------------------------

    def _check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            current = self.static.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_generation(self, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        if error := self._check_member(member_id, group_instance_id):
            return error
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def _refuse_join(self, request: JoinRequest, error: ErrorCode) -> None:
        self._effects.append(Respond(request.ticket, JoinResponse(error, request.member_id)))

    def _join_response(
        self, member: ClassicMember, *, with_members: bool, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResponse:
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

    def _respond_to_join(self, member: ClassicMember, answer: JoinResponse, now: Now) -> None:
        if member.join_ticket is not None:
            self._effects.append(Respond(member.join_ticket, answer))
            member.join_ticket = None
            self._extend_session(member, now)

    def _respond_to_sync(self, member: ClassicMember, answer: SyncResponse, now: Now) -> None:
        if member.sync_ticket is not None:
            self._effects.append(Respond(member.sync_ticket, answer))
            member.sync_ticket = None
            self._extend_session(member, now)

    def _extend_session(self, member: ClassicMember, now: Now) -> None:
        self._set_session(member, now.loop_ms + member.session_timeout_ms)

    def _set_session(self, member: ClassicMember, deadline_ms: int) -> None:
        member.deadline_ms = deadline_ms
        self._wake_at_latest(deadline_ms)

    def _set_join_deadline(self, deadline_ms: int) -> None:
        self._join_deadline_ms = deadline_ms
        self._wake_at_latest(deadline_ms)

    def _wake_at_latest(self, deadline_ms: int) -> None:
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def _rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def _change_state(self, state: ClassicGroupState, now: Now) -> None:
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    def _take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
