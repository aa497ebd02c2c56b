"""The state machine of a consumer group (KIP-848): takes requests and the time; returns outcomes.

Theory
------
The broker decides everything. Each member learns its assignment from the responses to its own heartbeats; there is no
barrier at which all members wait. Three epochs measure the progress:

*group epoch*
    Goes up whenever the input of the assignment changes: members, subscriptions, topics, partitions.
*assignment epoch*
    The group epoch for which the *target assignment* was computed, by an assignor in the broker. The first heartbeat
    that finds it behind recomputes it, so a group converges to the newest target and skips those in between. Where an
    interval between assignments is set (KIP-1263), heartbeats wait for its end, and members continue with the last
    target as far as they are still subscribed to its topics.
*member epoch*
    The assignment epoch that a member has reached. To reach it, the member has revoked the partitions outside of its
    target (until it reports that, it keeps its old epoch), and has been assigned those of its target that no other
    member holds. The epoch is in every heartbeat and commit, which fences a member that missed its removal.

    group:   Empty -> Assigning (group epoch ahead) -> Reconciling (some member behind) -> Stable
    member:  STABLE -> UNREVOKED (must revoke) -> UNRELEASED (part of its target is held by others) -> STABLE

Invariants:

- A partition is held by at most one member. A member holds a partition that it must revoke until it reports that it no
  longer owns it, leaves, or is removed.
- A refused request changes nothing but deadlines.
- The group is ahead of its log by the records of its outcomes only, and a response waits for them. All state is derived
  from records, so that a group continues after a crash at any moment.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anabranch.broker.kafka.coordination.log import is_too_large
from anabranch.broker.kafka.groups.classic.kind import begin_classic
from anabranch.broker.kafka.groups.classic.machine import ClassicMachine
from anabranch.broker.kafka.groups.classic.records import group_record
from anabranch.broker.kafka.groups.consumer import classic_members
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember, MemberState
from anabranch.broker.kafka.groups.consumer.migration import to_classic_group
from anabranch.broker.kafka.groups.interface import Outcome, Response
from anabranch.broker.kafka.groups.modern.machine import ModernMachine
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition, TopicImageGetter
from anabranch.broker.kafka.groups.requests import (
    ClassicHeartbeat,
    CommitRequest,
    GroupRequest,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    Now,
    SyncRequest,
)
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError


class ConsumerMachine(ModernMachine[ConsumerGroup]):
    """The state machine of one group."""

    serves = frozenset({"classic", "consumer"})

    def __init__(
        self,
        group: ConsumerGroup,
        settings: GroupSettings,
        topics: TopicImageGetter,
    ) -> None:
        super().__init__(group, topics)
        self._settings = settings

    # -- Requests ------------------------------------------------------------------------------------------------

    def handle(self, request: GroupRequest[Any], now: Now) -> Outcome:
        """Handle a request of a member of either protocol."""
        match request:
            case ConsumerHeartbeat():
                return self._write_changes(now, [Response(request.ticket, self._heartbeat(request, now))])
            case ClassicHeartbeat():
                return Outcome(classic_members.heartbeat(self.group, request, now))
            case JoinRequest():
                return self._join(request, now)
            case SyncRequest():
                response = classic_members.sync(self.group, request, self._topics(), now)
                return Outcome(when_durable=[Response(request.ticket, response)])
            case LeaveRequest():
                errors = self._remove_leavers(request.leavers)
                outcome = self._write_changes(now)
                outcome.answer = errors
                return outcome
        raise AssertionError(f"{type(request).__name__} is no request to a consumer group")

    def _join(self, request: JoinRequest, now: Now) -> Outcome:
        """Handle the JoinGroup of a classic member. An empty group becomes a classic one."""
        if self.group.members:
            response = classic_members.join(self.group, request, self._topics(), now)
            # A static member may have replaced the last one of the consumer protocol: then the assignment stays.
            return self._write_changes(
                now, [Response(request.ticket, response)], rebalance=self.group.is_assignment_outdated
            )
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        outcome = begin_classic(self.group.group_id, request, self._settings, now)
        outcome.records = [*self.retire(), *outcome.records]
        return outcome

    def _heartbeat(self, request: ConsumerHeartbeat, now: Now) -> ConsumerHeartbeatResponse:
        """Handle ConsumerGroupHeartbeat. Raises KafkaError, with nothing changed."""
        group, topics = self.group, self._topics()
        if request.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}:
            return self._leave(request)
        group.check_room(request.member_id)
        former = self._find(request)
        if request.topic_regex:
            group.check_pattern(request.topic_regex)
        before = former or ConsumerMember(request.member_id)
        member = _updated(before, request)
        # -- no error is raised from here on
        if former is not None and former.member_id != request.member_id:
            group.rename(former, request.member_id)
        if before.classic is not None:
            group.deadlines.end_rebalance(member.member_id)  # no JoinGroup or SyncGroup is expected any more
        group.put(member)
        group.extend_session(member.member_id, now)
        filtered = group.filter_pattern(member, request.topic_filter, topics, now)
        group.refresh(topics, now, changed=former is None or filtered or _subscription(member) != _subscription(before))
        if group.is_assignment_outdated and group.may_assign(now):
            group.assign(topics, now)
        reconciled = group.reconcile(member, request.owned, topics, now)
        send_assignment = request.is_full or reconciled.assigned.keys() != before.assigned.keys()
        return ConsumerHeartbeatResponse(
            reconciled.member_id, reconciled.epoch, frozenset(reconciled.assigned) if send_assignment else None
        )

    def _remove_leavers(self, leavers: Sequence[LeavingMember]) -> list[ErrorCode]:
        """Handle LeaveGroup, sent by classic members or administrators: return an error code for each member."""
        found = [self._leaver(*leaver) for leaver in leavers]
        gone = [member_id for member_id in found if not isinstance(member_id, ErrorCode)]
        self._remove(dict.fromkeys(gone))
        return [member_id if isinstance(member_id, ErrorCode) else ErrorCode.NONE for member_id in found]

    def _leaver(self, member_id: str, instance_id: str | None) -> str | ErrorCode:
        """Return the id of a member, named by its id or instance id alone, or the error why it cannot be removed."""
        found = member_id or self.group.static.get(instance_id or "", "")
        if found not in self.group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.group.static.get(instance_id) != found:
            return ErrorCode.FENCED_INSTANCE_ID if instance_id in self.group.static else ErrorCode.UNKNOWN_MEMBER_ID
        return found

    def _after_removal(self) -> None:
        """Raise the group epoch, unless the group is about to be converted to a classic one, which rebalances."""
        if not self.group.should_downgrade:
            self.group.raise_epoch()

    def check_commit(self, commit: CommitRequest, _now: Now, /) -> ErrorCode:
        """Return why this commit is refused, or NONE."""
        if commit.transactional:
            if commit.generation < 0 and not commit.member_id and commit.group_instance_id is None:
                return ErrorCode.NONE  # before KIP-447: only the transaction fences
        elif not commit.knows_member_epochs:
            member = self.group.members.get(commit.member_id)
            if member is not None and member.classic is None:
                return ErrorCode.UNSUPPORTED_VERSION
        topics = self._topics().by_name
        known = all(topic in topics for topic, _ in commit.partitions)
        partitions = [TopicIdPartition(topics[topic].topic_id, index) for topic, index in commit.partitions if known]
        error = self.group.check_commit(commit.member_id, commit.generation, frozenset(partitions) if known else None)
        if error is ErrorCode.STALE_MEMBER_EPOCH and not commit.knows_member_epochs:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    # -- Outcomes ------------------------------------------------------------------------------------------------

    def _write_changes(self, now: Now, responses: Sequence[Response] = (), *, rebalance: bool = True) -> Outcome:
        """Return the changes as an outcome; convert the group to a classic one if only classic members are left."""
        outcome = super()._write_changes(now, responses)
        if self.group.should_downgrade:
            self._downgrade(outcome, now, rebalance=rebalance)
        return outcome

    def _downgrade(self, outcome: Outcome, now: Now, *, rebalance: bool) -> None:
        """Convert the group to a classic one, unless that is too large to store."""
        classic = to_classic_group(self.group, self._topics(), now)
        records = [
            *outcome.records,
            *self.group.records.tombstones(),
            group_record(classic.group_id, classic.snapshot()),
        ]
        if is_too_large(records):
            return
        self.retire()
        outcome.records = records
        machine = ClassicMachine(classic, self._settings)
        if rebalance:
            machine.rebalance(now)
        outcome.successor = machine

    # -- Members ---------------------------------------------------------------------------------------------------

    def _find(self, request: ConsumerHeartbeat) -> ConsumerMember | None:
        """Return the member that sent a heartbeat, or the static member that it replaces; None for a new member."""
        if request.instance_id is None:
            members = self.group.members
            member = members.get(request.member_id) if request.epoch == 0 else self.group.require(request.member_id)
        else:
            member = self.group.members.get(self.group.static.get(request.instance_id, ""))
            if request.epoch == 0:
                if member is not None and _is_taken(member, request):
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {request.member_id} with instance id {request.instance_id} cannot join the "
                        f"group because the instance id is owned by {member.member_id} member.",
                    )
                member = member or self.group.members.get(request.member_id)
            else:
                member = self.group.require_static(request.instance_id, request.member_id)
        if member is not None and request.epoch != 0:
            _check_epoch(member, request)
        return member

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse:
        if request.instance_id is None:
            self.group.require(request.member_id)
        else:
            member = self.group.require_static(request.instance_id, request.member_id)
            if request.epoch == LEAVE_STATIC_EPOCH:
                self.group.deadlines.end_rebalance(member.member_id)
                self.group.put(member.with_assignment(LEAVE_STATIC_EPOCH, member.state, member.assigned, {}))
                return ConsumerHeartbeatResponse(member.member_id, LEAVE_STATIC_EPOCH)
        self._remove([request.member_id])
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
