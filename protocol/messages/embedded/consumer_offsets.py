"""The records of `__consumer_offsets`, the log a group coordinator recovers from.

Each key and value begins with an int16 version (`codec.encode_versioned`). The version of a key also identifies the
record: 0 and 1 an offset, 2 a classic group, 3 to 8 and 16 a consumer group (KIP-848), 10 to 15 a share group
(KIP-932). A null value deletes. Records of streams groups (KIP-1071) are in `streams_groups`.
    v1  offset_commit_value adds expire_timestamp
    v1  group_metadata_value adds members.rebalance_timeout
    v2  offset_commit_value drops expire_timestamp
    v2  group_metadata_value adds current_state_timestamp
    v3  offset_commit_value adds leader_epoch
    v3  group_metadata_value adds members.group_instance_id
    v4  offset_commit_value adds topic_id (tagged)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message


@message(versions="0-1", flexible=None)
class OffsetCommitKey:
    """Key of an `OffsetCommitValue`: the group and the partition."""

    group: str = wire.string("0-1")
    topic: str = wire.string("0-1")
    partition: int = wire.int32("0-1")


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset."""

    offset: int = wire.int64("0+")
    leader_epoch: int = wire.int32("3+", default=-1, ignorable=True)
    metadata: str = wire.string("0+")
    commit_timestamp: int = wire.int64("0+")
    expire_timestamp: int = wire.int64("1", default=-1, ignorable=True)
    topic_id: bytes = wire.uuid("4+", tag=0, ignorable=True)


@message(versions="2", flexible=None)
class GroupMetadataKey:
    """Key of a `GroupMetadataValue`."""

    group: str = wire.string("2")


@message
class MemberMetadata:
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    rebalance_timeout: int = wire.int32("1+", default=-1, ignorable=True)
    session_timeout: int = wire.int32("0+")
    subscription: bytes = wire.bytes_("0+")
    assignment: bytes = wire.bytes_("0+")


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A classic group at the end of a rebalance: its generation, its leader and its members."""

    protocol_type: str = wire.string("0+")
    generation: int = wire.int32("0+")
    protocol: str | None = wire.string("0+", nullable="0+")
    leader: str | None = wire.string("0+", nullable="0+")
    current_state_timestamp: int = wire.int64("2+", default=-1, ignorable=True)
    members: Sequence[MemberMetadata] = wire.array(MemberMetadata, "0+")


@message(versions="3", flexible=None)
class ConsumerGroupMetadataKey:
    """Key of a `ConsumerGroupMetadataValue`."""

    group_id: str = wire.string("3")


@message(versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The epoch of a consumer group."""

    epoch: int = wire.int32("0+")
    metadata_hash: int = wire.int64("0+", tag=0)


@message(versions="4", flexible=None)
class ConsumerGroupPartitionMetadataKey:
    """Key of a `ConsumerGroupPartitionMetadataValue`."""

    group_id: str = wire.string("4")


@message
class PartitionMetadata:
    partition: int = wire.int32("0+")
    racks: Sequence[str] = wire.array(wire.Kind.STRING, "0+")


@message
class TopicMetadata:
    topic_id: bytes = wire.uuid("0+")
    topic_name: str = wire.string("0+")
    num_partitions: int = wire.int32("0+")
    partition_metadata: Sequence[PartitionMetadata] = wire.array(PartitionMetadata, "0+")


@message(versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    """The topics a consumer group is subscribed to, at the time of its last assignment."""

    topics: Sequence[TopicMetadata] = wire.array(TopicMetadata, "0+")


@message(versions="5", flexible=None)
class ConsumerGroupMemberMetadataKey:
    """Key of a `ConsumerGroupMemberMetadataValue`."""

    group_id: str = wire.string("5")
    member_id: str = wire.string("5")


@message
class ClassicProtocol:
    name: str = wire.string("0+")
    metadata: bytes = wire.bytes_("0+")


@message
class ClassicMemberMetadata:
    session_timeout_ms: int = wire.int32("0+")
    supported_protocols: Sequence[ClassicProtocol] = wire.array(ClassicProtocol, "0+")


@message(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """A member of a consumer group and what it subscribes to."""

    instance_id: str | None = wire.string("0+", nullable="0+")
    rack_id: str | None = wire.string("0+", nullable="0+")
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    subscribed_topic_names: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    subscribed_topic_regex: str | None = wire.string("0+", nullable="0+")
    rebalance_timeout_ms: int = wire.int32("0+", default=-1)
    server_assignor: str | None = wire.string("0+", nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = wire.struct(
        ClassicMemberMetadata, "0+", nullable="0+", tag=0
    )


@message(versions="6", flexible=None)
class ConsumerGroupTargetAssignmentMetadataKey:
    """Key of a `ConsumerGroupTargetAssignmentMetadataValue`."""

    group_id: str = wire.string("6")


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    """Group epoch that the target assignment was computed for."""

    assignment_epoch: int = wire.int32("0+")
    assignment_timestamp: int = wire.int64("0+", tag=0)


@message(versions="7", flexible=None)
class ConsumerGroupTargetAssignmentMemberKey:
    """Key of a `ConsumerGroupTargetAssignmentMemberValue`."""

    group_id: str = wire.string("7")
    member_id: str = wire.string("7")


@message
class TopicPartition:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    """Partitions that a member is to own after the rebalance."""

    topic_partitions: Sequence[TopicPartition] = wire.array(TopicPartition, "0+")


@message(versions="8", flexible=None)
class ConsumerGroupCurrentMemberAssignmentKey:
    """Key of a `ConsumerGroupCurrentMemberAssignmentValue`."""

    group_id: str = wire.string("8")
    member_id: str = wire.string("8")


@message
class TopicPartitions:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    assignment_epochs: Sequence[int] | None = wire.array(wire.Kind.INT32, "0+", nullable="0+", tag=0)


@message(versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    """Partitions that a member owns, those it must revoke, and its epoch."""

    member_epoch: int = wire.int32("0+")
    previous_member_epoch: int = wire.int32("0+")
    state: int = wire.int8("0+")
    assigned_partitions: Sequence[TopicPartitions] = wire.array(TopicPartitions, "0+")
    partitions_pending_revocation: Sequence[TopicPartitions] = wire.array(TopicPartitions, "0+")


@message(versions="16", flexible=None)
class ConsumerGroupRegularExpressionKey:
    """Key of a `ConsumerGroupRegularExpressionValue`."""

    group_id: str = wire.string("16")
    regular_expression: str = wire.string("16")


@message(versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    """Topics that matched a pattern, and the time of the match."""

    topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    version: int = wire.int64("0+")
    timestamp: int = wire.int64("0+")


@message(versions="10", flexible=None)
class ShareGroupMemberMetadataKey:
    """Key of a `ShareGroupMemberMetadataValue`."""

    group_id: str = wire.string("10")
    member_id: str = wire.string("10")


@message(versions="0", flexible="0+")
class ShareGroupMemberMetadataValue:
    """A member of a share group and what it subscribes to (KIP-932)."""

    rack_id: str | None = wire.string("0+", nullable="0+")
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    subscribed_topic_names: Sequence[str] = wire.array(wire.Kind.STRING, "0+")


@message(versions="11", flexible=None)
class ShareGroupMetadataKey:
    """Key of a `ShareGroupMetadataValue`."""

    group_id: str = wire.string("11")


@message(versions="0", flexible="0+")
class ShareGroupMetadataValue:
    """The epoch of a share group."""

    epoch: int = wire.int32("0+")
    metadata_hash: int = wire.int64("0+")


@message(versions="12", flexible=None)
class ShareGroupTargetAssignmentMetadataKey:
    """Key of a `ShareGroupTargetAssignmentMetadataValue`."""

    group_id: str = wire.string("12")


@message(versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    """Group epoch that the target assignment was computed for."""

    assignment_epoch: int = wire.int32("0+")
    assignment_timestamp: int = wire.int64("0+", tag=0, ignorable=True)


@message(versions="13", flexible=None)
class ShareGroupTargetAssignmentMemberKey:
    """Key of a `ShareGroupTargetAssignmentMemberValue`."""

    group_id: str = wire.string("13")
    member_id: str = wire.string("13")


@message(versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    """Partitions that a member is to share."""

    topic_partitions: Sequence[TopicPartition] = wire.array(TopicPartition, "0+")


@message(versions="14", flexible=None)
class ShareGroupCurrentMemberAssignmentKey:
    """Key of a `ShareGroupCurrentMemberAssignmentValue`."""

    group_id: str = wire.string("14")
    member_id: str = wire.string("14")


@message(versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    """Partitions that a member shares, and its epoch."""

    member_epoch: int = wire.int32("0+")
    previous_member_epoch: int = wire.int32("0+")
    state: int = wire.int8("0+")
    assigned_partitions: Sequence[TopicPartition] = wire.array(TopicPartition, "0+")


@message(versions="15", flexible=None)
class ShareGroupStatePartitionMetadataKey:
    """Key of a `ShareGroupStatePartitionMetadataValue`."""

    group_id: str = wire.string("15")


@message
class TopicPartitionsInfo:
    topic_id: bytes = wire.uuid("0+")
    topic_name: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class TopicInfo:
    topic_id: bytes = wire.uuid("0+")
    topic_name: str = wire.string("0+")


@message(versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    """Partitions of which the share coordinator has a state for this group, or is asked to create or delete one."""

    initializing_topics: Sequence[TopicPartitionsInfo] = wire.array(TopicPartitionsInfo, "0+")
    initialized_topics: Sequence[TopicPartitionsInfo] = wire.array(TopicPartitionsInfo, "0+")
    deleting_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")
