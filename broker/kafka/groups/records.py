"""Records of `__consumer_offsets`, byte for byte as Apache Kafka writes them, so that its tools can read ours.

A committed offset is `OffsetCommitKey` v1 -> `OffsetCommitValue` v3 (v1 with an expiry time, which later versions
lack). A null value deletes. Records of groups are in the `records` of their kind, such as
`broker.kafka.groups.classic.records`. Other kinds of key are kept as they are: a newer node may have written them.
"""

from typing import NamedTuple, TypeAlias

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.classic.records import GROUP_KEY_VERSION
from anabranch.broker.kafka.groups.consumer import records as consumer_records
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.share import records as share_records
from anabranch.broker.kafka.groups.streams import records as streams_records
from anabranch.protocol.codec import decode_versioned, encode_versioned, read_version
from anabranch.protocol.messages.embedded.consumer_offsets import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)

OFFSET_KEY_VERSIONS = (0, 1)
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1


class OffsetRecord(NamedTuple):
    """A committed offset, or its deletion."""

    group_id: str
    key: TopicPartition
    committed: CommittedOffset | None


class GroupRecord(NamedTuple):
    """A record of a group of any kind, or its deletion."""

    group_id: str
    value: bytes | None


class UnknownRecord(NamedTuple):
    """A record of an unknown kind."""

    key: bytes
    value: bytes | None


OffsetsTopicRecord: TypeAlias = OffsetRecord | GroupRecord | UnknownRecord


def offset_key(group_id: str, key: TopicPartition) -> bytes:
    """Return the record key of a committed offset."""
    return encode_versioned(OffsetCommitKey(group=group_id, topic=key.topic, partition=key.partition), 1)


def offset_record(group_id: str, key: TopicPartition, committed: CommittedOffset | None) -> KeyValue:
    """Return the record of a committed offset, or of its deletion."""
    if committed is None:
        return KeyValue(offset_key(group_id, key), None)
    expires = committed.expire_timestamp_ms != -1
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    version = OFFSET_VALUE_VERSION_WITH_EXPIRY if expires else OFFSET_VALUE_VERSION
    return KeyValue(offset_key(group_id, key), encode_versioned(value, version))


def parse_record(record: KeyValue) -> OffsetsTopicRecord:
    """Decode a record; the value of a group's is left to its kind. Raises MalformedMessage."""
    kind = read_version(record.key)
    if kind in OFFSET_KEY_VERSIONS:
        return _parse_offset(record)
    if kind == GROUP_KEY_VERSION:
        return GroupRecord(decode_versioned(GroupMetadataKey, record.key).group, record.value)
    for records in (consumer_records, share_records, streams_records):
        key = records.KINDS.parse_key(record.key)
        if key is not None:
            return GroupRecord(key.group_id, record.value)
    return UnknownRecord(record.key, record.value)


def _parse_offset(record: KeyValue) -> OffsetRecord:
    key = decode_versioned(OffsetCommitKey, record.key)
    committed = None
    if record.value is not None:
        value = decode_versioned(OffsetCommitValue, record.value)
        committed = CommittedOffset(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp_ms=value.commit_timestamp,
            expire_timestamp_ms=value.expire_timestamp,
        )
    return OffsetRecord(key.group, TopicPartition(key.topic, key.partition), committed)
