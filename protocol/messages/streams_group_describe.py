"""StreamsGroupDescribe: state, epochs, topology and members of streams groups (KIP-1071).

Versions:
    v0  first version. flexible
    v1  adds descriptions of topologies (KIP-1331), and assignor_name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 89


@message(versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest:
    group_ids: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    include_authorized_operations: bool = wire.boolean("0+")
    include_topology_description: bool = wire.boolean("1+")


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
class Subtopology:
    subtopology_id: str = wire.string("0+")
    source_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    repartition_sink_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    state_changelog_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")
    repartition_source_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")


@message
class Topology:
    epoch: int = wire.int32("0+")
    subtopologies: Sequence[Subtopology] | None = wire.array(Subtopology, "0+", nullable="0+", default=None)


@message
class Endpoint:
    host: str = wire.string("0+")
    port: int = wire.uint16("0+")


@message
class TaskOffset:
    subtopology_id: str = wire.string("0+")
    partition: int = wire.int32("0+")
    offset: int = wire.int64("0+")


@message
class TaskIds:
    subtopology_id: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class Assignment:
    active_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")
    standby_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")
    warmup_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")


@message
class Member:
    member_id: str = wire.string("0+")
    member_epoch: int = wire.int32("0+")
    instance_id: str | None = wire.string("0+", nullable="0+", default=None)
    rack_id: str | None = wire.string("0+", nullable="0+", default=None)
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    topology_epoch: int = wire.int32("0+")
    process_id: str = wire.string("0+")
    user_endpoint: Endpoint | None = wire.struct(Endpoint, "0+", nullable="0+", default=None)
    client_tags: Sequence[KeyValue] = wire.array(KeyValue, "0+")
    task_offsets: Sequence[TaskOffset] = wire.array(TaskOffset, "0+")
    task_end_offsets: Sequence[TaskOffset] = wire.array(TaskOffset, "0+")
    assignment: Assignment = wire.struct(Assignment, "0+")
    target_assignment: Assignment = wire.struct(Assignment, "0+")
    is_classic: bool = wire.boolean("0+")


@message
class TopologyDescriptionNode:
    name: str = wire.string("1+")
    node_type: int = wire.int8("1+")
    source_topics: Sequence[str] = wire.array(wire.Kind.STRING, "1+")
    sink_topic: str | None = wire.string("1+", nullable="1+", default=None)
    stores: Sequence[str] = wire.array(wire.Kind.STRING, "1+")
    successors: Sequence[str] = wire.array(wire.Kind.STRING, "1+")


@message
class TopologyDescriptionSubtopology:
    subtopology_id: str = wire.string("1+")
    nodes: Sequence[TopologyDescriptionNode] = wire.array(TopologyDescriptionNode, "1+")


@message
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = wire.struct(TopologyDescriptionNode, "1+")
    processor: TopologyDescriptionNode = wire.struct(TopologyDescriptionNode, "1+")


@message
class TopologyDescription:
    subtopologies: Sequence[TopologyDescriptionSubtopology] = wire.array(TopologyDescriptionSubtopology, "1+")
    global_stores: Sequence[TopologyDescriptionGlobalStore] = wire.array(TopologyDescriptionGlobalStore, "1+")


@message
class DescribedGroup:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    group_id: str = wire.string("0+")
    group_state: str = wire.string("0+")
    group_epoch: int = wire.int32("0+")
    assignment_epoch: int = wire.int32("0+")
    topology: Topology | None = wire.struct(Topology, "0+", nullable="0+", default=None)
    members: Sequence[Member] = wire.array(Member, "0+")
    authorized_operations: int = wire.int32("0+", default=-(2**31))
    topology_description: TopologyDescription | None = wire.struct(
        TopologyDescription, "1+", nullable="1+", default=None
    )
    topology_description_status: int = wire.int8("1+")
    assignor_name: str | None = wire.string("1+", nullable="1+", default=None, ignorable=True)


@message(versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    throttle_time_ms: int = wire.int32("0+")
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup, "0+")
