"""StreamsGroupHeartbeat: join, stay in and leave a streams group (KIP-1071).

Versions:
    v0  first version. flexible
    v1  response adds topology_description_required (KIP-1331), and acceptable_recovery_lag as an int64
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 88


@message
class KeyValue:
    key: str = wire.string("0+")
    value: str = wire.string("0+")


@message
class TopicInfo:
    name: str = wire.string("0+")
    partitions: int = wire.int32("0+")
    replication_factor: int = wire.int16("0+")
    topic_configs: Sequence[KeyValue] = wire.array(KeyValue, "0+")


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


@message
class Topology:
    epoch: int = wire.int32("0+")
    subtopologies: Sequence[Subtopology] = wire.array(Subtopology, "0+")


@message
class TaskIds:
    subtopology_id: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class Endpoint:
    host: str = wire.string("0+")
    port: int = wire.uint16("0+")


@message
class TaskOffset:
    subtopology_id: str = wire.string("0+")
    partition: int = wire.int32("0+")
    offset: int = wire.int64("0+")


@message(versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest:
    group_id: str = wire.string("0+")
    member_id: str = wire.string("0+")
    member_epoch: int = wire.int32("0+")
    endpoint_information_epoch: int = wire.int32("0+")
    instance_id: str | None = wire.string("0+", nullable="0+", default=None)
    rack_id: str | None = wire.string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = wire.int32("0+", default=-1)
    topology: Topology | None = wire.struct(Topology, "0+", nullable="0+", default=None)
    active_tasks: Sequence[TaskIds] | None = wire.array(TaskIds, "0+", nullable="0+", default=None)
    standby_tasks: Sequence[TaskIds] | None = wire.array(TaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: Sequence[TaskIds] | None = wire.array(TaskIds, "0+", nullable="0+", default=None)
    process_id: str | None = wire.string("0+", nullable="0+", default=None)
    user_endpoint: Endpoint | None = wire.struct(Endpoint, "0+", nullable="0+", default=None)
    client_tags: Sequence[KeyValue] | None = wire.array(KeyValue, "0+", nullable="0+", default=None)
    task_offsets: Sequence[TaskOffset] | None = wire.array(TaskOffset, "0+", nullable="0+", default=None)
    task_end_offsets: Sequence[TaskOffset] | None = wire.array(TaskOffset, "0+", nullable="0+", default=None)
    shutdown_application: bool = wire.boolean("0+")


@message
class Status:
    status_code: int = wire.int8("0+")
    status_detail: str = wire.string("0+")


@message
class TopicPartition:
    topic: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class EndpointToPartitions:
    user_endpoint: Endpoint = wire.struct(Endpoint, "0+")
    active_partitions: Sequence[TopicPartition] = wire.array(TopicPartition, "0+")
    standby_partitions: Sequence[TopicPartition] = wire.array(TopicPartition, "0+")


@message(versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    member_id: str = wire.string("0+")
    member_epoch: int = wire.int32("0+")
    heartbeat_interval_ms: int = wire.int32("0+")
    acceptable_recovery_lag_legacy: int = wire.int32("0")
    task_offset_interval_ms: int = wire.int32("0+")
    acceptable_recovery_lag: int = wire.int64("1+", default=-1, ignorable=True)
    status: Sequence[Status] | None = wire.array(Status, "0+", nullable="0+")
    active_tasks: Sequence[TaskIds] | None = wire.array(TaskIds, "0+", nullable="0+", default=None)
    standby_tasks: Sequence[TaskIds] | None = wire.array(TaskIds, "0+", nullable="0+", default=None)
    warmup_tasks: Sequence[TaskIds] | None = wire.array(TaskIds, "0+", nullable="0+", default=None)
    topology_description_required: bool = wire.boolean("1+")
    endpoint_information_epoch: int = wire.int32("0+")
    partitions_by_user_endpoint: Sequence[EndpointToPartitions] | None = wire.array(
        EndpointToPartitions, "0+", nullable="0+", default=None
    )
