"""Records of a consumer group in `__consumer_offsets`, byte for byte as Apache Kafka writes them (KIP-848).

A group has several records: its epoch (key version 3) and the epoch of its target assignment (6); for each member its
subscription (5), target (7) and current assignment (8); for each pattern the topics that it matches (16). A null value
deletes. Key version 4, the topics of the last assignment, was written by Kafka before 4.1. Since then the record of the
group's epoch holds a hash instead. Such records are kept but not read.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from anabranch.broker.kafka.groups.consumer.member import (
    ClassicMemberMetadata,
    ConsumerMember,
    MemberState,
    PartitionEpochs,
)
from anabranch.broker.kafka.groups.consumer.topic_image import Partitions, TopicIdPartition
from anabranch.broker.kafka.groups.group_records import RecordKinds
from anabranch.broker.kafka.groups.requests import MemberProtocol
from anabranch.protocol.codec import decode_exact, encode_versioned, read_version
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages.embedded import consumer_offsets as messages

EPOCH, TOPICS, MEMBER, TARGET_EPOCH, TARGET, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16
KINDS = RecordKinds(
    key_types={
        EPOCH: messages.ConsumerGroupMetadataKey,
        TOPICS: messages.ConsumerGroupPartitionMetadataKey,
        MEMBER: messages.ConsumerGroupMemberMetadataKey,
        TARGET_EPOCH: messages.ConsumerGroupTargetAssignmentMetadataKey,
        TARGET: messages.ConsumerGroupTargetAssignmentMemberKey,
        CURRENT: messages.ConsumerGroupCurrentMemberAssignmentKey,
        PATTERN: messages.ConsumerGroupRegularExpressionKey,
    },
    write_order=(MEMBER, PATTERN, EPOCH, TARGET, TARGET_EPOCH, CURRENT),
    deletion_order=(CURRENT, TARGET, TARGET_EPOCH, MEMBER, PATTERN, TOPICS, EPOCH),
)


def epoch_value(epoch: int, metadata_hash: int) -> bytes:
    """Encode a group's epoch."""
    return encode_versioned(messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash), 0)


def target_epoch_value(epoch: int, timestamp_ms: int) -> bytes:
    """Encode the epoch of a target assignment."""
    value = messages.ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return encode_versioned(value, 0)


def member_value(member: ConsumerMember) -> bytes:
    """Encode a member's subscription."""
    value = messages.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=_classic_value(member.classic),
    )
    return encode_versioned(value, 0)


def _classic_value(classic: ClassicMemberMetadata | None) -> messages.ClassicMemberMetadata | None:
    if classic is None:
        return None
    protocols = [messages.ClassicProtocol(name=name, metadata=metadata) for name, metadata in classic.protocols]
    return messages.ClassicMemberMetadata(session_timeout_ms=classic.session_timeout_ms, supported_protocols=protocols)


def _parse_classic(found: messages.ClassicMemberMetadata | None) -> ClassicMemberMetadata | None:
    if found is None or not found.supported_protocols:
        return None  # an empty list is decoded where the field was not written
    protocols = tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in found.supported_protocols)
    return ClassicMemberMetadata(found.session_timeout_ms, protocols)


def target_value(target: Partitions) -> bytes:
    """Encode a member's target assignment."""
    topics = [
        messages.TopicPartition(topic_id=topic_id, partitions=[partition for _, partition in partitions])
        for topic_id, partitions in by_topic(target)
    ]
    return encode_versioned(messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics), 0)


def current_value(member: ConsumerMember) -> bytes:
    """Encode a member's current assignment."""
    value = messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_held(member.assigned),
        partitions_pending_revocation=_held(member.revoking),
    )
    return encode_versioned(value, 0)


def pattern_value(topics: Iterable[str], version: int, timestamp_ms: int) -> bytes:
    """Encode the topics that a pattern matches."""
    value = messages.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version, timestamp=timestamp_ms)
    return encode_versioned(value, 0)


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[bytes, list[TopicIdPartition]]]:
    """Group partitions by topic id, in order."""
    topics: dict[bytes, list[TopicIdPartition]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic_id].append(partition)
    return list(topics.items())


def _held(held: PartitionEpochs) -> list[messages.TopicPartitions]:
    return [
        messages.TopicPartitions(
            topic_id=topic_id,
            partitions=[partition for _, partition in partitions],
            assignment_epochs=[held[partition] for partition in partitions],
        )
        for topic_id, partitions in by_topic(held)
    ]


class EpochValue(NamedTuple):
    """A group's epoch with the hash of its subscribed topics."""

    epoch: int
    metadata_hash: int


def parse_epoch(value: bytes) -> EpochValue:
    """Decode a group's epoch."""
    found = decode_exact(messages.ConsumerGroupMetadataValue, value, read_version(value), 2)
    return EpochValue(found.epoch, found.metadata_hash)


def parse_target_epoch(value: bytes) -> tuple[int, int]:
    """Decode the epoch of a target assignment, and the time when it was computed."""
    found = decode_exact(messages.ConsumerGroupTargetAssignmentMetadataValue, value, read_version(value), 2)
    return found.assignment_epoch, found.assignment_timestamp


def parse_target(value: bytes) -> Partitions:
    """Decode a member's target assignment."""
    found = decode_exact(messages.ConsumerGroupTargetAssignmentMemberValue, value, read_version(value), 2)
    return frozenset(
        TopicIdPartition(topic.topic_id, partition)
        for topic in found.topic_partitions
        for partition in topic.partitions
    )


def parse_pattern(value: bytes) -> frozenset[str]:
    """Decode the topics that a pattern matched."""
    found = decode_exact(messages.ConsumerGroupRegularExpressionValue, value, read_version(value), 2)
    return frozenset(found.topics)


def parse_member(member_id: str, value: bytes, current: bytes | None) -> ConsumerMember:
    """Decode a member from its subscription, and its current assignment if there is one. Raises MalformedMessage."""
    found = decode_exact(messages.ConsumerGroupMemberMetadataValue, value, read_version(value), 2)
    member = ConsumerMember(
        member_id=member_id,
        instance_id=found.instance_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        rebalance_timeout_ms=found.rebalance_timeout_ms,
        topic_names=tuple(found.subscribed_topic_names),
        topic_regex=found.subscribed_topic_regex or "",
        assignor=found.server_assignor,
        classic=_parse_classic(found.classic_member_metadata),
    )
    if current is None:
        return member
    have = decode_exact(messages.ConsumerGroupCurrentMemberAssignmentValue, current, read_version(current), 2)
    if have.state not in set(MemberState):
        raise MalformedMessage(f"member {member_id}: unknown state {have.state}, expected 0, 1 or 2")
    return replace(
        member,
        epoch=have.member_epoch,
        previous_epoch=have.previous_member_epoch,
        state=MemberState(have.state),
        assigned=_parse_held(have.assigned_partitions, have.member_epoch),
        revoking=_parse_held(have.partitions_pending_revocation, have.member_epoch),
    )


def _parse_held(topics: Sequence[messages.TopicPartitions], member_epoch: int) -> dict[TopicIdPartition, int]:
    held: dict[TopicIdPartition, int] = {}
    for topic in topics:
        # Kafka before 4.3 wrote no epochs: the member's own epoch is the safe choice then.
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        for partition, epoch in zip(topic.partitions, epochs, strict=True):
            held[TopicIdPartition(topic.topic_id, partition)] = epoch
    return held
