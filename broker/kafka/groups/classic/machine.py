"""The state machine of a classic group: takes requests, ends of writes and the time; returns outcomes.

Its theory and its table of states and events are in `broker.kafka.groups.classic.state_table`. Invariants:

- A request gets exactly one response: at once, when its phase ends, or when a newer request replaces it.
- No assignment is sent before it is durable.
- A request of another generation, member or instance changes nothing.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.member import ClassicMember, choose_protocol, common_protocols
from anabranch.broker.kafka.groups.classic.rebalance import Rebalance
from anabranch.broker.kafka.groups.classic.records import group_record
from anabranch.broker.kafka.groups.classic.state_table import TABLE, ClassicGroupState, GroupAction, GroupEvent
from anabranch.broker.kafka.groups.interface import Outcome
from anabranch.broker.kafka.groups.requests import (
    NEVER_MS,
    ClassicHeartbeat,
    CommitRequest,
    GroupRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""Longest wait of a new member's JoinGroup, as in Kafka: the member has no id yet and cannot send heartbeats."""
_ON_HEARTBEAT, _ON_COMMIT = TABLE[GroupEvent.HEARTBEAT], TABLE[GroupEvent.COMMIT]


class ClassicMachine:
    """The state machine of one group."""

    serves = frozenset({"classic"})

    def __init__(self, group: ClassicGroup, settings: GroupSettings) -> None:
        self.group = group
        self._settings = settings
        self._rebalance = Rebalance(group, settings)

    # -- Requests ------------------------------------------------------------------------------------------------

    def handle(self, request: GroupRequest[Any], now: Now) -> Outcome:
        """Handle a request of the classic protocol."""
        match request:
            case ClassicHeartbeat():
                return Outcome(self._heartbeat(request, now))
            case JoinRequest():
                self._join(request, now)
                return self.group.take_outcome()
            case SyncRequest():
                self._sync(request, now)
                return self.group.take_outcome()
            case LeaveRequest():
                return self._leave(request, now)
        raise AssertionError(f"{type(request).__name__} is no request of the classic protocol")

    def _join(self, request: JoinRequest, now: Now) -> None:
        """Handle JoinGroup. The response is sent at once, when the join phase ends, or when a write is done."""
        if not self._has_room_for(request.member_id):
            self.group.drop_member(request.member_id)
            self.group.refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif self.group.state is ClassicGroupState.DEAD:
            self.group.refuse_join(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(request):
            self.group.refuse_join(request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not request.member_id:
            self._join_without_id(request, now)
        elif request.member_id in self.group.pending and request.group_instance_id is None:
            del self.group.pending[request.member_id]
            self._join_new(request, request.member_id, now)
        elif error := self.group.check_member(request.member_id, request.group_instance_id):
            self.group.refuse_join(request, error)
        else:
            self._rejoin(request, self.group.members[request.member_id], now)

    def _sync(self, request: SyncRequest, now: Now) -> None:
        error = (
            ErrorCode.COORDINATOR_NOT_AVAILABLE
            if self.group.state is ClassicGroupState.DEAD
            else self._check_sync(request)
        )
        action = error or TABLE[GroupEvent.SYNC][self.group.state]
        if isinstance(action, ErrorCode):
            self.group.respond(request.ticket, SyncResponse(action))
            return
        member = self.group.members[request.member_id]
        self._rebalance.note_sync(member)
        if action is GroupAction.ASSIGNMENT:
            self.group.respond(request.ticket, self._assignment_of(member))
            self.group.extend_session(member, now)
            return
        self.group.respond_to_sync(member, SyncResponse(ErrorCode.REBALANCE_IN_PROGRESS), now)
        member.sync_ticket = request.ticket
        if request.member_id == self.group.leader:
            assignments = {member_id: request.assignments.get(member_id, b"") for member_id in self.group.members}
            self.group.store(partial(self._assignment_stored, self.group.generation, assignments), assignments)

    def _heartbeat(self, request: ClassicHeartbeat, now: Now) -> ErrorCode:
        group, member_id = self.group, request.member_id
        if group.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error := group.check_generation(member_id, request.group_instance_id, request.generation):
            return error
        group.extend_session(group.members[member_id], now)
        action = _ON_HEARTBEAT[group.state]
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def _leave(self, request: LeaveRequest, now: Now) -> Outcome:
        """Handle LeaveGroup. All members that leave cause one rebalance at most."""
        if self.group.state is ClassicGroupState.DEAD:
            return Outcome([ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(request.leavers))
        errors = [self._leave_one(leaver, now) for leaver in request.leavers]
        if ErrorCode.NONE in errors:
            self._after_removal(GroupEvent.MEMBER_GONE, now)
        outcome = self.group.take_outcome()
        outcome.answer = errors
        return outcome

    def check_commit(self, commit: CommitRequest, now: Now) -> ErrorCode:
        """Return why this commit is refused, or NONE. A commit also extends its member's session.

        A transactional commit may have no member (before KIP-447), and is accepted during a rebalance: the transaction
        itself fences its producer.
        """
        group = self.group
        if group.state is ClassicGroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if commit.generation < 0 and group.state is ClassicGroupState.EMPTY:
            return ErrorCode.NONE  # a tool, or a consumer that assigns itself
        if commit.generation < 0 and not commit.member_id and commit.group_instance_id is None:
            return ErrorCode.NONE if commit.transactional else ErrorCode.UNKNOWN_MEMBER_ID
        if error := group.check_generation(commit.member_id, commit.group_instance_id, commit.generation):
            return error
        group.extend_session(group.members[commit.member_id], now)
        if commit.transactional:
            return ErrorCode.NONE
        action = _ON_COMMIT[group.state]
        return action if isinstance(action, ErrorCode) else ErrorCode.NONE

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead; return the tombstone of its record."""
        self.group.state = ClassicGroupState.DEAD
        self.group.pending.clear()
        self.group.wake_ms = NEVER_MS
        return [group_record(self.group.group_id, None)]

    def forget_topics(self, _is_deleted: Callable[[str], bool], _now: Now, /) -> Outcome:
        """Return nothing to do: of topics only the offsets are known by name."""
        return Outcome()

    def resign(self, now: Now, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> Outcome:
        """Stop coordinating the group: respond to all requests that wait, with NOT_COORDINATOR by default."""
        for member in self.group.members.values():
            self.group.respond_to_join(member, JoinResponse(error, member.member_id), now)
            self.group.respond_to_sync(member, SyncResponse(error), now)
        self.group.state = ClassicGroupState.DEAD
        self.group.wake_ms = NEVER_MS
        return self.group.take_outcome()

    def rebalance(self, now: Now) -> Outcome:
        """Begin a rebalance, because the current assignments take members into account that have left."""
        self._rebalance.prepare(now)
        return self.group.take_outcome()

    # -- Ends of writes, and time --------------------------------------------------------------------------------

    def _assignment_stored(
        self, generation: int, assignments: Mapping[str, bytes], error: ErrorCode, now: Now
    ) -> Outcome:
        """Send the leader's assignment if it is durable, and the group still waits for it."""
        if self.group.state is ClassicGroupState.COMPLETING and self.group.generation == generation:
            if error:
                self._rebalance.reset_assignments(error, now)
                self._rebalance.prepare(now)
            else:
                self.group.change_state(ClassicGroupState.STABLE, now)
                for member in self.group.members.values():
                    member.assignment = assignments.get(member.member_id, b"")
                    self.group.respond_to_sync(member, self._assignment_of(member), now)
        return self.group.take_outcome()

    def tick(self, now: Now) -> Outcome:
        """Handle all deadlines that have been reached, in order."""
        deadlines = [
            *((deadline_ms, member_id) for member_id, deadline_ms in self.group.pending.items()),
            *((member.deadline_ms, member_id) for member_id, member in self.group.members.items()),
        ]
        due = [each for each in deadlines if each[0] <= now.steady_ms]
        for _, member_id in sorted(due):
            self._session_over(member_id, now)
        self._rebalance.end_due_phases(now)
        self.group.wake_ms = min(self._rebalance.deadline_ms, self.group.next_deadline_ms())
        return self.group.take_outcome()

    # -- Join ------------------------------------------------------------------------------------------------------

    def _has_room_for(self, member_id: str) -> bool:
        limit = self._settings.members_max
        member = self.group.members.get(member_id)
        if self.group.state is ClassicGroupState.PREPARING:
            # Members that have rejoined keep their places; the other places go to whichever members join first.
            waiting = sum(other.join_ticket is not None for other in self.group.members.values())
            return (member is not None and member.join_ticket is not None) or waiting < limit
        if self.group.state in {ClassicGroupState.COMPLETING, ClassicGroupState.STABLE}:
            return member is not None or len(self.group.members) < limit
        return True

    def _supports(self, request: JoinRequest) -> bool:
        if not request.protocol_type or not request.protocols:
            return False
        if not self.group.members:
            return True
        offered = {protocol.name for protocol in request.protocols}
        return self.group.protocol_type == request.protocol_type and bool(
            offered & common_protocols(self.group.members.values())
        )

    def _join_without_id(self, request: JoinRequest, now: Now) -> None:
        if request.group_instance_id is not None and request.group_instance_id in self.group.static:
            self._static_return(request, now)
        elif request.group_instance_id is None and request.member_id_required:
            if len(self.group.pending) >= self._settings.members_max:
                self.group.refuse_join(request, ErrorCode.GROUP_MAX_SIZE_REACHED)
                return
            deadline_ms = now.steady_ms + request.session_timeout_ms
            self.group.pending[request.new_member_id] = deadline_ms
            self.group.wake_at_latest(deadline_ms)
            self.group.respond(request.ticket, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id))
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
        if not self.group.members:
            self.group.protocol_type = request.protocol_type
            self.group.leader = member_id
        self.group.members[member_id] = member
        if request.group_instance_id is not None:
            self.group.static[request.group_instance_id] = member_id
        self.group.set_session(member, now.steady_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalance.advance(GroupEvent.NEW_MEMBER, now)

    def _rejoin(self, request: JoinRequest, member: ClassicMember, now: Now) -> None:
        if list(member.protocols) != list(request.protocols):
            event = GroupEvent.REJOIN_CHANGED
        elif member.member_id == self.group.leader:
            event = GroupEvent.REJOIN_LEADER
        else:
            event = GroupEvent.REJOIN
        action = TABLE[event][self.group.state]
        if isinstance(action, ErrorCode):
            self.group.refuse_join(request, action)
        elif action is GroupAction.REPEAT:
            self.group.respond(request.ticket, self.group.join_response(member, with_members=self._assigning(member)))
        else:
            self._update(member, request, now)
            self._rebalance.advance(event, now)

    def _assigning(self, member: ClassicMember) -> bool:
        return self.group.state is ClassicGroupState.COMPLETING and member.member_id == self.group.leader

    def _static_return(self, request: JoinRequest, now: Now) -> None:
        instance_id = request.group_instance_id
        assert instance_id is not None, "only static members have a predecessor"
        leader_before = self.group.leader or ""
        old = self.group.members.pop(self.group.static[instance_id])
        self.group.respond_to_join(old, JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old.member_id), now)
        self.group.respond_to_sync(old, SyncResponse(ErrorCode.FENCED_INSTANCE_ID), now)
        member = old.replaced_by(request.new_member_id)
        self.group.members[member.member_id] = member
        self.group.static[instance_id] = member.member_id
        if self.group.leader == old.member_id:
            self.group.leader = member.member_id
        self._update(member, request, now)
        self.group.extend_session(member, now)
        if (
            TABLE[GroupEvent.STATIC_RETURN][self.group.state] is GroupAction.TAKE_OVER
            and choose_protocol(list(self.group.members.values())) == self.group.protocol_name
        ):
            self.group.store(partial(self._replacement_stored, request, member.member_id, leader_before))
        else:
            self._rebalance.advance(GroupEvent.STATIC_RETURN, now)

    def _replacement_stored(
        self, request: JoinRequest, member_id: str, leader_before: str, error: ErrorCode, now: Now
    ) -> Outcome:
        """Respond to a static member that has returned, unless a rebalance that began meanwhile has done so."""
        member = self.group.members.get(member_id)
        if member is not None and member.join_ticket is request.ticket:
            # The new id stays after an error, although no client has got it. The member joins again without an id and
            # is replaced.
            response = JoinResponse(error) if error else self._replacement_response(request, member, leader_before)
            self.group.respond_to_join(member, response, now)
        return self.group.take_outcome()

    def _replacement_response(self, request: JoinRequest, member: ClassicMember, leader_before: str) -> JoinResponse:
        skip = request.can_skip_assignment and member.member_id == self.group.leader
        return self.group.join_response(
            member,
            with_members=skip,
            # A leader that does not support skipping must not see itself as the leader: it would assign to old members.
            leader=None if request.can_skip_assignment else leader_before,
            skip_assignment=skip,
        )

    def _update(self, member: ClassicMember, request: JoinRequest, now: Now) -> None:
        # Respond to the request of an earlier attempt, or its connection would wait forever.
        self.group.respond_to_join(member, JoinResponse(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id), now)
        member.protocols = request.protocols
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.join_ticket = request.ticket

    # -- Sync ------------------------------------------------------------------------------------------------------

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        if error := self.group.check_generation(request.member_id, request.group_instance_id, request.generation):
            return error
        for theirs, ours in (
            (request.protocol_type, self.group.protocol_type),
            (request.protocol_name, self.group.protocol_name),
        ):
            if theirs is not None and theirs != ours:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _assignment_of(self, member: ClassicMember) -> SyncResponse:
        return SyncResponse(ErrorCode.NONE, self.group.protocol_type, self.group.protocol_name, member.assignment)

    # -- Sessions and departures -----------------------------------------------------------------------------------

    def _session_over(self, member_id: str, now: Now) -> None:
        if self.group.pending.pop(member_id, None) is not None:
            self._after_removal(GroupEvent.PENDING_GONE, now)
            return
        member = self.group.members.get(member_id)
        if member is None or member.deadline_ms > now.steady_ms:
            return  # an earlier deadline of this tick has removed it, or a response has extended its session
        if not member.is_new and (member.join_ticket is not None or member.sync_ticket is not None):
            member.deadline_ms = NEVER_MS  # the member waits for the group; the response sets the next deadline
            return
        self._remove(member, now)
        self._after_removal(GroupEvent.MEMBER_GONE, now)

    def _leave_one(self, leaver: LeavingMember, now: Now) -> ErrorCode:
        if not leaver.member_id:
            member_id = self.group.static.get(leaver.group_instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif leaver.member_id in self.group.pending:
            del self.group.pending[leaver.member_id]
            return ErrorCode.NONE
        elif error := self.group.check_member(leaver.member_id, leaver.group_instance_id):
            return error
        else:
            member_id = leaver.member_id
        self._remove(self.group.members[member_id], now)
        return ErrorCode.NONE

    def _remove(self, member: ClassicMember, now: Now) -> None:
        """Remove a member. Its requests that wait get UNKNOWN_MEMBER_ID, so that it joins again if it is alive."""
        self.group.respond_to_join(member, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID), now)
        self.group.respond_to_sync(member, SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID), now)
        self.group.drop_member(member.member_id)

    def _after_removal(self, event: GroupEvent, now: Now) -> None:
        action = TABLE[event][self.group.state]
        if action is GroupAction.REBALANCE:
            self._rebalance.prepare(now)
        elif action is GroupAction.JOIN:
            self._rebalance.end_join_if_all_here(now)
