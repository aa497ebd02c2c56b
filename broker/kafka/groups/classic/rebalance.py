"""The two phases of a rebalance of a classic group: join (PreparingRebalance) and sync (CompletingRebalance).

The phases are described in `broker.kafka.groups.classic.state_table`. Requests that begin or take part in a rebalance
are handled in `broker.kafka.groups.classic.group`.
"""

from anabranch.broker.kafka.groups.classic.effects import StoreSnapshot
from anabranch.broker.kafka.groups.classic.group_base import ClassicGroupBase
from anabranch.broker.kafka.groups.classic.member import choose_protocol
from anabranch.broker.kafka.groups.classic.state_table import TABLE, ClassicGroupState, GroupAction, GroupEvent
from anabranch.broker.kafka.groups.requests import NEVER_MS, Now, SyncResponse
from anabranch.protocol.errors import ErrorCode


class RebalancingGroup(ClassicGroupBase):
    """A classic group with the phases of its rebalances."""

    # -- Join phase --------------------------------------------------------------------------------------------------

    def _advance_rebalance(self, event: GroupEvent, now: Now) -> None:
        """Begin a rebalance, or end the join phase if all members have joined, as the table says for this event."""
        if TABLE[event][self.state] is GroupAction.JOIN:
            self._complete_join_if_all_here(now)
        else:
            self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: Now) -> None:
        if self.state is ClassicGroupState.COMPLETING:
            self._reset_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._sync_deadline_ms = NEVER_MS
        initial = self.state is ClassicGroupState.EMPTY
        self._change_state(ClassicGroupState.PREPARING, now)
        if initial:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_delay_left_ms = max(self._rebalance_timeout_ms() - delay_ms, 0)
            self._member_added = False
            self._set_join_deadline(now.loop_ms + delay_ms)
        else:
            self._initial_delay_left_ms = None
            self._set_join_deadline(now.loop_ms + self._rebalance_timeout_ms())
            self._complete_join_if_all_here(now)

    def _complete_join_if_all_here(self, now: Now) -> None:
        all_here = not self.pending and all(member.join_ticket is not None for member in self.members.values())
        if all_here and self._initial_delay_left_ms is None:
            self._complete_join(now)

    def _join_phase_over(self, now: Now) -> None:
        remaining_ms = self._initial_delay_left_ms
        if remaining_ms and self._member_added:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._initial_delay_left_ms = remaining_ms - delay_ms
            self._member_added = False
            self._set_join_deadline(now.loop_ms + delay_ms)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Now) -> None:
        for member in list(self.members.values()):
            if member.join_ticket is None and member.group_instance_id is None:
                self._drop_member(member.member_id)
        if self.members and not self._elect_leader():
            # Only static members are left, and none has rejoined: they stay until their sessions end.
            self._set_join_deadline(now.loop_ms + self._rebalance_timeout_ms())
            return
        self._join_deadline_ms = NEVER_MS
        self._initial_delay_left_ms = None
        self.generation += 1
        if not self.members:
            self.protocol_name = None
            self._change_state(ClassicGroupState.EMPTY, now)
            self._effects.append(StoreSnapshot(self.snapshot(), None))
            return
        self.protocol_name = choose_protocol(list(self.members.values()))
        self._change_state(ClassicGroupState.COMPLETING, now)
        for member in self.members.values():
            self._respond_to_join(
                member, self._join_response(member, with_members=member.member_id == self.leader), now
            )
            self._extend_session(member, now)
            member.is_new = False
            member.sync_expected = True
        self._sync_deadline_ms = now.loop_ms + self._rebalance_timeout_ms()
        self._wake_at_latest(self._sync_deadline_ms)

    def _elect_leader(self) -> bool:
        """Keep the leader if it has rejoined, else choose the first member that has. Return False if none has."""
        if self.leader is not None and self.members[self.leader].join_ticket is not None:
            return True
        chosen = next((member.member_id for member in self.members.values() if member.join_ticket is not None), None)
        self.leader = chosen or self.leader
        return chosen is not None

    # -- Sync phase --------------------------------------------------------------------------------------------------

    def _reset_assignments(self, error: ErrorCode, now: Now) -> None:
        for member in self.members.values():
            member.assignment = b""
            self._respond_to_sync(member, SyncResponse(error), now)

    def _sync_phase_over(self, now: Now) -> None:
        """Remove members that have joined but not synced within the rebalance timeout."""
        self._sync_deadline_ms = NEVER_MS
        missing = [member.member_id for member in self.members.values() if member.sync_expected]
        for member_id in missing:
            self._drop_member(member_id)
        if missing:
            self._prepare_rebalance(now)
