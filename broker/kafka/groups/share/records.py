"""Records of a share group in `__consumer_offsets`, byte for byte as Apache Kafka writes them (KIP-932).

A group has several records: its epoch (key version 11), the epoch of its target assignment (12), and the partitions
whose states the share coordinator keeps (15); for each member its subscription (10), target (13) and current assignment
(14). A null value deletes.
"""

from collections.abc import Iterable
from dataclasses import replace

from anabranch.broker.kafka.groups.modern.records import RecordKinds, parse_partitions, topic_partitions
from anabranch.broker.kafka.groups.modern.topic_image import Partitions
from anabranch.broker.kafka.groups.share.member import STABLE, ShareMember
from anabranch.broker.kafka.groups.share.state_partitions import StatePartitions, TopicPartitionSet, TopicSets
from anabranch.protocol.codec import decode_versioned, encode_versioned
from anabranch.protocol.messages.embedded import consumer_offsets as messages

MEMBER, EPOCH, TARGET_EPOCH, TARGET, CURRENT, STATES = 10, 11, 12, 13, 14, 15


def epoch_value(epoch: int, metadata_hash: int) -> bytes:
    """Encode a group's epoch."""
    return encode_versioned(messages.ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash), 0)


def member_value(member: ShareMember) -> bytes:
    """Encode a member's subscription."""
    value = messages.ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
    )
    return encode_versioned(value, 0)


def target_value(target: Partitions) -> bytes:
    """Encode a member's target assignment."""
    return encode_versioned(
        messages.ShareGroupTargetAssignmentMemberValue(topic_partitions=topic_partitions(target)), 0
    )


def current_value(member: ShareMember) -> bytes:
    """Encode a member's current assignment."""
    value = messages.ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=STABLE,
        assigned_partitions=topic_partitions(member.assigned),
    )
    return encode_versioned(value, 0)


def states_value(states: StatePartitions) -> bytes:
    """Encode the partitions whose states the share coordinator keeps."""
    value = messages.ShareGroupStatePartitionMetadataValue(
        initializing_topics=_infos(states.initializing),
        initialized_topics=_infos(states.initialized),
        deleting_topics=[
            messages.TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in sorted(states.deleting.items())
        ],
    )
    return encode_versioned(value, 0)


def _infos(sets: TopicSets) -> list[messages.TopicPartitionsInfo]:
    return [
        messages.TopicPartitionsInfo(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
        for topic_id, (name, indexes) in sorted(sets.items())
    ]


def parse_epoch(value: bytes) -> tuple[int, int]:
    """Decode a group's epoch, and the hash of its subscribed topics."""
    found = decode_versioned(messages.ShareGroupMetadataValue, value)
    return found.epoch, found.metadata_hash


def parse_target(value: bytes) -> Partitions:
    """Decode a member's target assignment."""
    found = decode_versioned(messages.ShareGroupTargetAssignmentMemberValue, value)
    return parse_partitions(found.topic_partitions)


def parse_member(member_id: str, value: bytes, current: bytes | None) -> ShareMember:
    """Decode a member from its subscription, and its current assignment if there is one. Raises MalformedMessage."""
    found = decode_versioned(messages.ShareGroupMemberMetadataValue, value)
    member = ShareMember(
        member_id=member_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topic_names=tuple(found.subscribed_topic_names),
    )
    if current is None:
        return member
    have = decode_versioned(messages.ShareGroupCurrentMemberAssignmentValue, current)
    return replace(
        member,
        epoch=have.member_epoch,
        previous_epoch=have.previous_member_epoch,
        assigned=parse_partitions(have.assigned_partitions),
    )


def parse_states(value: bytes) -> StatePartitions:
    """Decode the partitions whose states the share coordinator keeps."""
    found = decode_versioned(messages.ShareGroupStatePartitionMetadataValue, value)
    return StatePartitions(
        initializing=_parse_infos(found.initializing_topics),
        initialized=_parse_infos(found.initialized_topics),
        deleting={topic.topic_id: topic.topic_name for topic in found.deleting_topics},
    )


def _parse_infos(topics: Iterable[messages.TopicPartitionsInfo]) -> TopicSets:
    return {topic.topic_id: TopicPartitionSet(topic.topic_name, frozenset(topic.partitions)) for topic in topics}


KINDS = RecordKinds(
    key_types={
        MEMBER: messages.ShareGroupMemberMetadataKey,
        EPOCH: messages.ShareGroupMetadataKey,
        TARGET_EPOCH: messages.ShareGroupTargetAssignmentMetadataKey,
        TARGET: messages.ShareGroupTargetAssignmentMemberKey,
        CURRENT: messages.ShareGroupCurrentMemberAssignmentKey,
        STATES: messages.ShareGroupStatePartitionMetadataKey,
    },
    write_order=(MEMBER, EPOCH, TARGET, TARGET_EPOCH, CURRENT, STATES),
    deletion_order=(CURRENT, TARGET, TARGET_EPOCH, MEMBER, STATES, EPOCH),
    epoch=EPOCH,
    target_epoch=TARGET_EPOCH,
    target_epoch_type=messages.ShareGroupTargetAssignmentMetadataValue,
    target=TARGET,
    target_value=target_value,
    parse_target=parse_target,
    member=MEMBER,
    member_value=member_value,
    current=CURRENT,
    current_value=current_value,
    parse_member=parse_member,
)
