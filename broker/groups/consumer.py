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

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from broker.groups import consumer_records as records
from broker.groups.consumer_assignors import ASSIGNORS, UNIFORM, MemberSpec
from broker.groups.consumer_member import ConsumerMember, reconcile
from broker.groups.consumer_records import ConsumerKey
from broker.groups.consumer_regex import TopicPattern, compile_pattern
from broker.groups.consumer_values import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    Beat,
    BeatAnswer,
    ConsumerState,
    MemberState,
    Partitions,
    TopicIdPartition,
    TopicImage,
    TopicView,
)
from broker.groups.log import KeyValue
from broker.groups.member import NEVER_MS
from broker.groups.values import Now
from broker.settings import GroupSettings
from protocol.errors import ErrorCode, KafkaError

NOTHING: Partitions = frozenset()


class ConsumerGroup:
    """One group. After each call that may change it, write `pending_records` and look at `wake_ms`."""

    group_type = "consumer"
    protocol_type = "consumer"

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        self.group_id = group_id
        self.epoch = 1
        """Before anything has happened, as in Kafka: the first to join finds itself in epoch 2."""
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.static: dict[str, str] = {}
        """Group instance id to member id."""
        self.wake_ms = NEVER_MS
        self._settings = settings
        self._dead = False
        self._metadata_hash = 0
        self._assignment_timestamp_ms = 0
        self._holders: dict[TopicIdPartition, str] = {}
        self._sessions: dict[str, int] = {}
        """By member id: until when it must be heard of."""
        self._revocations: dict[str, int] = {}
        """By member id: until when it must have given up what it was told to."""
        self._patterns: dict[str, TopicPattern] = {}
        self._matches: dict[str, frozenset[str]] = {}
        """Topics by pattern, as of `_seen_version`."""
        self._pattern_values: dict[str, bytes] = {}
        self._seen_version = -1
        self._written: dict[bytes, bytes] = {}
        self._touched: dict[ConsumerKey, None] = {}

    @classmethod
    def restore(
        cls, group_id: str, settings: GroupSettings, stored: Mapping[bytes, bytes], now: Now
    ) -> "ConsumerGroup":
        """Rebuild a group from its records: members go on in their epochs, each with a fresh session.

        Raises MalformedMessage, or ValueError for a member state that is not known.
        """
        group = cls(group_id, settings)
        group._written = dict(stored)
        found = {key: value for raw, value in stored.items() if (key := records.parse_key(raw)) is not None}
        for key, value in found.items():
            match key.kind:
                case records.EPOCH:
                    group.epoch, group._metadata_hash = records.parse_epoch(value)
                case records.TARGET_EPOCH:
                    group.assignment_epoch, group._assignment_timestamp_ms = records.parse_target_epoch(value)
                case records.TARGET:
                    group.targets[key.name] = records.parse_target(value)
                case records.PATTERN:
                    group._pattern_values[key.name] = value
                    group._matches[key.name] = records.parse_pattern(value)
                case records.MEMBER:
                    current = found.get(ConsumerKey(records.CURRENT, group_id, key.name))
                    group._put(records.parse_member(key.name, value, current))
        for member in group.members.values():
            group._extend_session(member.member_id, now)
            group._time_revocation(member, now)
        group._touched.clear()
        return group

    # -- Requests ------------------------------------------------------------------------------------------------

    def heartbeat(self, beat: Beat, topics: TopicImage, now: Now) -> BeatAnswer:
        """Handle ConsumerGroupHeartbeat. Raises KafkaError, with nothing changed."""
        if self._dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if beat.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}:
            return self._leave(beat)
        self._check_room(beat)
        former = self._find(beat)
        if beat.topic_regex:
            self._pattern(beat.topic_regex)
        before = former or ConsumerMember(beat.member_id)
        member = _updated(before, beat)
        # -- from here on nothing is refused
        if former is not None and former.member_id != beat.member_id:
            self._rename(former, beat.member_id)
        self._put(member)
        self._extend_session(member.member_id, now)
        self._refresh(topics, now, changed=former is None or _subscription(member) != _subscription(before))
        if self.epoch > self.assignment_epoch:
            self._assign(topics, now)
        reconciled = self._reconcile(member, beat.owned, now)
        told = beat.is_full or reconciled.assigned.keys() != before.assigned.keys()
        return BeatAnswer(reconciled.member_id, reconciled.epoch, frozenset(reconciled.assigned) if told else None)

    def remove(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Remove a member because an administrator says so, by its id or by its instance id alone."""
        found = member_id or self.static.get(instance_id or "", "")
        if found not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if instance_id is not None and self.static.get(instance_id) != found:
            return ErrorCode.FENCED_INSTANCE_ID if instance_id in self.static else ErrorCode.UNKNOWN_MEMBER_ID
        self._remove(found)
        self._bump()
        return ErrorCode.NONE

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

    def kill(self) -> list[KeyValue]:
        """Mark the group as deleted and return what deletes its records. It must be empty."""
        assert not self.members, "only an empty group is deleted"
        self._dead = True
        self.wake_ms = NEVER_MS
        return [KeyValue(key, None) for key in self._written]

    def tick(self, now: Now) -> None:
        """Remove members whose session or whose time to give up partitions is over; set `wake_ms` for the next."""
        due = {member_id for member_id, deadline_ms in self._sessions.items() if deadline_ms <= now.loop_ms}
        due |= {member_id for member_id, deadline_ms in self._revocations.items() if deadline_ms <= now.loop_ms}
        for member_id in sorted(due):
            self._remove(member_id)
        if due:
            self._bump()
        self.wake_ms = min(
            min(self._sessions.values(), default=NEVER_MS), min(self._revocations.values(), default=NEVER_MS)
        )

    # -- Views -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ConsumerState:
        """What the group is doing."""
        if self._dead:
            return ConsumerState.DEAD
        if not self.members:
            return ConsumerState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return ConsumerState.STABLE
        return ConsumerState.RECONCILING

    @property
    def assignor(self) -> str:
        """Name of the assignor that most members ask for; the default if none does."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        return max(votes, key=lambda name: (votes[name], name == UNIFORM)) if votes else UNIFORM

    def subscribed_topics(self) -> frozenset[str]:
        """Return the names of all topics that members are subscribed to, by name or by pattern."""
        found: set[str] = set()
        for member in self.members.values():
            found |= self._subscribed(member)
        return frozenset(found)

    @property
    def written(self) -> Mapping[bytes, bytes]:
        """The records that are in the log or on their way there."""
        return self._written

    def pending_records(self) -> list[KeyValue]:
        """Return the records that are to be written now. Call `mark_written` with them, or restore the group."""
        found = []
        for key in self._touched:
            value = self._value(key)
            raw = records.key_bytes(key)
            if self._written.get(raw) != value:
                found.append(KeyValue(raw, value))
        self._touched.clear()
        return found

    def mark_written(self, written: list[KeyValue]) -> None:
        """Note that these records are on their way to the log."""
        for key, value in written:
            if value is None:
                self._written.pop(key, None)
            else:
                self._written[key] = value

    # -- Members ---------------------------------------------------------------------------------------------------

    def _check_room(self, beat: Beat) -> None:
        limit = self._settings.members_max
        if len(self.members) >= limit and beat.member_id not in self.members:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _find(self, beat: Beat) -> ConsumerMember | None:
        """Return the member a heartbeat is of, a predecessor whose place it takes, or None for a new one."""
        if beat.instance_id is None:
            member = self.members.get(beat.member_id)
            if member is None and beat.epoch != 0:
                raise self._unknown(beat.member_id)
        else:
            member = self.members.get(self.static.get(beat.instance_id, ""))
            if beat.epoch == 0:
                if member is not None and not member.has_left_for_now and member.member_id != beat.member_id:
                    raise KafkaError(
                        ErrorCode.UNRELEASED_INSTANCE_ID,
                        f"Static member {beat.member_id} with instance id {beat.instance_id} cannot join the group "
                        f"because the instance id is owned by {member.member_id} member.",
                    )
                member = member or self.members.get(beat.member_id)
            else:
                member = self._static_member(beat)
        if member is not None and beat.epoch != 0:
            _check_epoch(member, beat)
        return member

    def _static_member(self, beat: Beat) -> ConsumerMember:
        member_id = self.static.get(beat.instance_id or "")
        if member_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {beat.instance_id} is unknown.")
        if member_id != beat.member_id:
            raise KafkaError(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {beat.member_id} with instance id {beat.instance_id} was fenced by member {member_id}.",
            )
        return self.members[member_id]

    def _unknown(self, member_id: str) -> KafkaError:
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")

    def _leave(self, beat: Beat) -> BeatAnswer:
        if beat.instance_id is None:
            if beat.member_id not in self.members:
                raise self._unknown(beat.member_id)
        else:
            member = self._static_member(beat)
            if beat.epoch == LEAVE_STATIC_EPOCH:
                self._revocations.pop(member.member_id, None)
                self._put(member.at(LEAVE_STATIC_EPOCH, member.state, member.assigned, {}))
                return BeatAnswer(member.member_id, LEAVE_STATIC_EPOCH)
        self._remove(beat.member_id)
        self._bump()
        return BeatAnswer(beat.member_id, beat.epoch)

    def _put(self, member: ConsumerMember) -> None:
        """Store a member in place of what it was before, and note who holds what."""
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
        self._touch(records.MEMBER, member.member_id)
        self._touch(records.CURRENT, member.member_id)

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self._release(member)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.targets.pop(member_id, None)
        self._sessions.pop(member_id, None)
        self._revocations.pop(member_id, None)
        for kind in (records.CURRENT, records.TARGET, records.MEMBER):
            self._touch(kind, member_id)

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            del self._holders[partition]

    def _rename(self, former: ConsumerMember, member_id: str) -> None:
        """Put a static member that has come back into its predecessor's place, with its target."""
        target = self.targets.get(former.member_id)
        self._remove(former.member_id)
        if target is not None:
            self.targets[member_id] = target
            self._touch(records.TARGET, member_id)

    # -- Subscriptions and targets ---------------------------------------------------------------------------------

    def _refresh(self, topics: TopicImage, now: Now, *, changed: bool) -> None:
        """Look at the topics again if they, or what members want of them, have changed."""
        if not changed and topics.version == self._seen_version:
            return
        self._seen_version = topics.version
        self._match_patterns(topics, now)
        found = _hash_of([topics.by_name[name] for name in self.subscribed_topics() if name in topics.by_name])
        if changed or found != self._metadata_hash:
            self._metadata_hash = found
            self._bump()

    def _bump(self) -> None:
        self.epoch += 1
        self._touch(records.EPOCH)

    def _pattern(self, text: str) -> TopicPattern:
        found = self._patterns.get(text)
        if found is None:
            found = self._patterns[text] = compile_pattern(text)
        return found

    def _match_patterns(self, topics: TopicImage, now: Now) -> None:
        wanted = {member.topic_regex for member in self.members.values() if member.topic_regex}
        for gone in (self._patterns.keys() | self._pattern_values.keys()) - wanted:
            self._patterns.pop(gone, None)
            self._matches.pop(gone, None)
            self._pattern_values.pop(gone, None)
            self._touch(records.PATTERN, gone)
        for text in wanted:
            try:
                pattern = self._pattern(text)
            except KafkaError:
                continue  # from a log that Apache Kafka wrote: it goes on matching what it did then
            matches = pattern.matching(topics.by_name)
            if self._matches.get(text) != matches or text not in self._pattern_values:
                self._matches[text] = matches
                self._pattern_values[text] = records.pattern_value(matches, topics.version, now.wall_ms)
                self._touch(records.PATTERN, text)

    def _subscribed(self, member: ConsumerMember) -> frozenset[str]:
        return self._matches.get(member.topic_regex, frozenset()).union(member.topic_names)

    def _assign(self, topics: TopicImage, now: Now) -> None:
        specs = []
        topic_ids: dict[tuple[tuple[str, ...], str], frozenset[bytes]] = {}
        for member in self.members.values():
            wanted = (member.topic_names, member.topic_regex)
            if wanted not in topic_ids:
                names = self._subscribed(member)
                topic_ids[wanted] = frozenset(topics.by_name[name].topic_id for name in names if name in topics.by_name)
            target = self.targets.get(member.member_id, NOTHING)
            specs.append(MemberSpec(member.member_id, member.instance_id, topic_ids[wanted], target))
        counts = {topic.topic_id: topic.partitions for topic in topics.by_name.values()}
        for member_id, target in ASSIGNORS[self.assignor](specs, counts).items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self._touch(records.TARGET, member_id)
        self.assignment_epoch = self.epoch
        self._assignment_timestamp_ms = now.wall_ms
        self._touch(records.TARGET_EPOCH)

    def _reconcile(self, member: ConsumerMember, owned: Partitions | None, now: Now) -> ConsumerMember:
        member_id = member.member_id
        reconciled = reconcile(
            member,
            target=self.targets.get(member_id, NOTHING),
            target_epoch=self.assignment_epoch,
            owned=owned,
            is_free=lambda partition: self._holders.get(partition, member_id) == member_id,
        )
        if reconciled is not member:
            self._put(reconciled)
            self._time_revocation(reconciled, now)
        return reconciled

    # -- Time and records ------------------------------------------------------------------------------------------

    def _extend_session(self, member_id: str, now: Now) -> None:
        deadline_ms = now.loop_ms + self._settings.consumer_session_timeout_ms
        self._sessions[member_id] = deadline_ms
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def _time_revocation(self, member: ConsumerMember, now: Now) -> None:
        if member.state is MemberState.UNREVOKED and not member.has_left_for_now:
            deadline_ms = now.loop_ms + member.rebalance_timeout_ms
            self._revocations[member.member_id] = deadline_ms
            self.wake_ms = min(self.wake_ms, deadline_ms)
        else:
            self._revocations.pop(member.member_id, None)

    def _touch(self, kind: int, name: str = "") -> None:
        self._touched[ConsumerKey(kind, self.group_id, name)] = None

    def _value(self, key: ConsumerKey) -> bytes | None:
        """Return what the log must say under a key now."""
        member = self.members.get(key.name)
        match key.kind:
            case records.EPOCH:
                return records.epoch_value(self.epoch, self._metadata_hash)
            case records.TARGET_EPOCH:
                return records.target_epoch_value(self.assignment_epoch, self._assignment_timestamp_ms)
            case records.TARGET:
                target = self.targets.get(key.name)
                return None if target is None else records.target_value(target)
            case records.PATTERN:
                return self._pattern_values.get(key.name)
            case records.MEMBER:
                return None if member is None else records.member_value(member)
            case _:
                return None if member is None else records.current_value(member)


def _updated(member: ConsumerMember, beat: Beat) -> ConsumerMember:
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
    )
    if beat.epoch == 0 and member.epoch != 0:
        # It starts over and owns nothing, but nobody else has been given what it had.
        updated = replace(updated, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking={})
    return member if updated == member else updated


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    return member.topic_names, member.topic_regex, member.assignor


def _check_epoch(member: ConsumerMember, beat: Beat) -> None:
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


def _hash_of(topics: list[TopicView]) -> int:
    """Return 64 bits that change when one of these topics is created, deleted or grows.

    Kafka's records hold a hash of its own making; it is only ever compared with one made by the same node.
    """
    if not topics:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for topic in sorted(topics):
        digest.update(topic.topic_id + topic.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
