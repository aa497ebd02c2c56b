"""The state machine of a consumer group (KIP-848): takes heartbeats, time and topics; returns responses and records.

Theory
------
The broker decides everything. Each member learns its assignment from the responses to its own heartbeats; there is no
barrier at which all members wait. Three epochs measure the progress:

*group epoch*
    Goes up whenever the input of the assignment changes: members, subscriptions, topics, partitions.
*assignment epoch*
    The group epoch for which the *target assignment* was computed, by an assignor in the broker. The first heartbeat
    that finds it behind recomputes it, so a group converges to the newest target and skips those in between.
*member epoch*
    The assignment epoch that a member has reached. To reach it, the member has revoked the partitions outside of its
    target (until it reports that, it keeps its old epoch), and has been assigned those of its target that no other
    member holds. The epoch is in every heartbeat and commit, which fences a member that missed its removal.

    group:   Empty -> Assigning (group epoch ahead) -> Reconciling (some member behind) -> Stable
    member:  STABLE -> UNREVOKED (must revoke) -> UNRELEASED (part of its target is held by others) -> STABLE

The machine does no IO and reads no clock. Invariants:

- A partition is held by at most one member. A member holds a partition that it must revoke until it reports that it no
  longer owns it, leaves, or is removed.
- A refused request changes nothing.
- The machine's state and the log differ by `pending_records` only. All state is derived from records, so that a group
  continues after a crash at any moment.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.consumer.classic_members import ClassicMemberRequests
from anabranch.broker.kafka.groups.consumer.heartbeat import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
)
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember, MemberState
from anabranch.broker.kafka.groups.consumer.topic_image import Partitions, TopicImage
from anabranch.broker.kafka.groups.requests import NEVER_MS, LeavingMember, Now
from anabranch.protocol.errors import ErrorCode, KafkaError


class ConsumerGroupState(StrEnum):
    """States of a consumer group, with the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the assignment epoch."""
    RECONCILING = "Reconciling"
    """Some member has not reached its target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(ClassicMemberRequests):
    """One group. After each call that may change it, write `pending_records` and read `wake_ms`."""

    # -- Requests ------------------------------------------------------------------------------------------------

    def heartbeat(self, request: ConsumerHeartbeat, topics: TopicImage, now: Now) -> ConsumerHeartbeatResponse:
        """Handle ConsumerGroupHeartbeat. Raises KafkaError, with nothing changed."""
        if self._dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if request.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}:
            return self._leave(request)
        self._check_room(request.member_id)
        former = self._find(request)
        if request.topic_regex:
            self._patterns.check(request.topic_regex)
        before = former or ConsumerMember(request.member_id)
        member = _updated(before, request)
        # -- no error is raised from here on
        if former is not None and former.member_id != request.member_id:
            self._rename(former, request.member_id)
        if before.classic is not None:
            self._rebalance_deadlines_ms.pop(member.member_id, None)  # no JoinGroup or SyncGroup is expected any more
        self._put(member)
        self._extend_session(member.member_id, now)
        filtered = self._filter_pattern(member, request.topic_filter, topics, now)
        self._refresh(topics, now, changed=former is None or filtered or _subscription(member) != _subscription(before))
        if self.epoch > self.assignment_epoch:
            self._assign(topics, now)
        reconciled = self._reconcile(member, request.owned, now)
        send_assignment = request.is_full or reconciled.assigned.keys() != before.assigned.keys()
        return ConsumerHeartbeatResponse(
            reconciled.member_id, reconciled.epoch, frozenset(reconciled.assigned) if send_assignment else None
        )

    def remove(self, leavers: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle LeaveGroup, sent by classic members or administrators: return an error code for each member."""
        found = [self._leaver(*leaver) for leaver in leavers]
        gone = [member_id for member_id in found if not isinstance(member_id, ErrorCode)]
        for member_id in dict.fromkeys(gone):
            self._remove(member_id)
        if gone:
            self._after_removal()
        return [member_id if isinstance(member_id, ErrorCode) else ErrorCode.NONE for member_id in found]

    def _leaver(self, member_id: str, instance_id: str | None) -> str | ErrorCode:
        """Return the id of a member, named by its id or instance id alone, or the error why it cannot be removed."""
        found = member_id or self.static.get(instance_id or "", "")
        if found not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.static.get(instance_id) != found:
            return ErrorCode.FENCED_INSTANCE_ID if instance_id in self.static else ErrorCode.UNKNOWN_MEMBER_ID
        return found

    def _after_removal(self) -> None:
        """Raise the group epoch, unless the group is about to be converted to a classic one, which rebalances."""
        if not self.should_downgrade:
            self._raise_epoch()

    def check_commit(self, member_id: str, epoch: int, partitions: Partitions | None) -> ErrorCode:
        """Return why this commit is refused, or NONE.

        A member may commit in its epoch, and in an older one for partitions that were assigned to it in that epoch or
        before (KIP-1251): no other member can have committed them since. `partitions` is None if a topic is unknown.
        """
        if self._dead:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return ErrorCode.NONE
        if member.classic is not None:
            return ErrorCode.ILLEGAL_GENERATION
        if epoch > member.epoch or partitions is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        had_since_then = all(member.assigned.get(partition, epoch + 1) <= epoch for partition in partitions)
        return ErrorCode.NONE if had_since_then else ErrorCode.STALE_MEMBER_EPOCH

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return why a member may not read the group's offsets, or NONE. Tools, without a member id, always may."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def check_delete(self) -> ErrorCode:
        """Return why the group may not be deleted, or NONE."""
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def delete(self) -> list[KeyValue]:
        """Mark the group as deleted and return the tombstones of its records. It must be empty."""
        assert not self.members, "only an empty group is deleted"
        return self.retire()

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead, deleted or converted to a classic one, and return the tombstones of its records."""
        self._dead = True
        self.wake_ms = NEVER_MS
        return self.tombstones()

    def tick(self, now: Now) -> None:
        """Remove members whose session or rebalance timeout has ended; set `wake_ms` to the next deadline."""
        due = {member_id for member_id, deadline_ms in self._session_deadlines_ms.items() if deadline_ms <= now.loop_ms}
        due |= {
            member_id for member_id, deadline_ms in self._rebalance_deadlines_ms.items() if deadline_ms <= now.loop_ms
        }
        for member_id in sorted(due):
            self._remove(member_id)
        if due:
            self._after_removal()
        self.wake_ms = min(
            min(self._session_deadlines_ms.values(), default=NEVER_MS),
            min(self._rebalance_deadlines_ms.values(), default=NEVER_MS),
        )

    # -- Views -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """State of the group as clients see it."""
        if self._dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    # -- Members ---------------------------------------------------------------------------------------------------

    def _find(self, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member that sent a heartbeat, or the static member that it replaces; None for a new member."""
        if request.instance_id is None:
            member = self.members.get(request.member_id)
            if member is None and request.epoch != 0:
                raise self._unknown(request.member_id)
        else:
            member = self.members.get(self.static.get(request.instance_id, ""))
            if request.epoch == 0:
                if member is not None and _is_taken(member, request):
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {request.member_id} with instance id {request.instance_id} cannot join the "
                        f"group because the instance id is owned by {member.member_id} member.",
                    )
                member = member or self.members.get(request.member_id)
            else:
                member = self._static_member(request.instance_id, request.member_id)
        if member is not None and request.epoch != 0:
            _check_epoch(member, request)
        return member

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        if request.instance_id is None:
            if request.member_id not in self.members:
                raise self._unknown(request.member_id)
        else:
            member = self._static_member(request.instance_id, request.member_id)
            if request.epoch == LEAVE_STATIC_EPOCH:
                self._rebalance_deadlines_ms.pop(member.member_id, None)
                self._put(member.with_assignment(LEAVE_STATIC_EPOCH, member.state, member.assigned, {}))
                return ConsumerHeartbeatResponse(member.member_id, LEAVE_STATIC_EPOCH)
        self._remove(request.member_id)
        self._after_removal()
        return ConsumerHeartbeatResponse(request.member_id, request.epoch)


def _updated(member: ConsumerMember, request: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member with the fields of its heartbeat; the same object if none has changed."""
    updated = replace(
        member,
        member_id=request.member_id,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        topic_names=member.topic_names if request.topic_names is None else tuple(sorted(set(request.topic_names))),
        topic_regex=member.topic_regex if request.topic_regex is None else request.topic_regex,
        assignor=member.assignor if request.assignor is None else request.assignor,
        classic=None,
    )
    if request.epoch == 0 and member.epoch != 0:
        # It starts over and owns nothing. Its partitions are still assigned to it: no other member has them.
        updated = replace(updated, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking={})
    return member if updated == member else updated


def _is_taken(member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
    """Return whether another member has the instance id. A classic member can be replaced at any time."""
    return member.classic is None and not member.has_left_temporarily and member.member_id != request.member_id


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    return member.topic_names, member.topic_regex, member.assignor


def _check_epoch(member: ConsumerMember, request: ConsumerHeartbeat) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the epoch is current, or the member has missed only the last response."""
    if request.epoch == member.epoch:
        return
    missed = (
        request.epoch == member.previous_epoch and request.owned is not None and request.owned <= member.assigned.keys()
    )
    if request.epoch > member.epoch or not missed:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {'greater' if request.epoch > member.epoch else 'smaller'} member epoch "
            f"({request.epoch}) than the one known by the group coordinator ({member.epoch}). The member must abandon "
            "all its partitions and rejoin.",
        )
