"""State of a share group: members, target assignment, states of its partitions, deadlines and records (KIP-932).

Requests change it in `broker.kafka.groups.share.machine`. Invariant: this state differs from the log only by what
`records.take_changes` returns.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Self

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.consumer.deadlines import MemberDeadlines
from anabranch.broker.kafka.groups.consumer.group import SessionTimeout
from anabranch.broker.kafka.groups.consumer.topic_image import Partitions, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.group_records import GroupRecords, RecordKey
from anabranch.broker.kafka.groups.interface import UnusedSince
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.kafka.groups.share import records
from anabranch.broker.kafka.groups.share.assignor import ShareMemberSpec, assign_simple
from anabranch.broker.kafka.groups.share.member import ShareMember
from anabranch.broker.kafka.groups.share.state_partitions import (
    StatePartitions,
    TopicPartitionSet,
    TopicSets,
    indexes_of,
)
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

NO_PARTITIONS: Partitions = frozenset()
NO_STATES = StatePartitions()


class ShareGroupState(StrEnum):
    """States of a share group, with the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup:
    """The state of one group and the steps that change it."""

    group_type = "share"
    protocol_type = "share"

    def __init__(
        self, group_id: str, settings: GroupSettings, session_timeout_ms: SessionTimeout | None = None
    ) -> None:
        self.group_id = group_id
        self._settings = settings
        self._session_timeout_ms = session_timeout_ms or (lambda _: settings.share_session_timeout_ms)
        self.epoch = 1
        """Group epoch. It begins at 1 as in Kafka, so the first member joins in epoch 2."""
        self.assignment_epoch = 1
        self.members: dict[str, ShareMember] = {}
        self._subscriptions: Counter[str] = Counter()
        """Number of members by topic that they are subscribed to."""
        self.targets: dict[str, Partitions] = {}
        self.states = NO_STATES
        self.deadlines = MemberDeadlines()
        self.is_dead = False
        self._has_states_record = False
        self._asked_ms: dict[bytes, int] = {}
        """Time of the last request for states, by topic id. Those of a topic that is missing are asked for again."""
        self._topics_hash = 0
        self._topics_version = -1
        self._assignment_timestamp_ms = 0
        self._unchecked = True
        """True if subscriptions, topics, targets or states have changed since `is_behind_states` was computed."""
        self.records = GroupRecords(group_id, records.KINDS, self._value)

    @classmethod
    def restore(
        cls,
        group_id: str,
        settings: GroupSettings,
        stored: Mapping[bytes, bytes],
        now: Now,
        session_timeout_ms: SessionTimeout | None = None,
    ) -> Self:
        """Rebuild a group from its records. Members keep their epochs, each with a new session.

        Raises MalformedMessage.
        """
        group = cls(group_id, settings, session_timeout_ms)
        found = group.records.load(stored)
        for key, value in found.items():
            match key.kind:
                case records.EPOCH:
                    group.epoch, group._topics_hash = records.parse_epoch(value)
                case records.TARGET_EPOCH:
                    group.assignment_epoch, group._assignment_timestamp_ms = records.parse_target_epoch(value)
                case records.TARGET:
                    group.targets[key.name] = records.parse_target(value)
                case records.STATES:
                    group.states, group._has_states_record = records.parse_states(value), True
                case records.MEMBER:
                    current = found.get(RecordKey(records.CURRENT, group_id, key.name))
                    group.put(records.parse_member(key.name, value, current))
        for member_id in group.members:
            group.extend_session(member_id, now)
        group.records.mark_unchanged()
        return group

    # -- Views -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ShareGroupState:
        """State of the group as clients see it."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def wake_ms(self) -> int:
        """A lower bound of the next deadline."""
        return self.deadlines.wake_ms

    @property
    def is_unused(self) -> bool:
        """True if the group is neither in the log nor on its way to it. Others never expire: they have no offsets."""
        return not self.members and not self.records.written

    def check_delete(self) -> ErrorCode:
        """Return why the group may not be deleted, or NONE."""
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def check_delete_offsets(self) -> ErrorCode:
        """Return GROUP_ID_NOT_FOUND: a share group has no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def check_fetch(self, _member_id: str | None, _epoch: int, /) -> ErrorCode:
        """Return NONE: as in Kafka, a share group is read as one without committed offsets."""
        return ErrorCode.NONE

    def topics_in_use(self) -> frozenset[str]:
        """Return the topics that members are subscribed to."""
        return self.subscribed_topics()

    def unused_since(self) -> UnusedSince:
        """Return a function that gives the time of an offset's commit."""
        return lambda _, committed: committed.commit_timestamp_ms

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of all topics that members are subscribed to."""
        return frozenset(self._subscriptions)

    # -- Records -----------------------------------------------------------------------------------------------------

    def without_changes(self, now: Now) -> Self:
        """Return the group as the records that are in the log, or on their way to it, describe it."""
        group = self.restore(self.group_id, self._settings, self.records.written, now, self._session_timeout_ms)
        group.deadlines.keep(self.deadlines, ())
        return group

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead, and return the tombstones of its records."""
        self.is_dead = True
        self.deadlines = MemberDeadlines()
        return self.records.tombstones()

    # -- Members -----------------------------------------------------------------------------------------------------

    def check_room(self, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group has no room for this member."""
        limit = self._settings.share_members_max
        if len(self.members) >= limit and member_id not in self.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The share group has reached its maximum capacity of {limit} members.",
            )

    def require(self, member_id: str) -> ShareMember:
        """Return a member. Raises UNKNOWN_MEMBER_ID."""
        member = self.members.get(member_id)
        if member is None:
            message = f"Member {member_id} is not a member of group {self.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, message)
        return member

    def put(self, member: ShareMember) -> None:
        """Store a member in place of its former state."""
        before = self.members.get(member.member_id)
        if before is member:
            return
        if before is None or before.topic_names != member.topic_names:
            self._unchecked = True
            self._subscriptions.update(member.topic_names)
            if before is not None:
                self._unsubscribe(before)
        self.members[member.member_id] = member
        self.records.mark_changed(records.MEMBER, member.member_id)
        self.records.mark_changed(records.CURRENT, member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, and its target, deadlines and records."""
        self._unsubscribe(self.members.pop(member_id))
        self.targets.pop(member_id, None)
        self.deadlines.remove(member_id)
        self._unchecked = True
        for kind in (records.CURRENT, records.TARGET, records.MEMBER):
            self.records.mark_changed(kind, member_id)

    def _unsubscribe(self, member: ShareMember) -> None:
        self._subscriptions.subtract(member.topic_names)
        for name in member.topic_names:
            if not self._subscriptions[name]:
                del self._subscriptions[name]

    def extend_session(self, member_id: str, now: Now) -> None:
        """Begin a new session of a member."""
        self.deadlines.begin_session(member_id, self._session_timeout_ms(self.group_id), now)

    # -- Subscriptions and targets -----------------------------------------------------------------------------------

    def refresh(self, topics: TopicImage, *, changed: bool) -> bool:
        """Raise the group epoch if subscriptions have changed, or the topics that they name. Returns whether it has."""
        if topics.version != self._topics_version:
            self._topics_version = topics.version
            self._unchecked = True
            self.drop_replaced(topics)
        elif not changed:
            return False
        found = topics.hash_of(self.subscribed_topics())
        changed = changed or found != self._topics_hash
        if changed:
            self._topics_hash = found
            self.raise_epoch()
        return changed

    def raise_epoch(self) -> None:
        """Begin the next group epoch."""
        self.epoch += 1
        self.records.mark_changed(records.EPOCH)

    def settle_empty(self) -> None:
        """Bring the assignment epoch of a group without members up to the group epoch: nothing is left to assign."""
        if not self.members:
            self.assignment_epoch, self._assignment_timestamp_ms = self.epoch, 0
            self.records.mark_changed(records.TARGET_EPOCH)

    def is_behind_states(self, topics: TopicImage) -> bool:
        """Return whether other partitions are assigned than those that have a state."""
        if not self.members or not (self._unchecked or topics.version != self._topics_version):
            return False
        self._unchecked = False
        assigned = frozenset[tuple[bytes, int]]().union(*self.targets.values())
        wanted = {
            (topic.topic_id, index)
            for topic in self._subscribed(topics)
            for index in indexes_of(self.states.initialized, topic.topic_id)
            if index < topic.partitions
        }
        return assigned != wanted

    def assign(self, topics: TopicImage, now: Now) -> None:
        """Compute the target assignment of the current group epoch, of the partitions that have a state."""
        topic_ids: dict[tuple[str, ...], frozenset[bytes]] = {}
        specs = []
        for member in self.members.values():
            names = member.topic_names
            if names not in topic_ids:
                topic_ids[names] = frozenset(topics.by_name[name].topic_id for name in names if name in topics.by_name)
            target = self.targets.get(member.member_id, NO_PARTITIONS)
            specs.append(ShareMemberSpec(member.member_id, topic_ids[names], target))
        assignable = {
            topic.topic_id: [
                index for index in indexes_of(self.states.initialized, topic.topic_id) if index < topic.partitions
            ]
            for topic in self._subscribed(topics)
        }
        for member_id, target in assign_simple(specs, assignable).items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self.records.mark_changed(records.TARGET, member_id)
        self.assignment_epoch = self.epoch
        self._assignment_timestamp_ms = now.wall_ms
        self.records.mark_changed(records.TARGET_EPOCH)

    def reconcile(self, member: ShareMember, topics: TopicImage, *, changed: bool) -> ShareMember:
        """Bring a member to its target assignment, and return it. `changed`: the subscription is another now."""
        if member.epoch == self.assignment_epoch and not changed:
            return member
        subscribed = {topics.by_name[name].topic_id for name in member.topic_names if name in topics.by_name}
        target = self.targets.get(member.member_id, NO_PARTITIONS)
        assigned = frozenset(partition for partition in target if partition.topic_id in subscribed)
        if (member.epoch, member.assigned) == (self.assignment_epoch, assigned):
            return member
        reconciled = member.with_assignment(self.assignment_epoch, assigned)
        self.put(reconciled)
        return reconciled

    def _subscribed(self, topics: TopicImage) -> Collection[TopicMetadata]:
        return [topics.by_name[name] for name in self.subscribed_topics() if name in topics.by_name]

    # -- States of partitions ----------------------------------------------------------------------------------------

    def missing_states(self, topics: TopicImage, now: Now) -> TopicSets:
        """Return the partitions of subscribed topics whose state must be created, or asked for again."""
        patience_ms = self._settings.share_initialize_retry_interval_ms
        missing = {}
        for topic in self._subscribed(topics):
            known = indexes_of(self.states.initialized, topic.topic_id)
            asked_ms = self._asked_ms.get(topic.topic_id)
            if asked_ms is not None and now.steady_ms < asked_ms + patience_ms:
                known |= indexes_of(self.states.initializing, topic.topic_id)
            if len(known) < topic.partitions:
                indexes = frozenset(range(topic.partitions)) - known
                missing[topic.topic_id] = TopicPartitionSet(topic.name, indexes)
        return missing

    def were_asked_for(self, sets: TopicSets) -> bool:
        """Return whether the creation of some of these states has begun before."""
        return any(indexes & indexes_of(self.states.initializing, topic_id) for topic_id, (_, indexes) in sets.items())

    def begin_creation(self, asked: TopicSets, now: Now) -> None:
        """Record that the creation of states begins."""
        self.set_states(self.states.begin_creation(asked))
        self._asked_ms.update(dict.fromkeys(asked, now.steady_ms))

    def drop_replaced(self, topics: TopicImage) -> None:
        """Drop the states of topics that were deleted, and created again with another id."""
        gone = {
            topic_id
            for topic_id, name in self.states.names()
            if (topic := topics.by_name.get(name)) is not None and topic.topic_id != topic_id
        }
        self.drop_topics(gone)

    def drop_topics(self, topic_ids: Collection[bytes]) -> None:
        """Drop the states of deleted topics. The share coordinator drops them by itself."""
        if topic_ids:
            self.set_states(self.states.without_topics(topic_ids))

    def set_states(self, states: StatePartitions) -> None:
        """Record which states there are, and which are being created or deleted."""
        self.states = states
        self._has_states_record = True
        self._unchecked = True
        self._asked_ms = {topic_id: ms for topic_id, ms in self._asked_ms.items() if topic_id in states.initializing}
        self.records.mark_changed(records.STATES)

    # -- Changed records ---------------------------------------------------------------------------------------------

    def _value(self, key: RecordKey) -> bytes | None:
        """Return the current value of a record; None if it must be deleted."""
        member = self.members.get(key.name)
        match key.kind:
            case records.EPOCH:
                return records.epoch_value(self.epoch, self._topics_hash)
            case records.TARGET_EPOCH:
                return records.target_epoch_value(self.assignment_epoch, self._assignment_timestamp_ms)
            case records.TARGET:
                target = self.targets.get(key.name)
                return None if target is None else records.target_value(target)
            case records.STATES:
                return records.states_value(self.states) if self._has_states_record else None
            case records.MEMBER:
                return None if member is None else records.member_value(member)
            case _:
                return None if member is None else records.current_value(member)
