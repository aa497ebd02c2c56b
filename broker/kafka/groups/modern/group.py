"""Base of the state of modern groups: members, target assignments, deadlines and records.

Kafka's code calls groups *modern* whose assignment the broker computes. Invariant: this state differs from the log only
by what `records.take_changes` returns.
"""

from collections.abc import Mapping
from typing import ClassVar, Generic, Self, TypeVar

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.groups.modern.deadlines import MemberDeadlines
from anabranch.broker.kafka.groups.modern.member import ModernMember
from anabranch.broker.kafka.groups.modern.records import GroupRecords, RecordKey, RecordKinds
from anabranch.broker.kafka.groups.requests import Now
from anabranch.protocol.errors import ErrorCode, KafkaError

Member = TypeVar("Member", bound=ModernMember)
Target = TypeVar("Target")


class ModernGroup(Generic[Member, Target]):
    """The state of one group and the steps that change it."""

    group_type: ClassVar[str]

    def __init__(
        self, group_id: str, kinds: RecordKinds[Member, Target], *, members_max: int, assignment_epoch: int = 1
    ) -> None:
        self.group_id = group_id
        self._kinds = kinds
        self._members_max = members_max
        self.epoch = 1
        """Group epoch. It begins at 1 as in Kafka, so the first member joins in epoch 2."""
        self.assignment_epoch = assignment_epoch
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.static: dict[str, str] = {}
        """Group instance id to member id."""
        self.deadlines = MemberDeadlines()
        self.is_dead = False
        self._assignment_timestamp_ms = 0
        self._topics_version = -1
        self.records = GroupRecords(group_id, kinds, self._value)

    # -- Views -------------------------------------------------------------------------------------------------------

    @property
    def protocol_type(self) -> str:
        """Type of the members."""
        return self.group_type

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

    def check_fetch(self, member_id: str | None, epoch: int, /) -> ErrorCode:
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

    # -- Records -----------------------------------------------------------------------------------------------------

    def restore(self, stored: Mapping[bytes, bytes], now: Now) -> Self:
        """Make this group, a new one, what its records describe. Members keep their epochs, each with a new session.

        Raises MalformedMessage.
        """
        kinds, found = self._kinds, self.records.load(stored)
        for key, value in found.items():
            if key.kind == kinds.target_epoch:
                self.assignment_epoch, self._assignment_timestamp_ms = kinds.parse_target_epoch(value)
            elif key.kind == kinds.target:
                self.targets[key.name] = kinds.parse_target(value)
            elif key.kind == kinds.member:
                current = found.get(RecordKey(kinds.current, self.group_id, key.name))
                self.put(kinds.parse_member(key.name, value, current))
            else:
                self._restore_other(key, value)
        for member in self.members.values():
            self._begin_deadlines(member, now)
        self.records.mark_unchanged()
        return self

    def _restore_other(self, key: RecordKey, value: bytes) -> None:
        """Take over a record that not all kinds of groups have, or that of the group epoch."""
        raise NotImplementedError

    def _begin_deadlines(self, member: Member, now: Now) -> None:
        """Begin the deadlines of a member that was restored."""
        self.extend_session(member.member_id, now)

    def without_changes(self, now: Now) -> Self:
        """Return the group as the records that are in the log, or on their way to it, describe it.

        Sessions go on as they are: a request that is refused extends that of its own member at most.
        """
        raise NotImplementedError

    def _value(self, key: RecordKey) -> bytes | None:
        """Return the current value of a record; None if it must be deleted."""
        kinds, member = self._kinds, self.members.get(key.name)
        if key.kind == kinds.target_epoch:
            return kinds.target_epoch_value(self.assignment_epoch, self._assignment_timestamp_ms)
        if key.kind == kinds.target:
            target = self.targets.get(key.name)
            return None if target is None else kinds.target_value(target)
        if key.kind == kinds.member:
            return None if member is None else kinds.member_value(member)
        if key.kind == kinds.current:
            return None if member is None else kinds.current_value(member)
        return self._other_value(key)

    def _other_value(self, key: RecordKey) -> bytes | None:
        """Return the current value of a record that not all kinds of groups have, or that of the group epoch."""
        raise NotImplementedError

    def retire(self) -> list[KeyValue]:
        """Mark the group as dead, and return the tombstones of its records."""
        self.is_dead = True
        self.deadlines = MemberDeadlines()
        return self.records.tombstones()

    # -- Members -----------------------------------------------------------------------------------------------------

    def check_room(self, member_id: str, instance_id: str | None = None) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group has no room for this member."""
        limit = self._members_max
        if len(self.members) >= limit and member_id not in self.members and instance_id not in self.static:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The {self.group_type} group has reached its maximum capacity of {limit} members.",
            )

    def require(self, member_id: str) -> Member:
        """Return a member. Raises UNKNOWN_MEMBER_ID."""
        if member_id not in self.members:
            raise self.unknown(member_id)
        return self.members[member_id]

    def unknown(self, member_id: str) -> KafkaError:
        """Return the error of a request of a member that does not exist."""
        return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")

    def require_static(self, instance_id: str, member_id: str) -> Member:
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

    def put(self, member: Member) -> None:
        """Store a member in place of its former state."""
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
        self._hold(member)
        self.records.mark_changed(self._kinds.member, member.member_id)
        self.records.mark_changed(self._kinds.current, member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member, and its target, deadlines and records."""
        member = self.members.pop(member_id)
        self._release(member)
        if member.instance_id is not None:
            self.static.pop(member.instance_id, None)
        self.targets.pop(member_id, None)
        self.deadlines.remove(member_id)
        for kind in (self._kinds.current, self._kinds.target, self._kinds.member):
            self.records.mark_changed(kind, member_id)

    def _hold(self, member: Member) -> None:
        """Note what a member holds, which others must wait for."""

    def _release(self, member: Member) -> None:
        """Undo `_hold`."""

    def extend_session(self, member_id: str, now: Now) -> None:
        """Begin a new session of a member."""
        raise NotImplementedError

    # -- Epochs and targets ------------------------------------------------------------------------------------------

    def raise_epoch(self) -> None:
        """Begin the next group epoch."""
        self.epoch += 1
        self.records.mark_changed(self._kinds.epoch)

    def settle_empty(self) -> None:
        """Bring the assignment epoch of a group without members up to the group epoch: nothing is left to assign."""
        if not self.members:
            self.assignment_epoch, self._assignment_timestamp_ms = self.epoch, 0
            self.records.mark_changed(self._kinds.target_epoch)

    @property
    def assignment_interval_ms(self) -> int:
        """Shortest time between two assignments."""
        raise NotImplementedError

    def may_assign(self, now: Now) -> bool:
        """Return whether enough time has passed since the last assignment.

        One in the future was made by another clock, or before this one was set back: it says nothing.
        """
        since_ms = now.wall_ms - self._assignment_timestamp_ms
        return not self._assignment_timestamp_ms or not 0 <= since_ms < self.assignment_interval_ms

    def _set_targets(self, targets: Mapping[str, Target], now: Now) -> None:
        """Set the target assignments of the current group epoch."""
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                self.targets[member_id] = target
                self.records.mark_changed(self._kinds.target, member_id)
        self.assignment_epoch = self.epoch
        self._assignment_timestamp_ms = now.wall_ms
        self.records.mark_changed(self._kinds.target_epoch)
