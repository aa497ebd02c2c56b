"""Records of a consumer group in `__consumer_offsets`, byte for byte as Apache Kafka writes them (KIP-848).

A group has several records: its epoch (key version 3) and the epoch of its target assignment (6); for each member its
subscription (5), target (7) and current assignment (8); for each pattern the topics that it matches (16). A null value
deletes. Key version 4, the topics of the last assignment, was written by Kafka before 4.1. Since then the record of the
group's epoch holds a hash instead. Such records are kept but not read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from anabranch.broker.kafka.groups.consumer.member import (
    ClassicMemberMetadata,
    ConsumerMember,
    MemberState,
    PartitionEpochs,
)
from anabranch.broker.kafka.groups.modern.records import RecordKinds, parse_partitions, topic_partitions
from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, by_topic
from anabranch.broker.kafka.groups.requests import MemberProtocol
from anabranch.protocol.codec import decode_versioned, encode_versioned
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages.embedded import consumer_offsets as messages

EPOCH, TOPICS, MEMBER, TARGET_EPOCH, TARGET, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16


def epoch_value(epoch: int, metadata_hash: int) -> bytes:
    """Encode a group's epoch."""
    return encode_versioned(messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash), 0)


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
    value = messages.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions(target))
    return encode_versioned(value, 0)


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


def _held(held: PartitionEpochs) -> list[messages.TopicPartitions]:
    return [
        messages.TopicPartitions(
            topic_id=topic_id,
            partitions=indexes,
            assignment_epochs=[held[TopicIdPartition(topic_id, index)] for index in indexes],
        )
        for topic_id, indexes in by_topic(held)
    ]


def parse_epoch(value: bytes) -> tuple[int, int]:
    """Decode a group's epoch, and the hash of its subscribed topics."""
    found = decode_versioned(messages.ConsumerGroupMetadataValue, value)
    return found.epoch, found.metadata_hash


def parse_target(value: bytes) -> Partitions:
    """Decode a member's target assignment."""
    found = decode_versioned(messages.ConsumerGroupTargetAssignmentMemberValue, value)
    return parse_partitions(found.topic_partitions)


def parse_pattern(value: bytes) -> frozenset[str]:
    """Decode the topics that a pattern matched."""
    found = decode_versioned(messages.ConsumerGroupRegularExpressionValue, value)
    return frozenset(found.topics)


def parse_member(member_id: str, value: bytes, current: bytes | None) -> ConsumerMember:
    """Decode a member from its subscription, and its current assignment if there is one. Raises MalformedMessage."""
    found = decode_versioned(messages.ConsumerGroupMemberMetadataValue, value)
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
    have = decode_versioned(messages.ConsumerGroupCurrentMemberAssignmentValue, current)
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
    epoch=EPOCH,
    target_epoch=TARGET_EPOCH,
    target_epoch_type=messages.ConsumerGroupTargetAssignmentMetadataValue,
    target=TARGET,
    target_value=target_value,
    parse_target=parse_target,
    member=MEMBER,
    member_value=member_value,
    current=CURRENT,
    current_value=current_value,
    parse_member=parse_member,
)
