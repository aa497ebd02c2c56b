"""The two phases of a rebalance of a classic group: join (PreparingRebalance) and sync (CompletingRebalance).

The phases are described in `broker.kafka.groups.classic.state_table`. Requests that begin or take part in a rebalance
are handled in `broker.kafka.groups.classic.machine`.
"""

from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.member import ClassicMember, choose_protocol
from anabranch.broker.kafka.groups.classic.state_table import TABLE, ClassicGroupState, GroupAction, GroupEvent
from anabranch.broker.kafka.groups.requests import NEVER_MS, Now, SyncResponse
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode


class Rebalance:
    """The phases of the rebalances of one group, with their deadlines."""

    def __init__(self, group: ClassicGroup, settings: GroupSettings) -> None:
        self._group = group
        self._settings = settings
        self._join_deadline_ms = NEVER_MS
        self._initial_delay_left_ms: int | None = None
        """In the first join phase after Empty, the time by which new members may still extend the delay; else None."""
        self._member_added = False
        self._sync_deadline_ms = NEVER_MS

    @property
    def deadline_ms(self) -> int:
        """Time by which the current phase ends."""
        return min(self._join_deadline_ms, self._sync_deadline_ms)

    def end_due_phases(self, now: Now) -> None:
        """End the phase whose deadline has been reached."""
        if self._join_deadline_ms <= now.steady_ms:
            self._join_phase_over(now)
        if self._sync_deadline_ms <= now.steady_ms:
            self._sync_phase_over(now)

    # -- Join phase --------------------------------------------------------------------------------------------------

    def advance(self, event: GroupEvent, now: Now) -> None:
        """Begin a rebalance, or end the join phase if all members have joined, as the table says for this event."""
        if event is GroupEvent.NEW_MEMBER:
            self._member_added = True
        if TABLE[event][self._group.state] is GroupAction.JOIN:
            self.end_join_if_all_here(now)
        else:
            self.prepare(now)

    def prepare(self, now: Now) -> None:
        """Begin the join phase."""
        group = self._group
        if group.state is ClassicGroupState.COMPLETING:
            self.reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._sync_deadline_ms = NEVER_MS
        initial = group.state is ClassicGroupState.EMPTY
        group.change_state(ClassicGroupState.PREPARING, now)
        if initial:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_delay_left_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._member_added = False
            self._set_join_deadline(now.steady_ms + delay_ms)
        else:
            self._initial_delay_left_ms = None
            self._set_join_deadline(now.steady_ms + group.rebalance_timeout_ms())
            self.end_join_if_all_here(now)

    def end_join_if_all_here(self, now: Now) -> None:
        """End the join phase if no member is missing, and no initial delay is left."""
        group = self._group
        all_here = not group.pending and all(member.join_ticket is not None for member in group.members.values())
        if all_here and self._initial_delay_left_ms is None:
            self._complete_join(now)

    def _set_join_deadline(self, deadline_ms: int) -> None:
        self._join_deadline_ms = deadline_ms
        self._group.wake_at_latest(deadline_ms)

    def _join_phase_over(self, now: Now) -> None:
        remaining_ms = self._initial_delay_left_ms
        if remaining_ms and self._member_added:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._initial_delay_left_ms = remaining_ms - delay_ms
            self._member_added = False
            self._set_join_deadline(now.steady_ms + delay_ms)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Now) -> None:
        group = self._group
        for member in list(group.members.values()):
            if member.join_ticket is None and member.group_instance_id is None:
                group.drop_member(member.member_id)
        if group.members and not self._elect_leader():
            # Only static members are left, and none has rejoined: they stay until their sessions end.
            self._set_join_deadline(now.steady_ms + group.rebalance_timeout_ms())
            return
        self._join_deadline_ms = NEVER_MS
        self._initial_delay_left_ms = None
        group.generation += 1
        if not group.members:
            group.protocol_name = None
            group.change_state(ClassicGroupState.EMPTY, now)
            group.store(lambda *_: group.take_outcome())  # nothing waits for this write
            return
        group.protocol_name = choose_protocol(list(group.members.values()))
        group.change_state(ClassicGroupState.COMPLETING, now)
        for member in group.members.values():
            is_leader = member.member_id == group.leader
            group.respond_to_join(member, group.join_response(member, with_members=is_leader), now)
            group.extend_session(member, now)
            member.is_new = False
            member.sync_expected = True
        self._sync_deadline_ms = now.steady_ms + group.rebalance_timeout_ms()
        group.wake_at_latest(self._sync_deadline_ms)

    def _elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, else choose the first member that has. Return False if none has."""
        group = self._group
        if group.leader is not None and group.members[group.leader].join_ticket is not None:
            return True
        chosen = next((member.member_id for member in group.members.values() if member.join_ticket is not None), None)
        group.leader = chosen or group.leader
        return chosen is not None

    # -- Sync phase --------------------------------------------------------------------------------------------------

    def note_sync(self, member: ClassicMember) -> None:
        """Note that a member has sent SyncGroup. The phase has no deadline any more when all have."""
        member.sync_expected = False
        if not any(other.sync_expected for other in self._group.members.values()):
            self._sync_deadline_ms = NEVER_MS

    def reset_assignments(self, error: ErrorCode, now: Now) -> None:
        """Clear the assignments, and respond to the SyncGroups that wait with an error."""
        for member in self._group.members.values():
            member.assignment = b""
            self._group.respond_to_sync(member, SyncResponse(error), now)

    def _sync_phase_over(self, now: Now) -> None:
        """Remove members that have joined but not synced within the rebalance timeout."""
        self._sync_deadline_ms = NEVER_MS
        missing = [member.member_id for member in self._group.members.values() if member.sync_expected]
        for member_id in missing:
            self._group.drop_member(member_id)
        if missing:
            self.prepare(now)
