"""State of a consumer group: members, target assignment, holders of partitions, deadlines and records (KIP-848).

Requests change it in `broker.kafka.groups.consumer.group` and `broker.kafka.groups.consumer.classic_members`.
Invariants: a partition is held by at most one member, and this state differs from the log by `pending_records` only.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeAlias

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.consumer import records
from anabranch.broker.kafka.groups.consumer.assignors import ASSIGNORS, UNIFORM, MemberSpec
from anabranch.broker.kafka.groups.consumer.heartbeat import TopicFilter
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember, MemberState
from anabranch.broker.kafka.groups.consumer.reconciliation import reconcile
from anabranch.broker.kafka.groups.consumer.records import ConsumerKey
from anabranch.broker.kafka.groups.consumer.topic_image import Partitions, TopicIdPartition, TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.consumer.topic_patterns import TopicPatterns
from anabranch.broker.kafka.groups.requests import NEVER_MS, Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError

NO_PARTITIONS: Partitions = frozenset()
SessionTimeout: TypeAlias = Callable[[str], int]
"""Returns the current session timeout of a group, in ms."""


class ConsumerGroupBase:
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
        self.wake_ms = NEVER_MS
        self._settings = settings
        self._dead = False
        self._topics_hash = 0
        self._assignment_timestamp_ms = 0
        self._holders: dict[TopicIdPartition, str] = {}
        self._session_deadlines_ms: dict[str, int] = {}
        """Deadline of the next heartbeat, by member id."""
        self._rebalance_deadlines_ms: dict[str, int] = {}
        """Deadline by which a member must have revoked partitions, or a classic one joined or synced, by member id."""
        self._patterns = TopicPatterns()
        self._topics_version = -1
        self._written: dict[bytes, bytes] = {}
        self._changed_keys: dict[ConsumerKey, None] = {}

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
        group._written = dict(stored)
        found = {key: value for raw, value in stored.items() if (key := records.parse_key(raw)) is not None}
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
                    current = found.get(ConsumerKey(records.CURRENT, group_id, key.name))
                    group._put(records.parse_member(key.name, value, current))
        for member in group.members.values():
            group._extend_session(member.member_id, now)
            group._time_reconciliation(member, now)
        group._changed_keys.clear()
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
            group._put(member)
            group.targets[member.member_id] = frozenset(member.assigned)
            group._mark_changed(records.TARGET, member.member_id)
            group._extend_session(member.member_id, now)
        group._topics_version, group._topics_hash = topics.version, group._hash_of_subscribed(topics)
        group._mark_changed(records.EPOCH)
        group._mark_changed(records.TARGET_EPOCH)
        return group

    # -- Records -----------------------------------------------------------------------------------------------------

    @property
    def written(self) -> Mapping[bytes, bytes]:
        """The records that are in the log or on their way to it."""
        return self._written

    def pending_records(self) -> list[KeyValue]:
        """Return the records to be written now. Call `mark_written` with them, or restore the group."""
        found = []
        for key in self._changed_keys:
            value = self._value(key)
            raw = records.key_bytes(key)
            if self._written.get(raw) != value:
                found.append(KeyValue(raw, value))
        self._changed_keys.clear()
        return found

    def mark_written(self, written: list[KeyValue]) -> None:
        """Note that these records are on their way to the log."""
        for key, value in written:
            if value is None:
                self._written.pop(key, None)
            else:
                self._written[key] = value

    def tombstones(self) -> list[KeyValue]:
        """Return the tombstones of all records of the group."""
        return [KeyValue(key, None) for key in self._written]

    # -- Members ---------------------------------------------------------------------------------------------------

    def _check_room(self, member_id: str) -> None:
        limit = self._settings.members_max
        if len(self.members) >= limit and member_id not in self.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _static_member(self, instance_id: str, member_id: str) -> ConsumerMember:
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

    def _unknown(self, member_id: str) -> KafkaError:
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")

    def _put(self, member: ConsumerMember) -> None:
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
        self._mark_changed(records.MEMBER, member.member_id)
        self._mark_changed(records.CURRENT, member.member_id)

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._release(member)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.targets.pop(member_id, None)
        self._session_deadlines_ms.pop(member_id, None)
        self._rebalance_deadlines_ms.pop(member_id, None)
        for kind in (records.CURRENT, records.TARGET, records.MEMBER):
            self._mark_changed(kind, member_id)

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            del self._holders[partition]

    def _rename(self, former: ConsumerMember, member_id: str) -> None:
        """Pass the target of a static member on to the member that replaces it, and remove the former."""
        target = self.targets.get(former.member_id)
        self._remove(former.member_id)
        if target is not None:
            self.targets[member_id] = target
            self._mark_changed(records.TARGET, member_id)

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

    def _refresh(self, topics: TopicImage, now: Now, *, changed: bool) -> None:
        """Raise the group epoch if subscriptions have changed, or the topics that they match."""
        if not changed and topics.version == self._topics_version:
            return
        self._topics_version = topics.version
        self._match_patterns(topics, now)
        found = self._hash_of_subscribed(topics)
        if changed or found != self._topics_hash:
            self._topics_hash = found
            self._raise_epoch()

    def _hash_of_subscribed(self, topics: TopicImage) -> int:
        return _hash_of([topics.by_name[name] for name in self.subscribed_topics() if name in topics.by_name])

    def _raise_epoch(self) -> None:
        self.epoch += 1
        self._mark_changed(records.EPOCH)

    def _match_patterns(self, topics: TopicImage, now: Now) -> None:
        subscribed = {each.member_id: each.topic_regex for each in self.members.values() if each.topic_regex}
        for changed in self._patterns.update(subscribed, topics, now.wall_ms):
            self._mark_changed(records.PATTERN, changed)

    def _filter_pattern(
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

    def _assign(self, topics: TopicImage, now: Now) -> None:
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
                self._mark_changed(records.TARGET, member_id)
        self.assignment_epoch = self.epoch
        self._assignment_timestamp_ms = now.wall_ms
        self._mark_changed(records.TARGET_EPOCH)

    def _reconcile(self, member: ConsumerMember, owned: Partitions | None, now: Now) -> ConsumerMember:
        member_id = member.member_id
        reconciled = reconcile(
            member,
            target=self.targets.get(member_id, NO_PARTITIONS),
            target_epoch=self.assignment_epoch,
            owned=owned,
            is_free=lambda partition: self._holders.get(partition, member_id) == member_id,
        )
        if reconciled is not member:
            self._put(reconciled)
            self._time_reconciliation(reconciled, now)
        return reconciled

    # -- Time and records ------------------------------------------------------------------------------------------

    def _extend_session(self, member_id: str, now: Now) -> None:
        classic = self.members[member_id].classic
        timeout_ms = self._session_timeout_ms(self.group_id) if classic is None else classic.session_timeout_ms
        deadline_ms = now.loop_ms + timeout_ms
        self._session_deadlines_ms[member_id] = deadline_ms
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def _time_reconciliation(self, member: ConsumerMember, now: Now) -> None:
        """Set the deadline of a member that must revoke partitions. Classic members have deadlines to join and sync."""
        if member.classic is not None:
            return
        if member.state is MemberState.UNREVOKED and not member.has_left_temporarily:
            self._start_rebalance_timeout(member, now)
        else:
            self._rebalance_deadlines_ms.pop(member.member_id, None)

    def _start_rebalance_timeout(self, member: ConsumerMember, now: Now) -> None:
        deadline_ms = now.loop_ms + member.rebalance_timeout_ms
        self._rebalance_deadlines_ms[member.member_id] = deadline_ms
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def _mark_changed(self, kind: int, name: str = "") -> None:
        self._changed_keys[ConsumerKey(kind, self.group_id, name)] = None

    def _value(self, key: ConsumerKey) -> bytes | None:
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


def _hash_of(topics: list[TopicMetadata]) -> int:
    """Return a hash of 64 bits that changes when one of these topics is created, deleted or grows.

    It differs from the hash that Kafka writes. The hash is only compared with one of the same implementation.
    """
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic in sorted(topics):
        digest.update(topic.topic_id + topic.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
