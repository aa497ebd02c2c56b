"""Groups of a cluster: their states, members and offsets. Every failure is a ClientError."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anabranch.client.cluster import GROUP, Cluster, Place
from anabranch.client.connection import error_text
from anabranch.client.errors import ClientError
from anabranch.protocol.codec import decode, read_version
from anabranch.protocol.errors import ErrorCode, MalformedMessage
from anabranch.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from anabranch.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from anabranch.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from anabranch.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from anabranch.protocol.messages.embedded.consumer_protocol import ConsumerProtocolAssignment
from anabranch.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from anabranch.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from anabranch.protocol.messages.streams_group_describe import (
    DescribedGroup as DescribedStreamsGroup,
)
from anabranch.protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TaskIds,
)

SHARE: Final = "share"
"""Kind of groups whose members share partitions (KIP-932)."""
STREAMS: Final = "streams"
"""Kind of groups of Kafka Streams applications (KIP-1071)."""
GROUPS_VERSION: Final = 8
"""First version of OffsetFetch that asks by group."""
TOPIC_ID_VERSION: Final = 10
"""First version of OffsetFetch and OffsetCommit that names topics by their ids."""
ASSIGNMENT_VERSION_MAX: Final = 3
"""Later versions are decoded as this one: the format only adds fields."""


class GroupMissing(ClientError):
    """A group that does not exist."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group as its coordinator lists it."""

    name: str
    kind: str
    protocol: str
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a member of a streams group, named as Kafka Streams does: `0_1` is partition 1 of subtopology 0."""

    active: Sequence[str]
    standby: Sequence[str]
    warmup: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, with the partitions that it reads."""

    member_id: str
    client_id: str
    host: str
    assigned: Sequence[Place]
    tasks: Tasks | None = None
    """Tasks of a member of a streams group; None for others."""


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a Kafka Streams application, by its topics."""

    subtopology: str
    sources: Sequence[str]
    repartition_sources: Sequence[str]
    repartition_sinks: Sequence[str]
    changelogs: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state of a group, with its members."""

    name: str
    kind: str
    state: str
    assignor: str
    members: Sequence[GroupMember]
    topology: Sequence[Subtopology] = ()
    """Subtopologies of a streams group."""


def list_groups(cluster: Cluster) -> Sequence[ListedGroup]:
    """Return the groups of all nodes, ordered by name."""
    found = []
    for node_id, connection in cluster.nodes().items():
        answer: ListGroupsResponse = connection.call(ListGroupsRequest())
        _check(answer.error_code, connection.where)
        found += [
            ListedGroup(each.group_id, each.group_type or "classic", each.protocol_type, each.group_state, node_id)
            for each in answer.groups
        ]
    return sorted(found, key=lambda each: each.name)


def describe_group(cluster: Cluster, name: str) -> GroupDescription:
    """Return a group of any protocol. Raises GroupMissing, too."""
    connection = cluster.coordinator(name, GROUP)
    try:
        newer: ConsumerGroupDescribeResponse = connection.call(ConsumerGroupDescribeRequest(group_ids=[name]))
        if not newer.groups[0].error_code:
            return _newer_group(newer.groups[0], "consumer")
        shared: ShareGroupDescribeResponse = connection.call(ShareGroupDescribeRequest(group_ids=[name]))
        if not shared.groups[0].error_code:
            return _newer_group(shared.groups[0], SHARE)
        streams: StreamsGroupDescribeResponse = connection.call(StreamsGroupDescribeRequest(group_ids=[name]))
        if not streams.groups[0].error_code:
            return _streams_group(cluster, streams.groups[0])
    except ClientError:
        # A node without one of the newer kinds. One that does not answer at all does not answer the next one either.
        pass
    answer: DescribeGroupsResponse = connection.call(DescribeGroupsRequest(groups=[name]))
    described = answer.groups[0]
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND or described.group_state == "Dead":
        raise GroupMissing(f"group {name} does not exist")
    _check(described.error_code, f"group {name}", described.error_message)
    return _classic_group(described)


def _newer_group(group: Any, kind: str) -> GroupDescription:
    members = [
        GroupMember(
            each.member_id,
            each.client_id,
            each.client_host,
            [(part.topic_name, index) for part in each.assignment.topic_partitions for index in part.partitions],
        )
        for each in group.members
    ]
    return GroupDescription(group.group_id, kind, group.group_state, group.assignor_name, members)


def _streams_group(cluster: Cluster, group: DescribedStreamsGroup) -> GroupDescription:
    found = (group.topology.subtopologies if group.topology is not None else None) or ()
    topology = [
        Subtopology(
            each.subtopology_id,
            each.source_topics,
            [topic.name for topic in each.repartition_source_topics],
            each.repartition_sink_topics,
            [topic.name for topic in each.state_changelog_topics],
        )
        for each in found
    ]
    read = {each.subtopology: [*each.sources, *each.repartition_sources] for each in topology}
    topics = cluster.describe_topics({name for names in read.values() for name in names}).topics if read else ()
    # Topics that a subtopology only merges may have fewer partitions than it has tasks.
    counts = {each.name: len(each.partitions) for each in topics}
    members = [
        GroupMember(
            each.member_id,
            each.client_id,
            each.client_host,
            [
                (topic, index)
                for tasks in each.assignment.active_tasks
                for topic in read.get(tasks.subtopology_id, ())
                for index in tasks.partitions
                if index < counts.get(topic, 0)
            ],
            Tasks(
                _task_names(each.assignment.active_tasks),
                _task_names(each.assignment.standby_tasks),
                _task_names(each.assignment.warmup_tasks),
            ),
        )
        for each in group.members
    ]
    return GroupDescription(group.group_id, STREAMS, group.group_state, group.assignor_name or "", members, topology)


def _task_names(tasks: Iterable[TaskIds]) -> Sequence[str]:
    return [f"{each.subtopology_id}_{index}" for each in tasks for index in each.partitions]


def _classic_group(group: DescribedGroup) -> GroupDescription:
    is_consumer = group.protocol_type in {"consumer", ""}
    members = [
        GroupMember(
            each.member_id,
            each.client_id,
            each.client_host,
            _assigned(each.member_assignment) if is_consumer else (),
        )
        for each in group.members
    ]
    return GroupDescription(group.group_id, "classic", group.group_state, group.protocol_data, members)


def _assigned(assignment: bytes) -> Sequence[Place]:
    """Return the partitions of a leader's assignment; none if it cannot be read, since clients may use any format."""
    if not assignment:
        return ()
    try:
        version = min(read_version(assignment), ASSIGNMENT_VERSION_MAX)
        found, _ = decode(ConsumerProtocolAssignment, assignment, version, 2)
    except (MalformedMessage, KeyError):
        return ()
    return [(each.topic, index) for each in found.assigned_partitions for index in each.partitions]


def committed_offsets(cluster: Cluster, name: str) -> Mapping[Place, int]:
    """Return all offsets that a group has committed, of topics that exist."""
    connection = cluster.coordinator(name, GROUP)
    if connection.version(OffsetFetchRequest) < GROUPS_VERSION:
        raise ClientError(f"{connection.where} does not serve OffsetFetch {GROUPS_VERSION} or later")
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None)])
    answer: OffsetFetchResponse = connection.call(asked)
    group = answer.groups[0]
    _check(group.error_code, f"group {name}")
    names = _names_by_id(cluster) if connection.version(OffsetFetchRequest) >= TOPIC_ID_VERSION else {}
    found = {}
    for topic in group.topics:
        topic_name = topic.name or names.get(topic.topic_id)
        for each in topic.partitions:
            if topic_name is not None and not each.error_code and each.committed_offset >= 0:
                found[topic_name, each.partition_index] = each.committed_offset
    return found


def share_offsets(cluster: Cluster, name: str) -> Mapping[Place, tuple[int | None, int | None]]:
    """Return start offset and lag of each partition that a share group has begun; None where they are not known."""
    asked = DescribeShareGroupOffsetsRequest(groups=[DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)])
    answer: DescribeShareGroupOffsetsResponse = cluster.coordinator(name, GROUP).call(asked)
    group = answer.groups[0]
    _check(group.error_code, f"group {name}", group.error_message)
    return {
        (topic.topic_name, each.partition_index): (_known(each.start_offset), _known(each.lag))
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _names_by_id(cluster: Cluster) -> Mapping[bytes, str]:
    return {each.topic_id: each.name for each in cluster.describe_topics().topics if each.name is not None}


def commit_offsets(cluster: Cluster, name: str, offsets: Mapping[Place, int]) -> None:
    """Store offsets of a group without members."""
    connection = cluster.coordinator(name, GROUP)
    names = sorted({topic for topic, _ in offsets})
    ids = {each.name: each.topic_id for each in cluster.topics(names)}
    request = OffsetCommitRequest(
        group_id=name,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=ids[topic],
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
                    for (of, index), offset in sorted(offsets.items())
                    if of == topic
                ],
            )
            for topic in names
        ],
    )
    answer: OffsetCommitResponse = connection.call(request)
    by_id = {topic_id: topic for topic, topic_id in ids.items()}
    for topic_answer in answer.topics:
        for each in topic_answer.partitions:
            topic = topic_answer.name or by_id.get(topic_answer.topic_id)
            if each.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise ClientError(f"group {name} has members: stop them first")
            _check(each.error_code, f"group {name}, {topic}-{each.partition_index}")


def set_share_offsets(cluster: Cluster, name: str, offsets: Mapping[Place, int]) -> None:
    """Let a share group without members begin at these offsets. It is created if it does not exist."""
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                for (of, index), offset in sorted(offsets.items())
                if of == topic
            ],
        )
        for topic in sorted({topic for topic, _ in offsets})
    ]
    request = AlterShareGroupOffsetsRequest(group_id=name, topics=topics)
    answer: AlterShareGroupOffsetsResponse = cluster.coordinator(name, GROUP).call(request)
    _check(answer.error_code, f"group {name}", answer.error_message)
    for topic_answer in answer.responses:
        for each in topic_answer.partitions:
            place = f"{topic_answer.topic_name}-{each.partition_index}"
            _check(each.error_code, f"group {name}, {place}", each.error_message)


def delete_offsets(cluster: Cluster, name: str, places: Iterable[Place]) -> None:
    """Delete committed offsets of a group, whose members must not read their topics."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(places):
        by_topic.setdefault(topic, []).append(index)
    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for topic, indexes in by_topic.items()
    ]
    request = OffsetDeleteRequest(group_id=name, topics=topics)
    answer: OffsetDeleteResponse = cluster.coordinator(name, GROUP).call(request)
    _check(answer.error_code, f"group {name}")
    for topic_answer in answer.topics:
        for each in topic_answer.partitions:
            _check(each.error_code, f"group {name}, {topic_answer.name}-{each.partition_index}")


def delete_share_offsets(cluster: Cluster, name: str, topics: Iterable[str]) -> None:
    """Let a share group without members forget what it has processed of topics."""
    request = DeleteShareGroupOffsetsRequest(
        group_id=name, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=each) for each in topics]
    )
    answer: DeleteShareGroupOffsetsResponse = cluster.coordinator(name, GROUP).call(request)
    _check(answer.error_code, f"group {name}", answer.error_message)
    for each in answer.responses:
        _check(each.error_code, f"group {name}, {each.topic_name}", each.error_message)


def delete_groups(cluster: Cluster, names: Iterable[str]) -> Mapping[str, str | None]:
    """Delete groups with their offsets; returns the reason for each that was not deleted, else None."""
    outcomes: dict[str, str | None] = {}
    for name in names:
        answer: DeleteGroupsResponse = cluster.coordinator(name, GROUP).call(DeleteGroupsRequest(groups_names=[name]))
        code = answer.results[0].error_code
        outcomes[name] = _DELETION_REASONS.get(code, error_text(code)) if code else None
    return outcomes


_DELETION_REASONS: Final = {
    int(ErrorCode.NON_EMPTY_GROUP): "it has members: stop them first",
    int(ErrorCode.GROUP_ID_NOT_FOUND): "it does not exist",
}


def _check(code: int, what: str, message: str | None = None) -> None:
    if code == ErrorCode.NON_EMPTY_GROUP:
        raise ClientError(f"{what} has members: stop them first")
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        raise ClientError(f"{what} is read by members: stop them first")
    if code:
        raise ClientError(f"{what}: {error_text(code, message)}")
