"""State of a consumer group: members, target assignment, holders of partitions, deadlines and records (KIP-848).

Requests change it in `broker.kafka.groups.consumer.machine` and `broker.kafka.groups.consumer.classic_members`.
Invariants: a partition is held by at most one member, and this state differs from the log only by what
`records.take_changes` returns.
"""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from anabranch.broker.kafka.configs.group_times import GroupTimes, GroupTimesGetter
from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.assignors import ASSIGNORS, UNIFORM, MemberSpec
from anabranch.broker.kafka.groups.consumer.heartbeat import TopicFilter
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember, MemberState
from anabranch.broker.kafka.groups.consumer.reconciliation import reconcile
from anabranch.broker.kafka.groups.consumer.topic_patterns import TopicPatterns
from anabranch.broker.kafka.groups.interface import UnusedSince
from anabranch.broker.kafka.groups.modern.group import ModernGroup
from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.modern.topic_image import NO_PARTITIONS, Partitions, TopicIdPartition, TopicImage
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode


class ConsumerGroupState(StrEnum):
    """States of a consumer group, with the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The group epoch is ahead of the assignment epoch."""
    RECONCILING = "Reconciling"
    """Some member has not reached its target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroup(ModernGroup[ConsumerMember, Partitions]):
    """The state of one group and the steps that change it."""

    group_type = "consumer"

    def __init__(self, group_id: str, settings: GroupSettings, times: GroupTimesGetter | None = None) -> None:
        super().__init__(group_id, records.KINDS, members_max=settings.members_max, assignment_epoch=0)
        default = GroupTimes(settings.consumer_session_timeout_ms, settings.consumer_assignment_interval_ms)
        self._times = times or (lambda _: default)
        self._settings = settings
        self._topics_hash = 0
        self._holders: dict[TopicIdPartition, str] = {}
        self._patterns = TopicPatterns()

    @classmethod
    def converted(
        cls,
        group_id: str,
        settings: GroupSettings,
        generation: int,
        members: Sequence[ConsumerMember],
        topics: TopicImage,
        now: Now,
        times: GroupTimesGetter | None = None,
    ) -> Self:
        """Return a group of the members of a classic group, each with its assignment, which is also its target."""
        group = cls(group_id, settings, times)
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

    def topics_in_use(self) -> frozenset[str]:
        """Return the topics that members are subscribed to."""
        return self.subscribed_topics()

    def unused_since(self) -> UnusedSince:
        """Return a function that gives the time of an offset's commit, or None if members subscribe to its topic."""
        subscribed = self.subscribed_topics()
        return lambda key, committed: None if key.topic in subscribed else committed.commit_timestamp_ms

    # -- Records -----------------------------------------------------------------------------------------------------

    def _restore_other(self, key: RecordKey, value: bytes) -> None:
        match key.kind:
            case records.EPOCH:
                self.epoch, self._topics_hash = records.parse_epoch(value)
            case records.PATTERN:
                self._patterns.restore(key.name, value)

    def _other_value(self, key: RecordKey) -> bytes | None:
        if key.kind == records.PATTERN:
            return self._patterns.record_value(key.name)
        return records.epoch_value(self.epoch, self._topics_hash)

    def _begin_deadlines(self, member: ConsumerMember, now: Now) -> None:
        self.extend_session(member.member_id, now)
        self._time_reconciliation(member, now)

    def without_changes(self, now: Now) -> Self:
        """Return the group as `ModernGroup` says; classic members keep their deadlines to join and sync, too."""
        group = type(self)(self.group_id, self._settings, self._times).restore(self.records.written, now)
        classic = [member.member_id for member in group.members.values() if member.classic is not None]
        group.deadlines.keep(self.deadlines, classic)
        return group

    # -- Members ---------------------------------------------------------------------------------------------------

    def _hold(self, member: ConsumerMember) -> None:
        for partition in member.held:
            holder = self._holders.setdefault(partition, member.member_id)
            assert holder == member.member_id, "a partition is held by one member"

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            del self._holders[partition]

    def is_free(self, partition: TopicIdPartition, member_id: str) -> bool:
        """Return whether no other member holds a partition."""
        return self._holders.get(partition, member_id) == member_id

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
        """Begin the next group epoch. An empty group has reached it: an assignment to nobody, as in Kafka 4.4."""
        super().raise_epoch()
        self.settle_empty()

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
        self._set_targets(ASSIGNORS[self.assignor](specs, counts), now)

    def reconcile(
        self, member: ConsumerMember, owned: Partitions | None, topics: TopicImage, now: Now
    ) -> ConsumerMember:
        """Bring a member one step closer to its target assignment, and return it."""
        member_id = member.member_id
        target = self.targets.get(member_id, NO_PARTITIONS)
        if self.is_assignment_outdated:
            names = self._subscribed(member)
            target = frozenset(each for each in target if topics.names.get(each.topic_id) in names)
        reconciled = reconcile(
            member,
            target=target,
            target_epoch=self.assignment_epoch,
            owned=owned,
            is_free=lambda partition: self.is_free(partition, member_id),
        )
        if reconciled is not member:
            self.put(reconciled)
            self._time_reconciliation(reconciled, now)
        return reconciled

    # -- Time ------------------------------------------------------------------------------------------------------

    @property
    def assignment_interval_ms(self) -> int:
        """Shortest time between two assignments."""
        return self._times(self.group_id).assignment_interval_ms

    def extend_session(self, member_id: str, now: Now) -> None:
        """Begin a new session of a member."""
        classic = self.members[member_id].classic
        timeout_ms = self._times(self.group_id).session_timeout_ms if classic is None else classic.session_timeout_ms
        self.deadlines.begin_session(member_id, timeout_ms, now)

    def _time_reconciliation(self, member: ConsumerMember, now: Now) -> None:
        """Set the deadline of a member that must revoke partitions. Classic members have deadlines to join and sync."""
        if member.classic is not None:
            return
        if member.state is MemberState.UNREVOKED and not member.has_left_temporarily:
            self.deadlines.begin_rebalance(member, now)
        else:
            self.deadlines.end_rebalance(member.member_id)
