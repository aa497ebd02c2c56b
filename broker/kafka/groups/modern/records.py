"""Records of a modern group: their keys and order, and which of them the log does not have yet.

Consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) have records of their own kinds.
`RecordKinds` says which, and `GroupRecords` keeps those of one group.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from anabranch.broker.kafka.coordination.log import KeyValue, is_too_large
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, by_topic
from anabranch.protocol.codec import decode_versioned, encode_versioned, read_version
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.embedded.consumer_offsets import TopicPartition

Member = TypeVar("Member")
Target = TypeVar("Target")


class RecordKey(NamedTuple):
    """Key of a record: its kind (the key's version) and its group, then a member id or a pattern."""

    kind: int
    group_id: str
    name: str = ""
    """Empty where the record is the group's."""


ValueGetter: TypeAlias = Callable[[RecordKey], bytes | None]
"""Returns the current value of a record; None if it must be deleted."""


@dataclass(frozen=True, slots=True)
class RecordKinds(Generic[Member, Target]):
    """Kinds of the records of one kind of group, in Kafka's orders, and the values of those that all kinds have.

    Kafka refuses to read a log in which a member or a group is deleted before what belongs to it.
    """

    key_types: Mapping[int, Any]
    """Message of the key: it has a group id, and at most one other field."""
    write_order: Sequence[int]
    deletion_order: Sequence[int]
    epoch: int
    """Kind of the record with the group epoch, whose value is left to the group."""
    target_epoch: int
    target_epoch_type: Any
    """Message of the value: it has the assignment epoch, and the time when the target was computed."""
    target: int
    target_value: Callable[[Target], bytes]
    parse_target: Callable[[bytes], Target]
    member: int
    member_value: Callable[[Member], bytes]
    current: int
    current_value: Callable[[Member], bytes]
    parse_member: Callable[[str, bytes, bytes | None], Member]
    """Decodes a member from its id, its own record, and that of its current assignment if there is one."""

    def key_bytes(self, key: RecordKey) -> bytes:
        """Encode the key of a record."""
        key_type = self.key_types[key.kind]
        names = [field.name for field in fields(key_type)]
        return encode_versioned(key_type(**dict(zip(names, key[1:], strict=False))), key.kind)

    def parse_key(self, raw: bytes) -> RecordKey | None:
        """Decode a key; None if it is of another kind of group. Raises MalformedMessage."""
        kind = read_version(raw)
        key_type = self.key_types.get(kind)
        if key_type is None:
            return None
        found: Any = decode_versioned(key_type, raw)
        return RecordKey(kind, *(getattr(found, field.name) for field in fields(key_type)))

    def target_epoch_value(self, epoch: int, timestamp_ms: int) -> bytes:
        """Encode the epoch of a target assignment, and the time when it was computed."""
        value = self.target_epoch_type(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
        return encode_versioned(value, 0)

    def parse_target_epoch(self, value: bytes) -> tuple[int, int]:
        """Decode the epoch of a target assignment, and the time when it was computed."""
        found: Any = decode_versioned(self.target_epoch_type, value)
        return found.assignment_epoch, found.assignment_timestamp


def topic_partitions(partitions: Partitions) -> list[TopicPartition]:
    """Return partitions as values of records have them."""
    return [TopicPartition(topic_id=topic_id, partitions=indexes) for topic_id, indexes in by_topic(partitions)]


def parse_partitions(topics: Iterable[TopicPartition]) -> Partitions:
    """Return the partitions in the value of a record."""
    return frozenset(TopicIdPartition(topic.topic_id, index) for topic in topics for index in topic.partitions)


class GroupRecords:
    """Records of one group, as they are in the log or on their way to it, and the keys of those that may differ."""

    def __init__(self, group_id: str, kinds: RecordKinds[Any, Any], value: ValueGetter) -> None:
        self._group_id = group_id
        self._kinds = kinds
        self._value = value
        self._written: dict[bytes, bytes] = {}
        self._changed: dict[RecordKey, None] = {}

    @property
    def written(self) -> Mapping[bytes, bytes]:
        """Records that are in the log, or on their way to it."""
        return self._written

    def load(self, stored: Mapping[bytes, bytes]) -> Mapping[RecordKey, bytes]:
        """Take over the records that are in the log, and return them by key. Raises MalformedMessage."""
        self._written = dict(stored)
        return {key: value for raw, value in stored.items() if (key := self._kinds.parse_key(raw)) is not None}

    def mark_changed(self, kind: int, name: str = "") -> None:
        """Note that a record may have changed."""
        self._changed[RecordKey(kind, self._group_id, name)] = None

    def mark_unchanged(self) -> None:
        """Forget which records may have changed: the group is as its log describes it."""
        self._changed.clear()

    def take_changes(self) -> list[KeyValue]:
        """Return the records that differ from the log, to be written now: first deletions, in the order of the changes.

        Raises UNKNOWN_SERVER_ERROR, like Kafka, if they are too large: the group must then be as `written` has it.
        """
        changed = [(key, self._value(key)) for key in self._changed]
        self._changed.clear()
        found = []
        for key, value in sorted(changed, key=self._place):
            raw = self._kinds.key_bytes(key)
            if self._written.get(raw) != value:
                found.append(KeyValue(raw, value))
        if is_too_large(found):
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the records of group {self._group_id} are too large")
        for raw, value in found:
            if value is None:
                del self._written[raw]
            else:
                self._written[raw] = value
        return found

    def _place(self, change: tuple[RecordKey, bytes | None]) -> tuple[bool, int]:
        key, value = change
        return value is not None, 0 if value is None else self._kinds.write_order.index(key.kind)

    def tombstones(self) -> list[KeyValue]:
        """Return the tombstones of all records that are in the log, or on their way to it: first of other kinds."""
        order = {kind: place for place, kind in enumerate(self._kinds.deletion_order)}
        return [KeyValue(raw, None) for raw in sorted(self._written, key=lambda raw: order.get(read_version(raw), -1))]
