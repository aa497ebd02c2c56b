"""The records of streams groups in `__consumer_offsets` (KIP-1071), whose structures have names that other records use.

The version of a key identifies the record: 17 a group's epoch, 19 a member, 20 and 21 the target assignment, 22 a
member's current assignment, 23 the topology. A null value deletes.
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message


@message(versions="17", flexible=None)
class StreamsGroupMetadataKey:
    """Key of a `StreamsGroupMetadataValue`."""

    group_id: str = wire.string("17")


@message
class LastAssignmentConfig:
    key: str = wire.string("0+")
    value: str = wire.string("0+")


@message(versions="0", flexible="0+")
class StreamsGroupMetadataValue:
    """The epoch of a streams group, and what was known of its topology in this epoch."""

    epoch: int = wire.int32("0+")
    metadata_hash: int = wire.int64("0+")
    validated_topology_epoch: int = wire.int32("0+", default=-1, tag=0)
    last_assignment_configs: Sequence[LastAssignmentConfig] | None = wire.array(
        LastAssignmentConfig, "0+", nullable="0+", default=None, tag=1
    )
    stored_description_topology_epoch: int = wire.int32("0+", default=-1, tag=2)
    failed_description_topology_epoch: int = wire.int32("0+", default=-1, tag=3)


@message(versions="23", flexible=None)
class StreamsGroupTopologyKey:
    """Key of a `StreamsGroupTopologyValue`."""

    group_id: str = wire.string("23")


@message
class TopicConfig:
    key: str = wire.string("0+")
    value: str = wire.string("0+")


@message
class TopicInfo:
    name: str = wire.string("0+")
    partitions: int = wire.int32("0+")
    replication_factor: int = wire.int16("0+")
    topic_configs: Sequence[TopicConfig] = wire.array(TopicConfig, "0+")


@message
class CopartitionGroup:
    source_topics: Sequence[int] = wire.array(wire.Kind.INT16, "0+")
    source_topic_regex: Sequence[int] = wire.array(wire.Kind.INT16, "0+")
    repartition_source_topics: Sequence[int] = wire.array(wire.Kind.INT16, "0+")


@message
class Subtopology:
    subtopology_id: str = wire.string("0+")
    source_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    source_topic_regex: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    state_changelog_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")
    repartition_sink_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    repartition_source_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")
    copartition_groups: Sequence[CopartitionGroup] = wire.array(CopartitionGroup, "0+")


@message(versions="0", flexible="0+")
class StreamsGroupTopologyValue:
    """The topology of the application, as its first member sent it."""

    epoch: int = wire.int32("0+")
    subtopologies: Sequence[Subtopology] = wire.array(Subtopology, "0+")


@message(versions="19", flexible=None)
class StreamsGroupMemberMetadataKey:
    """Key of a `StreamsGroupMemberMetadataValue`."""

    group_id: str = wire.string("19")
    member_id: str = wire.string("19")


@message
class Endpoint:
    host: str = wire.string("0+")
    port: int = wire.uint16("0+")


@message
class KeyValue:
    key: str = wire.string("0+")
    value: str = wire.string("0+")


@message(versions="0", flexible="0+")
class StreamsGroupMemberMetadataValue:
    """A member of a streams group: its client, process and tags."""

    instance_id: str | None = wire.string("0+", nullable="0+")
    rack_id: str | None = wire.string("0+", nullable="0+")
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    rebalance_timeout_ms: int = wire.int32("0+", default=-1)
    topology_epoch: int = wire.int32("0+")
    process_id: str = wire.string("0+")
    user_endpoint: Endpoint | None = wire.struct(Endpoint, "0+", nullable="0+", default=None)
    client_tags: Sequence[KeyValue] = wire.array(KeyValue, "0+")


@message(versions="20", flexible=None)
class StreamsGroupTargetAssignmentMetadataKey:
    """Key of a `StreamsGroupTargetAssignmentMetadataValue`."""

    group_id: str = wire.string("20")


@message(versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMetadataValue:
    """Group epoch that the target assignment was computed for."""

    assignment_epoch: int = wire.int32("0+")
    assignment_timestamp: int = wire.int64("0+", tag=0, ignorable=True)


@message(versions="21", flexible=None)
class StreamsGroupTargetAssignmentMemberKey:
    """Key of a `StreamsGroupTargetAssignmentMemberValue`."""

    group_id: str = wire.string("21")
    member_id: str = wire.string("21")


@message
class TaskIds:
    subtopology_id: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue:
    """Tasks that a member is to run."""

    active_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")
    standby_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")
    warmup_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")


@message(versions="22", flexible=None)
class StreamsGroupCurrentMemberAssignmentKey:
    """Key of a `StreamsGroupCurrentMemberAssignmentValue`."""

    group_id: str = wire.string("22")
    member_id: str = wire.string("22")


@message
class CurrentTaskIds:
    subtopology_id: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    assignment_epochs: Sequence[int] | None = wire.array(wire.Kind.INT32, "0+", nullable="0+", default=None, tag=0)


@message(versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue:
    """Tasks that a member runs or must still revoke, and its epoch."""

    member_epoch: int = wire.int32("0+")
    previous_member_epoch: int = wire.int32("0+")
    state: int = wire.int8("0+")
    active_tasks: Sequence[CurrentTaskIds] = wire.array(CurrentTaskIds, "0+")
    standby_tasks: Sequence[CurrentTaskIds] = wire.array(CurrentTaskIds, "0+")
    warmup_tasks: Sequence[CurrentTaskIds] = wire.array(CurrentTaskIds, "0+")
    active_tasks_pending_revocation: Sequence[CurrentTaskIds] = wire.array(CurrentTaskIds, "0+")
    standby_tasks_pending_revocation: Sequence[CurrentTaskIds] = wire.array(CurrentTaskIds, "0+")
    warmup_tasks_pending_revocation: Sequence[CurrentTaskIds] = wire.array(CurrentTaskIds, "0+")
