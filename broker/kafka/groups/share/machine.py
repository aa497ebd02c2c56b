"""The state machine of a share group (KIP-932): takes requests and the time; returns outcomes.

Theory
------
Members of a share group share partitions: no partition must be revoked before another member gets it, so a member is
at its target as soon as it hears of it. As in a consumer group, the *group epoch* goes up whenever the input of the
assignment changes, the *assignment epoch* is that of the target, and the *member epoch* the one that a member has
reached.

A partition is assigned when the share coordinator has a state for it. The first heartbeat that misses one records
that it is being created, and has it created (`create_states`). When that is done, `StatesCreated` records it, and the
next heartbeat assigns the partition.

Invariants:

- Only partitions with a state are assigned.
- What the share coordinator is asked for is recorded first. When a creation is asked for again, or offsets are set,
  it is in a higher group epoch, which is the state epoch: a call that was delayed cannot undo what came after it.
- A refused request changes nothing but deadlines.
- The group is ahead of its log by the records of its outcomes only, and a response waits for them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from anabranch.broker.kafka.groups.interface import Outcome, Response
from anabranch.broker.kafka.groups.modern.machine import ModernMachine
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition, TopicImageGetter
from anabranch.broker.kafka.groups.requests import CommitRequest, GroupRequest, Now
from anabranch.broker.kafka.groups.share.group import ShareGroup
from anabranch.broker.kafka.groups.share.member import ShareMember
from anabranch.broker.kafka.groups.share.requests import (
    AlterOffsets,
    CreateStates,
    DeleteOffsets,
    DeleteStates,
    ShareHeartbeat,
    ShareHeartbeatResponse,
    StatesCreated,
    StatesDeleted,
    StatesToCreate,
)
from anabranch.broker.kafka.groups.share.state_partitions import indexes_of, partitions_of, topic_sets
from anabranch.broker.kafka.share.interface import UNINITIALIZED_START_OFFSET, InitialState, ShareKey
from anabranch.protocol.errors import ErrorCode, KafkaError


class ShareMachine(ModernMachine[ShareGroup]):
    """The state machine of one group."""

    serves = frozenset({"share"})

    def __init__(self, group: ShareGroup, topics: TopicImageGetter, create_states: CreateStates) -> None:
        super().__init__(group, topics)
        self._create_states = create_states

    # -- Requests ----------------------------------------------------------------------------------------------------

    def handle(self, request: GroupRequest[Any], now: Now) -> Outcome:
        """Handle a request of a member, an administrator, or about states."""
        match request:
            case ShareHeartbeat(epoch=epoch) if epoch == LEAVE_EPOCH:
                responses = [Response(request.ticket, self._leave(request))]
            case ShareHeartbeat():
                responses = self._heartbeat(request, now)
            case StatesCreated():
                self._end_creation(request)
                responses = [Response(request.ticket, None)]
            case AlterOffsets():
                responses = [Response(request.ticket, self._alter(request, now))]
            case DeleteOffsets():
                responses = [Response(request.ticket, self._delete_offsets(request))]
            case DeleteStates():
                responses = [Response(request.ticket, self._delete_states())]
            case StatesDeleted():
                self.group.set_states(self.group.states.end_deletion(request.topic_ids))
                responses = [Response(request.ticket, None)]
            case _:
                raise AssertionError(f"{type(request).__name__} is no request to a share group")
        return self._write_changes(now, [each for each in responses if each.ticket is not None])

    def _heartbeat(self, request: ShareHeartbeat, now: Now) -> list[Response]:
        """Handle a member's heartbeat. Raises KafkaError, with nothing changed."""
        group, topics = self.group, self._topics()
        group.check_room(request.member_id)
        former = group.members.get(request.member_id) if request.epoch == 0 else group.require(request.member_id)
        if former is not None:
            _check_epoch(former, request.epoch)
        # -- no error is raised from here on
        before = former or ShareMember(request.member_id)
        member = _updated(before, request)
        group.put(member)
        group.extend_session(member.member_id, now)
        changed = member.topic_names != before.topic_names
        missing = group.missing_states(topics, now)
        rebalance = changed or group.were_asked_for(missing) or group.is_behind_states(topics)
        rebalance = group.refresh(topics, changed=rebalance)
        if group.is_assignment_outdated and group.may_assign(now):
            group.assign(topics, now)
        reconciled = group.reconcile(member, topics, changed=rebalance)
        send_assignment = (
            request.epoch == 0 or request.topic_names is not None or reconciled.assigned != before.assigned
        )
        response = ShareHeartbeatResponse(
            reconciled.member_id, reconciled.epoch, reconciled.assigned if send_assignment else None
        )
        responses = [Response(request.ticket, response)]
        if missing:
            group.begin_creation(missing, now)
            states = self._states_to_create(dict.fromkeys(partitions_of(missing), UNINITIALIZED_START_OFFSET))
            responses.append(Response(self._create_states, states))
        return responses

    def _leave(self, request: ShareHeartbeat) -> ShareHeartbeatResponse:
        self.group.require(request.member_id)
        self._remove([request.member_id])
        return ShareHeartbeatResponse(request.member_id, request.epoch)

    def _after_removal(self) -> None:
        self.group.refresh(self._topics(), changed=True)
        self.group.settle_empty()

    # -- Offsets and states ------------------------------------------------------------------------------------------

    def _alter(self, request: AlterOffsets, now: Now) -> StatesToCreate:
        self._check_empty()
        if request.offsets:
            self.group.raise_epoch()
            self.group.settle_empty()
            self.group.begin_creation(topic_sets(request.offsets, self._topics().names), now)
        return self._states_to_create(request.offsets)

    def _states_to_create(self, offsets: Mapping[TopicIdPartition, int]) -> StatesToCreate:
        group_id, epoch = self.group.group_id, self.group.epoch
        states = {ShareKey(group_id, *each): InitialState(epoch, offset) for each, offset in offsets.items()}
        return StatesToCreate(group_id, states)

    def _end_creation(self, request: StatesCreated) -> None:
        # A topic that was dropped meanwhile is not asked for any more.
        names = {topic_id: name for topic_id, (name, _) in self.group.states.initializing.items()}
        created, failed = topic_sets(request.created, names), topic_sets(request.failed, names)
        self.group.set_states(self.group.states.end_creation(created, failed))

    def _delete_offsets(self, request: DeleteOffsets) -> Mapping[bytes, Collection[ShareKey]]:
        self._check_empty()
        states, names = self.group.states, self._topics().names
        found: dict[bytes, Collection[ShareKey]] = {}
        for topic_id in request.topic_ids:
            indexes = indexes_of(states.initialized, topic_id)
            if topic_id in states.deleting:  # an earlier deletion may have been lost half-way
                indexes |= self._all_indexes(topic_id)
            if indexes and topic_id in names:
                found[topic_id] = [ShareKey(self.group.group_id, topic_id, index) for index in sorted(indexes)]
        if found:
            self.group.set_states(states.begin_deletion({topic_id: names[topic_id] for topic_id in found}))
        return found

    def _delete_states(self) -> Collection[ShareKey]:
        self._check_empty()
        states = self.group.states
        keys = {*partitions_of(states.initializing), *partitions_of(states.initialized)}
        for topic_id in states.deleting:
            keys.update(TopicIdPartition(topic_id, index) for index in self._all_indexes(topic_id))
        if keys:
            self.group.set_states(states.begin_deletion_of_all())
        return [ShareKey(self.group.group_id, *each) for each in sorted(keys)]

    def _all_indexes(self, topic_id: bytes) -> frozenset[int]:
        topics = self._topics()
        topic = topics.by_name.get(topics.names.get(topic_id, ""))
        return frozenset(range(0 if topic is None else topic.partitions))

    def _check_empty(self) -> None:
        if self.group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def forget_topics(self, is_deleted: Callable[[str], bool], now: Now, /) -> Outcome:
        """Drop the states of deleted topics."""
        topics = self._topics()
        gone = {
            topic_id
            for topic_id, name in self.group.states.names()
            # The name may belong to another topic by now, or still to this one, which was created after the deletion.
            if is_deleted(name) and topics.names.get(topic_id) != name
        }
        self.group.drop_topics(gone)
        return self._write_changes(now)

    # -- Others ------------------------------------------------------------------------------------------------------

    def check_commit(self, _commit: CommitRequest, _now: Now, /) -> ErrorCode:
        """Return GROUP_ID_NOT_FOUND: offsets are acknowledged, not committed."""
        return ErrorCode.GROUP_ID_NOT_FOUND


def _updated(member: ShareMember, request: ShareHeartbeat) -> ShareMember:
    """Return the member with the fields of its heartbeat; the same object if none has changed."""
    updated = replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=member.topic_names if request.topic_names is None else tuple(sorted(set(request.topic_names))),
    )
    return member if updated == member else updated


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the member joins, is current, or has missed only the last response."""
    if epoch in {0, member.epoch} or (epoch < member.epoch and epoch == member.previous_epoch):
        return
    known = f"epoch ({epoch}) than the one known by the group coordinator ({member.epoch})"
    if epoch > member.epoch:
        problem = f"greater member {known}"
    else:
        problem = f"smaller member {known}, and it does not match the previous member epoch ({member.previous_epoch})"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a {problem}. The member must abandon all its partitions and rejoin.",
    )
