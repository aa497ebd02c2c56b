"""StreamsGroupDescribe: the state, topology and members of streams groups (KIP-1071).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 89


@message(versions="0", flexible="0+")
class StreamsGroupDescribeRequest:
    """Request of the StreamsGroupDescribe API."""

    group_ids: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    include_authorized_operations: bool = wire.boolean("0+")


@message
class KeyValue:
    """An element of `TopicInfo.topic_configs` and `Member.client_tags`."""

    key: str = wire.string("0+")
    value: str = wire.string("0+")


@message
class TopicInfo:
    """An element of `Subtopology.state_changelog_topics` and `repartition_source_topics`."""

    name: str = wire.string("0+")
    partitions: int = wire.int32("0+")
    replication_factor: int = wire.int16("0+")
    topic_configs: Sequence[KeyValue] = wire.array(KeyValue, "0+")


@message
class Subtopology:
    """An element of `Topology.subtopologies`."""

    subtopology_id: str = wire.string("0+")
    source_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    repartition_sink_topics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    state_changelog_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")
    repartition_source_topics: Sequence[TopicInfo] = wire.array(TopicInfo, "0+")


@message
class Topology:
    """The value of `DescribedGroup.topology`."""

    epoch: int = wire.int32("0+")
    subtopologies: Sequence[Subtopology] | None = wire.array(Subtopology, "0+", nullable="0+", default=None)


@message
class Endpoint:
    """The value of `Member.user_endpoint`."""

    host: str = wire.string("0+")
    port: int = wire.uint16("0+")


@message
class TaskOffset:
    """An element of `Member.task_offsets` and `task_end_offsets`."""

    subtopology_id: str = wire.string("0+")
    partition: int = wire.int32("0+")
    offset: int = wire.int64("0+")


@message
class TaskIds:
    """An element of `Assignment.active_tasks`, `standby_tasks` and `warmup_tasks`."""

    subtopology_id: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class Assignment:
    """The value of `Member.assignment` and `target_assignment`."""

    active_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")
    standby_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")
    warmup_tasks: Sequence[TaskIds] = wire.array(TaskIds, "0+")


@message
class Member:
    """An element of `DescribedGroup.members`."""

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
class DescribedGroup:
    """An element of `StreamsGroupDescribeResponse.groups`."""

    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    group_id: str = wire.string("0+")
    group_state: str = wire.string("0+")
    group_epoch: int = wire.int32("0+")
    assignment_epoch: int = wire.int32("0+")
    topology: Topology | None = wire.struct(Topology, "0+", nullable="0+", default=None)
    members: Sequence[Member] = wire.array(Member, "0+")
    authorized_operations: int = wire.int32("0+", default=-(2**31))


@message(versions="0", flexible="0+")
class StreamsGroupDescribeResponse:
    """Response of the StreamsGroupDescribe API."""

    throttle_time_ms: int = wire.int32("0+")
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup, "0+")
