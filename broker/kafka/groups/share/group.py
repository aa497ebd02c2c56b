"""State of a share group: members, target assignment, states of its partitions, deadlines and records (KIP-932).

Requests change it in `broker.kafka.groups.share.machine`. Invariant: this state differs from the log only by what
`records.take_changes` returns.
"""

from collections import Counter
from collections.abc import Collection
from enum import StrEnum
from typing import Self

from anabranch.broker.kafka.configs.group_times import GroupTimes, GroupTimesGetter
from anabranch.broker.kafka.groups.interface import UnusedSince
from anabranch.broker.kafka.groups.modern.group import ModernGroup
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.modern.topic_image import NO_PARTITIONS, Partitions, TopicImage, TopicMetadata
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
from anabranch.protocol.errors import ErrorCode

NO_STATES = StatePartitions()


class ShareGroupState(StrEnum):
    """States of a share group, with the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroup(ModernGroup[ShareMember, Partitions]):
    """The state of one group and the steps that change it."""

    group_type = "share"

    def __init__(self, group_id: str, settings: GroupSettings, times: GroupTimesGetter | None = None) -> None:
        super().__init__(group_id, records.KINDS, members_max=settings.share_members_max)
        self._settings = settings
        default = GroupTimes(settings.share_session_timeout_ms, settings.share_assignment_interval_ms)
        self._times = times or (lambda _: default)
        self._subscriptions: Counter[str] = Counter()
        """Number of members by topic that they are subscribed to."""
        self.states = NO_STATES
        self._has_states_record = False
        self._asked_ms: dict[bytes, int] = {}
        """Time of the last request for states, by topic id. Those of a topic that is missing are asked for again."""
        self._topics_hash = 0
        self._unchecked = True
        """True if subscriptions, topics, targets or states have changed since `is_behind_states` was computed."""

    # -- Views -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ShareGroupState:
        """State of the group as clients see it."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """True if the group is neither in the log nor on its way to it. Others never expire: they have no offsets."""
        return not self.members and not self.records.written

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

    def _restore_other(self, key: RecordKey, value: bytes) -> None:
        match key.kind:
            case records.EPOCH:
                self.epoch, self._topics_hash = records.parse_epoch(value)
            case records.STATES:
                self.states, self._has_states_record = records.parse_states(value), True

    def _other_value(self, key: RecordKey) -> bytes | None:
        if key.kind == records.STATES:
            return records.states_value(self.states) if self._has_states_record else None
        return records.epoch_value(self.epoch, self._topics_hash)

    def without_changes(self, now: Now) -> Self:
        """Return the group as `ModernGroup` says."""
        group = type(self)(self.group_id, self._settings, self._times).restore(self.records.written, now)
        group.deadlines.keep(self.deadlines, ())
        return group

    # -- Members -----------------------------------------------------------------------------------------------------

    def put(self, member: ShareMember) -> None:
        """Store a member in place of its former state."""
        before = self.members.get(member.member_id)
        if before is None or before.topic_names != member.topic_names:
            self._unchecked = True
            self._subscriptions.update(member.topic_names)
            if before is not None:
                self._unsubscribe(before)
        super().put(member)

    def remove(self, member_id: str) -> None:
        """Remove a member, and its target, deadlines and records."""
        self._unsubscribe(self.members[member_id])
        self._unchecked = True
        super().remove(member_id)

    def _unsubscribe(self, member: ShareMember) -> None:
        self._subscriptions.subtract(member.topic_names)
        for name in member.topic_names:
            if not self._subscriptions[name]:
                del self._subscriptions[name]

    @property
    def assignment_interval_ms(self) -> int:
        """Shortest time between two assignments."""
        return self._times(self.group_id).assignment_interval_ms

    def extend_session(self, member_id: str, now: Now) -> None:
        """Begin a new session of a member."""
        self.deadlines.begin_session(member_id, self._times(self.group_id).session_timeout_ms, now)

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
        self._set_targets(assign_simple(specs, assignable), now)

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
