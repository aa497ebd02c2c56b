"""The state machine of a classic group: takes requests, results of writes and the time; returns responses and writes.

Its theory and its table of states and events are in `broker.kafka.groups.classic.state_table`. The machine does no IO
and reads no clock: `wake_ms` is a lower bound of its next deadline, and `tick` does what is due by then. Invariants:

- A request gets exactly one response: at once, when its phase ends, or when a newer request replaces it.
- No assignment is sent before it is durable.
- A request of another generation, member or instance changes nothing.
"""

from collections.abc import Sequence

from anabranch.broker.kafka.groups.classic.effects import (
    AssignmentStored,
    Effect,
    ReplacementStored,
    Respond,
    StoreSnapshot,
)
from anabranch.broker.kafka.groups.classic.member import ClassicMember, choose_protocol, common_protocols
from anabranch.broker.kafka.groups.classic.rebalance import RebalancingGroup
from anabranch.broker.kafka.groups.classic.state_table import TABLE, ClassicGroupState, GroupAction, GroupEvent
from anabranch.broker.kafka.groups.requests import (
    NEVER_MS,
    JoinRequest,
    JoinResponse,
    LeavingMember,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Longest wait of a new member's JoinGroup, as in Kafka: the member has no id yet and cannot send heartbeats."""


class ClassicGroup(RebalancingGroup):
    """One group. Every public method that takes `now` may set deadlines: read `wake_ms` afterwards."""

    # -- Requests ------------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, now: Now) -> list[Effect]:
        """Handle JoinGroup. The response is sent at once, when the join phase ends, or when a write is done."""
        if not self._has_room_for(request.member_id):
            self._drop_member(request.member_id)
            self._refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif self.state is ClassicGroupState.DEAD:
            self._refuse_join(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(request):
            self._refuse_join(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not request.member_id:
            self._join_without_id(request, now)
        elif request.member_id in self.pending and request.group_instance_id is None:
            del self.pending[request.member_id]
            self._join_new(request, request.member_id, now)
        elif error := self._check_member(request.member_id, request.group_instance_id):
            self._refuse_join(request, error)
        else:
            self._rejoin(request, self.members[request.member_id], now)
        return self._take_effects()

    def sync(self, request: SyncRequest, now: Now) -> list[Effect]:
        """Handle SyncGroup."""
        error = (
            ErrorCode.COORDINATOR_NOT_AVAILABLE if self.state is ClassicGroupState.DEAD else self._check_sync(request)
        )
        action = error or TABLE[GroupEvent.SYNC][self.state]
        if isinstance(action, ErrorCode):
            self._effects.append(Respond(request.ticket, SyncResponse(action)))
            return self._take_effects()
        member = self.members[request.member_id]
        member.sync_expected = False
        if not any(other.sync_expected for other in self.members.values()):
            self._sync_deadline_ms = NEVER_MS
        if action is GroupAction.ASSIGNMENT:
            self._effects.append(Respond(request.ticket, self._assignment_of(member)))
            self._extend_session(member, now)
        else:
            self._respond_to_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS), now)
            member.sync_ticket = request.ticket
            if request.member_id == self.leader:
                assignments = {member_id: request.assignments.get(member_id, b"") for member_id in self.members}
                self._effects.append(
                    StoreSnapshot(self.snapshot(assignments), AssignmentStored(self.generation, assignments))
                )
        return self._take_effects()

    def heartbeat(self, member_id: str, group_instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        """Handle Heartbeat."""
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error := self._check_generation(member_id, group_instance_id, generation):
            return error
        self._extend_session(self.members[member_id], now)
        action = TABLE[GroupEvent.HEARTBEAT][self.state]
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def leave(self, leavers: Sequence[LeavingMember], now: Now) -> tuple[list[ErrorCode], list[Effect]]:
        """Handle LeaveGroup: return an error code for each member. All of them cause one rebalance at most."""
        if self.state is ClassicGroupState.DEAD:
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(leavers), []
        errors = [self._leave_one(leaver, now) for leaver in leavers]
        if ErrorCode.NONE in errors:
            self._after_removal(GroupEvent.MEMBER_GONE, now)
        return errors, self._take_effects()

    def check_commit(
        self,
        member_id: str,
        group_instance_id: str | None,
        generation: int,
        now: Now,
        *,
        transactional: bool = False,
    ) -> ErrorCode:
        """Return why this commit is refused, or NONE. A commit also extends its member's session.

        A transactional commit may have no member (before KIP-447), and is accepted during a rebalance: the transaction
        itself fences its producer.
        """
        if self.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation < 0 and self.state is ClassicGroupState.EMPTY:
            return ErrorCode.NONE  # a tool, or a consumer that assigns itself
        if generation < 0 and not member_id and group_instance_id is None:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        if error := self._check_generation(member_id, group_instance_id, generation):
            return error
        self._extend_session(self.members[member_id], now)
        if transactional:
            return ErrorCode.NONE
        action = TABLE[GroupEvent.COMMIT][self.state]
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def check_delete(self) -> ErrorCode:
        """Return why the group may not be deleted, or NONE."""
        action = TABLE[GroupEvent.DELETE][self.state]
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def check_delete_offsets(self) -> ErrorCode:
        """Return why offsets may not be deleted, or NONE.

        With consumers in the group the caller must check topic by topic that none of them is subscribed.
        """
        action = TABLE[GroupEvent.DELETE_OFFSETS][self.state]
        if action is ErrorCode.NON_EMPTY_GROUP and self.protocol_type == "consumer":
            return ErrorCode.NONE
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def delete(self) -> None:
        """Mark the group as deleted. It must be Empty."""
        assert self.check_delete() is ErrorCode.NONE, "only an empty group is deleted"
        self.state = ClassicGroupState.DEAD
        self.pending.clear()
        self.wake_ms = NEVER_MS

    def resign(self, now: Now, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> list[Effect]:
        """Stop coordinating the group: respond to all requests that wait, with NOT_COORDINATOR by default."""
        for member in self.members.values():
            self._respond_to_join(member, JoinResponse(error, member.member_id), now)
            self._respond_to_sync(member, SyncResponse(error), now)
        self.state = ClassicGroupState.DEAD
        self.wake_ms = NEVER_MS
        return self._take_effects()

    def rebalance(self, now: Now) -> list[Effect]:
        """Begin a rebalance, because the current assignments take members into account that have left."""
        self._prepare_rebalance(now)
        return self._take_effects()

    # -- Results of writes, and time -----------------------------------------------------------------------------

    def snapshot_stored(self, write: AssignmentStored | ReplacementStored, error: ErrorCode, now: Now) -> list[Effect]:
        """Continue after a StoreSnapshot. Do nothing if the group has changed its state or generation meanwhile."""
        if isinstance(write, ReplacementStored):
            self._replacement_written(write, error, now)
        elif self.state is ClassicGroupState.COMPLETING and self.generation == write.generation:
            if error:
                self._reset_assignments(error, now)
                self._prepare_rebalance(now)
            else:
                self._change_state(ClassicGroupState.STABLE, now)
                for member in self.members.values():
                    member.assignment = write.assignments.get(member.member_id, b"")
                    self._respond_to_sync(member, self._assignment_of(member), now)
        return self._take_effects()

    def tick(self, now: Now) -> list[Effect]:
        """Handle all deadlines that have been reached, in order, and set `wake_ms` to the next one."""
        due = [(deadline, member_id) for member_id, deadline in self.pending.items() if deadline <= now.loop_ms]
        due += [(member.deadline_ms, key) for key, member in self.members.items() if member.deadline_ms <= now.loop_ms]
        for _, member_id in sorted(due):
            self._session_over(member_id, now)
        if self._join_deadline_ms <= now.loop_ms:
            self._join_phase_over(now)
        if self._sync_deadline_ms <= now.loop_ms:
            self._sync_phase_over(now)
        self.wake_ms = min(
            self._join_deadline_ms,
            self._sync_deadline_ms,
            min(self.pending.values(), default=NEVER_MS),
            min((member.deadline_ms for member in self.members.values()), default=NEVER_MS),
        )
        return self._take_effects()

    # -- Join ------------------------------------------------------------------------------------------------------

    def _has_room_for(self, member_id: str) -> bool:
        limit = self._settings.members_max
        member = self.members.get(member_id)
        if self.state is ClassicGroupState.PREPARING:
            # Members that have rejoined keep their places; the other places go to whichever members join first.
            waiting = sum(other.join_ticket is not None for other in self.members.values())
            return (member is not None and member.join_ticket is not None) or waiting < limit
        if self.state in {ClassicGroupState.COMPLETING, ClassicGroupState.STABLE}:
            return member is not None or len(self.members) < limit
        return True

    def _supports(self, request: JoinRequest) -> bool:
        if not request.protocol_type or not request.protocols:
            return False
        if not self.members:
            return True
        offered = {protocol.name for protocol in request.protocols}
        return self.protocol_type == request.protocol_type and bool(offered & common_protocols(self.members.values()))

    def _join_without_id(self, request: JoinRequest, now: Now) -> None:
        if request.group_instance_id is not None and request.group_instance_id in self.static:
            self._static_return(request, now)
        elif request.group_instance_id is None and request.member_id_required:
            if len(self.pending) >= self._settings.members_max:
                self._refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED)
                return
            deadline_ms = now.loop_ms + request.session_timeout_ms
            self.pending[request.new_member_id] = deadline_ms
            self._wake_at_latest(deadline_ms)
            self._effects.append(
                Respond(request.ticket, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id))
            )
        else:
            self._join_new(request, request.new_member_id, now)

    def _join_new(self, request: JoinRequest, member_id: str, now: Now) -> None:
        member = ClassicMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            join_ticket=request.ticket,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
            self.leader = member_id
        self.members[member_id] = member
        if request.group_instance_id is not None:
            self.static[request.group_instance_id] = member_id
        self._member_added = True
        self._set_session(member, now.loop_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._advance_rebalance(GroupEvent.NEW_MEMBER, now)

    def _rejoin(self, request: JoinRequest, member: ClassicMember, now: Now) -> None:
        if list(member.protocols) != list(request.protocols):
            event = GroupEvent.REJOIN_CHANGED
        elif member.member_id == self.leader:
            event = GroupEvent.REJOIN_LEADER
        else:
            event = GroupEvent.REJOIN
        action = TABLE[event][self.state]
        if isinstance(action, ErrorCode):
            self._refuse_join(request, action)
        elif action is GroupAction.REPEAT:
            self._effects.append(
                Respond(request.ticket, self._join_response(member, with_members=self._assigning(member)))
            )
        else:
            self._update(member, request, now)
            self._advance_rebalance(event, now)

    def _assigning(self, member: ClassicMember) -> bool:
        return self.state is ClassicGroupState.COMPLETING and member.member_id == self.leader

    def _static_return(self, request: JoinRequest, now: Now) -> None:
        instance_id = request.group_instance_id
        assert instance_id is not None, "only static members have a predecessor"
        leader_before = self.leader or ""
        old = self.members.pop(self.static[instance_id])
        self._respond_to_join(old, JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old.member_id), now)
        self._respond_to_sync(old, SyncResponse(ErrorCode.FENCED_INSTANCE_ID), now)
        member = old.replaced_by(request.new_member_id)
        self.members[member.member_id] = member
        self.static[instance_id] = member.member_id
        if self.leader == old.member_id:
            self.leader = member.member_id
        self._update(member, request, now)
        self._extend_session(member, now)
        if (
            TABLE[GroupEvent.STATIC_RETURN][self.state] is GroupAction.TAKE_OVER
            and choose_protocol(list(self.members.values())) == self.protocol_name
        ):
            then = ReplacementStored(request.ticket, member.member_id, leader_before, request.can_skip_assignment)
            self._effects.append(StoreSnapshot(self.snapshot(), then))
        else:
            self._advance_rebalance(GroupEvent.STATIC_RETURN, now)

    def _replacement_written(self, write: ReplacementStored, error: ErrorCode, now: Now) -> None:
        member = self.members.get(write.member_id)
        if member is None or member.join_ticket is not write.ticket:
            return  # a rebalance that began meanwhile has sent the response
        if error:
            # The new id stays, although no client has got it. The member joins again without an id and is replaced.
            self._respond_to_join(member, JoinResponse(error), now)
            return
        skip = write.can_skip_assignment and member.member_id == self.leader
        answer = self._join_response(
            member,
            with_members=skip,
            # A leader that does not support skipping must not see itself as the leader: it would assign to old members.
            leader=None if write.can_skip_assignment else write.leader_before,
            skip_assignment=skip,
        )
        self._respond_to_join(member, answer, now)

    def _update(self, member: ClassicMember, request: JoinRequest, now: Now) -> None:
        # Respond to the request of an earlier attempt, or its connection would wait forever.
        self._respond_to_join(member, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id), now)
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.join_ticket = request.ticket

    # -- Sync ------------------------------------------------------------------------------------------------------

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        if error := self._check_generation(request.member_id, request.group_instance_id, request.generation):
            return error
        for theirs, ours in ((request.protocol_type, self.protocol_type), (request.protocol_name, self.protocol_name)):
            if theirs is not None and theirs != ours:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _assignment_of(self, member: ClassicMember) -> SyncResponse:
        return SyncResponse(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    # -- Sessions and departures -----------------------------------------------------------------------------------

    def _session_over(self, member_id: str, now: Now) -> None:
        if self.pending.pop(member_id, None) is not None:
            self._after_removal(GroupEvent.PENDING_GONE, now)
            return
        member = self.members.get(member_id)
        if member is None or member.deadline_ms > now.loop_ms:
            return  # an earlier deadline of this tick has removed it, or a response has extended its session
        if not member.is_new and (member.join_ticket is not None or member.sync_ticket is not None):
            member.deadline_ms = NEVER_MS  # the member waits for the group; the response sets the next deadline
            return
        self._remove(member, now)
        self._after_removal(GroupEvent.MEMBER_GONE, now)

    def _leave_one(self, leaver: LeavingMember, now: Now) -> ErrorCode:
        if not leaver.member_id:
            member_id = self.static.get(leaver.group_instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif leaver.member_id in self.pending:
            del self.pending[leaver.member_id]
            return ErrorCode.NONE
        elif error := self._check_member(leaver.member_id, leaver.group_instance_id):
            return error
        else:
            member_id = leaver.member_id
        self._remove(self.members[member_id], now)
        return ErrorCode.NONE

    def _remove(self, member: ClassicMember, now: Now) -> None:
        """Remove a member. Its requests that wait get UNKNOWN_MEMBER_ID, so that it joins again if it is alive."""
        self._respond_to_join(member, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID), now)
        self._respond_to_sync(member, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID), now)
        self._drop_member(member.member_id)

    def _after_removal(self, event: GroupEvent, now: Now) -> None:
        action = TABLE[event][self.state]
        if action is GroupAction.REBALANCE:
            self._prepare_rebalance(now)
        elif action is GroupAction.JOIN:
            self._complete_join_if_all_here(now)
