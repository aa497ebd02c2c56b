"""Records of `__consumer_offsets`, byte for byte as Apache Kafka writes them, so that its tools can read ours.

An offset is `OffsetCommitKey` v1 -> `OffsetCommitValue` v3 (v1 with an expiry time, which later versions lack), a
classic group `GroupMetadataKey` v2 -> `GroupMetadataValue` v3; a null value deletes. Those of consumer groups are in
`broker.groups.consumer.records`. Other kinds of key are kept as they are: a newer node may have written them.
"""

from typing import NamedTuple, TypeAlias

from broker.coordination.log import KeyValue
from broker.coordination.topic_partition import TopicPartition
from broker.groups.classic.snapshot import GroupSnapshot, MemberSnapshot
from broker.groups.consumer.records import parse_key
from broker.groups.offsets import CommittedOffset
from protocol.codec import decode, decode_exact, encode_versioned, read_version
from protocol.errors import MalformedMessage
from protocol.messages.embedded.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.messages.embedded.consumer_protocol import ConsumerProtocolSubscription

OFFSET_KEY_VERSIONS = (0, 1)
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_EXPIRY = 1
GROUP_VALUE_VERSION = 3


class OffsetRecord(NamedTuple):
    """A committed offset, or its deletion."""

    group_id: str
    key: TopicPartition
    committed: CommittedOffset | None


class GroupRecord(NamedTuple):
    """A group's state, or its deletion."""

    group_id: str
    snapshot: GroupSnapshot | None


class ConsumerRecord(NamedTuple):
    """A piece of a consumer group, or its deletion."""

    group_id: str
    value: bytes | None


class ForeignRecord(NamedTuple):
    """A record of a kind this version does not know."""

    key: bytes
    value: bytes | None


Parsed: TypeAlias = OffsetRecord | GroupRecord | ConsumerRecord | ForeignRecord


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


def group_record(group_id: str, snapshot: GroupSnapshot | None) -> KeyValue:
    """Return the record of a group, or of its deletion."""
    key = encode_versioned(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)
    if snapshot is None:
        return KeyValue(key, None)
    value = GroupMetadataValue(
        protocol_type=snapshot.protocol_type,
        generation=snapshot.generation,
        protocol=snapshot.protocol_name,
        leader=snapshot.leader,
        current_state_timestamp=snapshot.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in snapshot.members
        ],
    )
    return KeyValue(key, encode_versioned(value, GROUP_VALUE_VERSION))


def parse(record: KeyValue) -> Parsed:
    """Read a record back. Raises MalformedMessage if it is of a known kind and does not parse."""
    kind = read_version(record.key)
    if kind in OFFSET_KEY_VERSIONS:
        return _parse_offset(record, kind)
    if kind == GROUP_KEY_VERSION:
        return _parse_group(record)
    if (consumer_key := parse_key(record.key)) is not None:
        return ConsumerRecord(consumer_key.group_id, record.value)
    return ForeignRecord(record.key, record.value)


def _parse_offset(record: KeyValue, key_version: int) -> OffsetRecord:
    key = decode_exact(OffsetCommitKey, record.key, key_version, 2)
    committed = None
    if record.value is not None:
        value = decode_exact(OffsetCommitValue, record.value, read_version(record.value), 2)
        committed = CommittedOffset(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp_ms=value.commit_timestamp,
            expire_timestamp_ms=value.expire_timestamp,
        )
    return OffsetRecord(key.group, TopicPartition(key.topic, key.partition), committed)


def _parse_group(record: KeyValue) -> GroupRecord:
    group_id = decode_exact(GroupMetadataKey, record.key, GROUP_KEY_VERSION, 2).group
    if record.value is None:
        return GroupRecord(group_id, None)
    value = decode_exact(GroupMetadataValue, record.value, read_version(record.value), 2)
    members = tuple(
        MemberSnapshot(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # Version 0 had one timeout for both.
            rebalance_timeout_ms=(
                member.rebalance_timeout if member.rebalance_timeout != -1 else member.session_timeout
            ),
            session_timeout_ms=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    )
    snapshot = GroupSnapshot(
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol_name=value.protocol,
        leader=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=members,
    )
    return GroupRecord(group_id, snapshot)


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, or None if it is in no format we know.

    Topics come first in every version, and version 0 has little else: it is enough to read any of them.
    """
    try:
        subscription, _ = decode(ConsumerProtocolSubscription, metadata, 0, 2)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics)
