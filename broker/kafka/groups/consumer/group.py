"""State of a consumer group: members, target assignment, holders of partitions, deadlines and records (KIP-848).

Requests change it in `broker.kafka.groups.consumer.machine` and `broker.kafka.groups.consumer.classic_members`.
Invariants: a partition is held by at most one member, and this state differs from the log only by what
`records.take_changes` returns.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Self, TypeAlias

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.assignors import ASSIGNORS, UNIFORM, MemberSpec
from anabranch.broker.kafka.groups.consumer.deadlines import MemberDeadlines
from anabranch.broker.kafka.groups.consumer.heartbeat import TopicFilter
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember, MemberState
from anabranch.broker.kafka.groups.consumer.reconciliation import reconcile
from anabranch.broker.kafka.groups.consumer.topic_image import Partitions, TopicIdPartition, TopicImage
from anabranch.broker.kafka.groups.consumer.topic_patterns import TopicPatterns
from anabranch.broker.kafka.groups.group_records import GroupRecords, RecordKey
from anabranch.broker.kafka.groups.interface import UnusedSince
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

NO_PARTITIONS: Partitions = frozenset()
SessionTimeout: TypeAlias = Callable[[str], int]
"""Returns the current session timeout of a group, in ms."""


class ConsumerGroupState(StrEnum):
    """States of a consumer group, with the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the assignment epoch."""
    RECONCILING = "Reconciling"
    """Some member has not reached its target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup:
    """The state of one group and the steps that change it."""

    group_type = "consumer"
    protocol_type = "consumer"

    def __init__(
        self, group_id: str, settings: GroupSettings, session_timeout_ms: SessionTimeout | None = None
    ) -> None:
        self.group_id = group_id
        self._session_timeout_ms = session_timeout_ms or (lambda _: settings.consumer_session_timeout_ms)
        self.epoch = 1
        """Group epoch. It begins at 1 as in Kafka, so the first member joins in epoch 2."""
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.static: dict[str, str] = {}
        """Group instance id to member id."""
        self.deadlines = MemberDeadlines()
        self._settings = settings
        self.is_dead = False
        self._topics_hash = 0
        self._assignment_timestamp_ms = 0
        self._holders: dict[TopicIdPartition, str] = {}
        self._patterns = TopicPatterns()
        self._topics_version = -1
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
                case records.PATTERN:
                    group._patterns.restore(key.name, value)
                case records.MEMBER:
                    current = found.get(RecordKey(records.CURRENT, group_id, key.name))
                    group.put(records.parse_member(key.name, value, current))
        for member in group.members.values():
            group.extend_session(member.member_id, now)
            group._time_reconciliation(member, now)
        group.records.mark_unchanged()
        return group

    @classmethod
    def converted(
        cls,
        group_id: str,
        settings: GroupSettings,
        generation: int,
        members: Sequence[ConsumerMember],
        topics: TopicImage,
        now: Now,
        session_timeout_ms: SessionTimeout | None = None,
    ) -> Self:
        """Return a group of the members of a classic group, each with its assignment, which is also its target."""
        group = cls(group_id, settings, session_timeout_ms)
        group.epoch = group.assignment_epoch = generation
        group._assignment_timestamp_ms = now.wall_ms
        for member in members:
            group.put(member)
            group.targets[member.member_id] = frozenset(member.assigned)
            group.records.mark_changed(records.TARGET, member.member_id)
            group.extend_session(member.member_id, now)
        group._topics_version, group._topics_hash = topics.version, topics.hash_of(group.subscribed_topics())
        group.records.mark_changed(records.EPOCH)
        group.records.mark_changed(records.TARGET_EPOCH)
        return group

    # -- Views -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerGroupState:
        """State of the group as clients see it."""
        if self.is_dead:
            return ConsumerGroupState.DEAD
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.is_assignment_outdated:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def wake_ms(self) -> int:
        """A lower bound of the next deadline."""
        return self.deadlines.wake_ms

    @property
    def is_unused(self) -> bool:
        """True if the group has no members."""
        return not self.members

    @property
    def is_assignment_outdated(self) -> bool:
        """True if the group epoch is ahead of the assignment epoch: the target assignment must be recomputed."""
        return self.epoch > self.assignment_epoch

    @property
    def should_downgrade(self) -> bool:
        """True if all members use the classic protocol, and the settings allow to convert the group to it."""
        return (
            bool(self.members)
            and self._settings.consumer_migration_policy in {"bidirectional", "downgrade"}
            and all(member.classic is not None for member in self.members.values())
        )

    def check_commit(self, member_id: str, epoch: int, partitions: Partitions | None) -> ErrorCode:
        """Return why this commit is refused, or NONE.

        A member may commit in its epoch, and in an older one for partitions that were assigned to it in that epoch or
        before (KIP-1251): no other member can have committed them since. `partitions` is None if a topic is unknown.
        """
        if self.is_dead:
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

    def check_delete_offsets(self) -> ErrorCode:
        """Return NONE: offsets are checked topic by topic."""
        return ErrorCode.NONE

    def topics_in_use(self) -> frozenset[str]:
        """Return the topics that members are subscribed to."""
        return self.subscribed_topics()

    def unused_since(self) -> UnusedSince:
        """Return a function that gives the time of an offset's commit, or None if members subscribe to its topic."""
        subscribed = self.subscribed_topics()
        return lambda key, committed: None if key.topic in subscribed else committed.commit_timestamp_ms

    # -- Records -----------------------------------------------------------------------------------------------------

    def without_changes(self, now: Now) -> Self:
        """Return the group as the records that are in the log, or on their way to it, describe it.

        Sessions go on as they are: a request that is refused extends that of its own member at most.
        """
        group = self.restore(self.group_id, self._settings, self.records.written, now, self._session_timeout_ms)
        classic = [member.member_id for member in group.members.values() if member.classic is not None]
        group.deadlines.keep(self.deadlines, classic)
        return group

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead, and return the tombstones of its records."""
        self.is_dead = True
        self.deadlines = MemberDeadlines()
        return self.records.tombstones()

    # -- Members ---------------------------------------------------------------------------------------------------

    def check_room(self, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group has no room for this member."""
        limit = self._settings.members_max
        if len(self.members) >= limit and member_id not in self.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
        """Return the static member with this instance id and member id. Raises KafkaError."""
        found = self.static.get(instance_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if found != member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {found}.",
            )
        return self.members[found]

    def unknown(self, member_id: str) -> KafkaError:
        """Return the error of a request of a member that does not exist."""
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")

    def put(self, member: ConsumerMember) -> None:
        """Store a member in place of its former state, and update the holders of partitions."""
        before = self.members.get(member.member_id)
        if before is member:
            return
        if before is not None:
            self._release(before)
            if before.instance_id is not None:
                self.static.pop(before.instance_id, None)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        for partition in member.held:
            holder = self._holders.setdefault(partition, member.member_id)
            assert holder == member.member_id, "a partition is held by one member"
        self.records.mark_changed(records.MEMBER, member.member_id)
        self.records.mark_changed(records.CURRENT, member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, and its target, deadlines and records."""
        member = self.members.pop(member_id)
        self._release(member)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.targets.pop(member_id, None)
        self.deadlines.remove(member_id)
        for kind in (records.CURRENT, records.TARGET, records.MEMBER):
            self.records.mark_changed(kind, member_id)

    def is_free(self, partition: TopicIdPartition, member_id: str) -> bool:
        """Return whether no other member holds a partition."""
        return self._holders.get(partition, member_id) == member_id

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            del self._holders[partition]

    def rename(self, former: ConsumerMember, member_id: str) -> None:
        """Pass the target of a static member on to the member that replaces it, and remove the former."""
        target = self.targets.get(former.member_id)
        self.remove(former.member_id)
        if target is not None:
            self.targets[member_id] = target
            self.records.mark_changed(records.TARGET, member_id)

    # -- Subscriptions and targets ---------------------------------------------------------------------------------

    @property
    def assignor(self) -> str:
        """Name of the assignor that most members ask for, the default if none does."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        return max(votes, key=lambda name: (votes[name], name == UNIFORM)) if votes else UNIFORM

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of all topics that members are subscribed to, by name or pattern."""
        found: set[str] = set()
        for member in self.members.values():
            found |= self._subscribed(member)
        return frozenset(found)

    def refresh(self, topics: TopicImage, now: Now, *, changed: bool) -> None:
        """Raise the group epoch if subscriptions have changed, or the topics that they match."""
        if not changed and topics.version == self._topics_version:
            return
        self._topics_version = topics.version
        self._match_patterns(topics, now)
        found = topics.hash_of(self.subscribed_topics())
        if changed or found != self._topics_hash:
            self._topics_hash = found
            self.raise_epoch()

    def raise_epoch(self) -> None:
        """Begin the next group epoch."""
        self.epoch += 1
        self.records.mark_changed(records.EPOCH)
        if not self.members:  # an assignment to nobody, as in Kafka 4.4
            self.assignment_epoch, self._assignment_timestamp_ms = self.epoch, 0
            self.records.mark_changed(records.TARGET_EPOCH)

    def check_pattern(self, pattern: str) -> None:
        """Raise KafkaError for an invalid pattern of topic names."""
        self._patterns.check(pattern)

    def _match_patterns(self, topics: TopicImage, now: Now) -> None:
        subscribed = {each.member_id: each.topic_regex for each in self.members.values() if each.topic_regex}
        for changed in self._patterns.update(subscribed, topics, now.wall_ms):
            self.records.mark_changed(records.PATTERN, changed)

    def filter_pattern(
        self, member: ConsumerMember, topic_filter: TopicFilter | None, topics: TopicImage, now: Now
    ) -> bool:
        """Let a member's pattern match those topics only that it may know of. Returns whether it matches others now."""
        if not member.topic_regex:
            return False
        before = self._matched(member)
        if not self._patterns.note_filter(member.member_id, topic_filter):
            return False
        self._match_patterns(topics, now)
        return self._matched(member) != before

    def _matched(self, member: ConsumerMember) -> frozenset[str]:
        return self._patterns.matches(member.member_id, member.topic_regex)

    def _subscribed(self, member: ConsumerMember) -> frozenset[str]:
        return self._matched(member).union(member.topic_names)

    def assign(self, topics: TopicImage, now: Now) -> None:
        """Compute the target assignment of the current group epoch."""
        specs = []
        topic_ids: dict[tuple[tuple[str, ...], frozenset[str]], frozenset[bytes]] = {}
        for member in self.members.values():
            subscription = (member.topic_names, self._matched(member))
            if subscription not in topic_ids:
                names = self._subscribed(member)
                topic_ids[subscription] = frozenset(
                    topics.by_name[name].topic_id for name in names if name in topics.by_name
                )
            target = self.targets.get(member.member_id, NO_PARTITIONS)
            specs.append(MemberSpec(member.member_id, member.instance_id, topic_ids[subscription], target))
        counts = {topic.topic_id: topic.partitions for topic in topics.by_name.values()}
        for member_id, target in ASSIGNORS[self.assignor](specs, counts).items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self.records.mark_changed(records.TARGET, member_id)
        self.assignment_epoch = self.epoch
        self._assignment_timestamp_ms = now.wall_ms
        self.records.mark_changed(records.TARGET_EPOCH)

    def reconcile(self, member: ConsumerMember, owned: Partitions | None, now: Now) -> ConsumerMember:
        """Bring a member one step closer to its target assignment, and return it."""
        member_id = member.member_id
        reconciled = reconcile(
            member,
            target=self.targets.get(member_id, NO_PARTITIONS),
            target_epoch=self.assignment_epoch,
            owned=owned,
            is_free=lambda partition: self.is_free(partition, member_id),
        )
        if reconciled is not member:
            self.put(reconciled)
            self._time_reconciliation(reconciled, now)
        return reconciled

    # -- Time and records ------------------------------------------------------------------------------------------

    def extend_session(self, member_id: str, now: Now) -> None:
        """Begin a new session of a member."""
        classic = self.members[member_id].classic
        timeout_ms = self._session_timeout_ms(self.group_id) if classic is None else classic.session_timeout_ms
        self.deadlines.begin_session(member_id, timeout_ms, now)

    def _time_reconciliation(self, member: ConsumerMember, now: Now) -> None:
        """Set the deadline of a member that must revoke partitions. Classic members have deadlines to join and sync."""
        if member.classic is not None:
            return
        if member.state is MemberState.UNREVOKED and not member.has_left_temporarily:
            self.deadlines.begin_rebalance(member, now)
        else:
            self.deadlines.end_rebalance(member.member_id)

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
            case records.PATTERN:
                return self._patterns.record_value(key.name)
            case records.MEMBER:
                return None if member is None else records.member_value(member)
            case _:
                return None if member is None else records.current_value(member)
