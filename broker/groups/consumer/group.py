"""The consumer group protocol's state machine (KIP-848): heartbeats, time and topics in; answers and records out.

Theory
------
The broker decides everything, and each member hears of it in answers to its own heartbeats; there is no barrier at
which all members wait. Three epochs tell how far things are:

*group epoch*
    Goes up whenever what an assignment depends on changes: members, subscriptions, topics, partitions.
*assignment epoch*
    The group epoch for which the *target assignment* was computed, by an assignor in the broker. Computed by the first
    heartbeat that finds it behind, so a group always converges to the newest target and never to each in turn.
*member epoch*
    The assignment epoch a member has arrived at, for itself: it has given up what is not in its target (it stays at
    its old epoch until it says so), and has been given what nobody else holds any more. It is sent with every heartbeat
    and commit, which fences a member that has slept through its removal.

    group:   Empty -> Assigning (group epoch ahead) -> Reconciling (some member behind) -> Stable
    member:  STABLE -> UNREVOKED (told what to give up) -> UNRELEASED (some of its target not free yet) -> STABLE

The machine does no IO and reads no clock. It keeps true that

- a partition is held by one member at most, where what a member has been told to give up is held until it says that it
  has let go, leaves, or is removed,
- a refused request changes nothing,
- `pending_records` is all that tells the log's state from the machine's: whatever is in memory is derived from
  records, so that a crash at any moment leaves a group that goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

from broker.coordination.log import KeyValue
from broker.groups.consumer.classic_members import ClassicMemberRequests
from broker.groups.consumer.heartbeat import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
)
from broker.groups.consumer.member import ConsumerMember, MemberState
from broker.groups.consumer.topic_image import Partitions, TopicImage
from broker.groups.requests import NEVER_MS, LeavingMember, Now
from protocol.errors import ErrorCode, KafkaError


class ConsumerGroupState(StrEnum):
    """States of a consumer group, by the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the target assignment's."""
    RECONCILING = "Reconciling"
    """Some member has not arrived at its target."""
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(ClassicMemberRequests):
    """One group. After each call that may change it, write `pending_records` and look at `wake_ms`."""

    # -- Requests ------------------------------------------------------------------------------------------------

    def heartbeat(self, beat: ConsumerHeartbeat, topics: TopicImage, now: Now) -> ConsumerHeartbeatResponse:
        """Handle ConsumerGroupHeartbeat. Raises KafkaError, with nothing changed."""
        if self._dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if beat.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}:
            return self._leave(beat)
        self._check_room(beat.member_id)
        former = self._find(beat)
        if beat.topic_regex:
            self._patterns.check(beat.topic_regex)
        before = former or ConsumerMember(beat.member_id)
        member = _updated(before, beat)
        # -- from here on nothing is refused
        if former is not None and former.member_id != beat.member_id:
            self._rename(former, beat.member_id)
        if before.classic is not None:
            self._rebalance_deadlines_ms.pop(member.member_id, None)  # it joins and syncs no more
        self._put(member)
        self._extend_session(member.member_id, now)
        self._refresh(topics, now, changed=former is None or _subscription(member) != _subscription(before))
        if self.epoch > self.assignment_epoch:
            self._assign(topics, now)
        reconciled = self._reconcile(member, beat.owned, now)
        told = beat.is_full or reconciled.assigned.keys() != before.assigned.keys()
        return ConsumerHeartbeatResponse(
            reconciled.member_id, reconciled.epoch, frozenset(reconciled.assigned) if told else None
        )

    def remove(self, leavers: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle LeaveGroup, of classic members or of an administrator: an error code for each."""
        found = [self._leaver(*leaver) for leaver in leavers]
        gone = [member_id for member_id in found if not isinstance(member_id, ErrorCode)]
        for member_id in dict.fromkeys(gone):
            self._remove(member_id)
        if gone:
            self._members_gone()
        return [member_id if isinstance(member_id, ErrorCode) else ErrorCode.NONE for member_id in found]

    def _leaver(self, member_id: str, instance_id: str | None) -> str | ErrorCode:
        """Return the id of a member, named by its id or by its instance id alone, or why it cannot be removed."""
        found = member_id or self.static.get(instance_id or "", "")
        if found not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.static.get(instance_id) != found:
            return ErrorCode.FENCED_INSTANCE_ID if instance_id in self.static else ErrorCode.UNKNOWN_MEMBER_ID
        return found

    def _members_gone(self) -> None:
        """What removed members had is for others, in a new epoch or in a classic group."""
        if not self.should_downgrade:
            self._raise_epoch()

    def check_commit(self, member_id: str, epoch: int, partitions: Partitions | None) -> ErrorCode:
        """Return why this commit is refused, or NONE.

        A member may commit in its epoch, and in an older one for partitions it has had since then (KIP-1251): then its
        position cannot have been overtaken by anybody's. `partitions` None stands for some whose topic is not known.
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
        """Return why a member may not read the group's offsets, or NONE; tools, which are no members, always may."""
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
        """Mark the group as deleted and return what deletes its records. It must be empty."""
        assert not self.members, "only an empty group is deleted"
        return self.retire()

    def retire(self) -> list[KeyValue]:
        """Mark the group as gone, deleted or become a classic one, and return what deletes its records."""
        self._dead = True
        self.wake_ms = NEVER_MS
        return self.tombstones()

    def tick(self, now: Now) -> None:
        """Remove members whose session or whose time to give up partitions is over; set `wake_ms` for the next."""
        due = {member_id for member_id, deadline_ms in self._session_deadlines_ms.items() if deadline_ms <= now.loop_ms}
        due |= {
            member_id for member_id, deadline_ms in self._rebalance_deadlines_ms.items() if deadline_ms <= now.loop_ms
        }
        for member_id in sorted(due):
            self._remove(member_id)
        if due:
            self._members_gone()
        self.wake_ms = min(
            min(self._session_deadlines_ms.values(), default=NEVER_MS),
            min(self._rebalance_deadlines_ms.values(), default=NEVER_MS),
        )

    # -- Views -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """What the group is doing."""
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

    def _find(self, beat: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member a heartbeat is of, a predecessor whose place it takes, or None for a new one."""
        if beat.instance_id is None:
            member = self.members.get(beat.member_id)
            if member is None and beat.epoch != 0:
                raise self._unknown(beat.member_id)
        else:
            member = self.members.get(self.static.get(beat.instance_id, ""))
            if beat.epoch == 0:
                if member is not None and _is_taken(member, beat):
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join the group "
                        f"because the instance id is owned by {member.member_id} member.",
                    )
                member = member or self.members.get(beat.member_id)
            else:
                member = self._static_member(beat.instance_id, beat.member_id)
        if member is not None and beat.epoch != 0:
            _check_epoch(member, beat)
        return member

    def _leave(self, beat: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        if beat.instance_id is None:
            if beat.member_id not in self.members:
                raise self._unknown(beat.member_id)
        else:
            member = self._static_member(beat.instance_id, beat.member_id)
            if beat.epoch == LEAVE_STATIC_EPOCH:
                self._rebalance_deadlines_ms.pop(member.member_id, None)
                self._put(member.with_assignment(LEAVE_STATIC_EPOCH, member.state, member.assigned, {}))
                return ConsumerHeartbeatResponse(member.member_id, LEAVE_STATIC_EPOCH)
        self._remove(beat.member_id)
        self._members_gone()
        return ConsumerHeartbeatResponse(beat.member_id, beat.epoch)


def _updated(member: ConsumerMember, beat: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member with what its heartbeat says of it; the same object if that is nothing new."""
    updated = replace(
        member,
        member_id=beat.member_id,
        instance_id=member.instance_id if beat.instance_id is None else beat.instance_id,
        rack_id=member.rack_id if beat.rack_id is None else beat.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if beat.rebalance_timeout_ms == -1 else beat.rebalance_timeout_ms
        ),
        topic_names=member.topic_names if beat.topic_names is None else tuple(sorted(set(beat.topic_names))),
        topic_regex=member.topic_regex if beat.topic_regex is None else beat.topic_regex,
        assignor=member.assignor if beat.assignor is None else beat.assignor,
        classic=None,
    )
    if beat.epoch == 0 and member.epoch != 0:
        # It starts over and owns nothing, but nobody else has been given what it had.
        updated = replace(updated, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking={})
    return member if updated == member else updated


def _is_taken(member: ConsumerMember, beat: ConsumerHeartbeat) -> bool:
    """Whether another member holds an instance id: one that speaks the classic protocol can be replaced any time."""
    return member.classic is None and not member.has_left_temporarily and member.member_id != beat.member_id


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    return member.topic_names, member.topic_regex, member.assignor


def _check_epoch(member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member is where we think, or has missed our last answer."""
    if beat.epoch == member.epoch:
        return
    missed = beat.epoch == member.previous_epoch and beat.owned is not None and beat.owned <= member.assigned.keys()
    if beat.epoch > member.epoch or not missed:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {'greater' if beat.epoch > member.epoch else 'smaller'} member epoch "
            f"({beat.epoch}) than the one known by the group coordinator ({member.epoch}). The member must abandon all "
            "its partitions and rejoin.",
        )
