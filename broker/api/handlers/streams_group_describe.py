"""StreamsGroupDescribe (KIP-1071): state, epochs, topology and members of streams groups."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from anabranch.broker.api.handlers.described_groups import find_group, guard_of
from anabranch.broker.api.handlers.streams_protocol import check_streams_protocol, task_ids
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.groups.streams.assignor import STICKY
from anabranch.broker.kafka.groups.streams.configured_topology import ConfiguredTopology, InternalTopic
from anabranch.broker.kafka.groups.streams.group import StreamsGroup
from anabranch.broker.kafka.groups.streams.member import StreamsMember
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, Task, TaskAssignment
from anabranch.broker.kafka.groups.streams.topology import TopicDescription, Topology
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages import streams_group_describe as messages
from anabranch.protocol.messages.streams_group_describe import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

DESCRIPTION_NOT_REQUESTED: Final = 0
DESCRIPTION_NOT_STORED: Final = 1
"""As in Apache Kafka without a plug-in that stores descriptions of topologies (KIP-1331)."""


def handle(serving: Serving, request: StreamsGroupDescribeRequest, _exchange: Exchange) -> StreamsGroupDescribeResponse:
    """Answer at once."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
    status = DESCRIPTION_NOT_STORED if request.include_topology_description else DESCRIPTION_NOT_REQUESTED
    return StreamsGroupDescribeResponse(
        groups=[_described(serving, group_id, operations, status) for group_id in request.group_ids]
    )


def _described(serving: Serving, group_id: str, operations: int, description_status: int) -> DescribedGroup:
    try:
        check_streams_protocol(serving)
        group = find_group(serving, group_id, StreamsGroup, "streams")
    except KafkaError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message or None, group_id=group_id)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        topology=_topology(group),
        members=[_member(group, member) for member in group.members.values()],
        authorized_operations=operations,
        topology_description_status=description_status,
        assignor_name=STICKY,
    )


def _topology(group: StreamsGroup) -> messages.Topology | None:
    """Describe the topology: with the numbers of partitions that were decided on, once it is ready."""
    if group.configured is not None and group.configured.is_ready:
        return messages.Topology(epoch=group.configured.epoch, subtopologies=_configured(group.configured))
    if group.topology is None:
        return None
    return messages.Topology(epoch=group.topology.epoch, subtopologies=_sent(group.topology))


def _configured(topology: ConfiguredTopology) -> Sequence[messages.Subtopology]:
    return [
        messages.Subtopology(
            subtopology_id=subtopology_id,
            source_topics=sorted(each.source_topics),
            repartition_sink_topics=sorted(each.repartition_sinks),
            state_changelog_topics=list(map(_internal_topic, _sorted(each.changelogs.values()))),
            repartition_source_topics=list(map(_internal_topic, _sorted(each.repartition_sources.values()))),
        )
        for subtopology_id, each in (topology.subtopologies or {}).items()
    ]


def _sorted(topics: Iterable[InternalTopic]) -> Sequence[InternalTopic]:
    return sorted(topics, key=lambda topic: topic.name)


def _internal_topic(topic: InternalTopic) -> messages.TopicInfo:
    return messages.TopicInfo(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        topic_configs=_pairs(topic.configs),
    )


def _sent(topology: Topology) -> Sequence[messages.Subtopology]:
    def topics(found: Iterable[TopicDescription]) -> Sequence[messages.TopicInfo]:
        return [
            messages.TopicInfo(
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=_pairs(dict(topic.configs)),
            )
            for topic in sorted(found, key=lambda topic: topic.name)
        ]

    return [
        messages.Subtopology(
            subtopology_id=each.subtopology_id,
            source_topics=sorted(each.source_topics),
            repartition_sink_topics=sorted(each.repartition_sinks),
            state_changelog_topics=topics(each.changelogs),
            repartition_source_topics=topics(each.repartition_sources),
        )
        for each in sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
    ]


def _pairs(found: Mapping[str, str]) -> Sequence[messages.KeyValue]:
    return [messages.KeyValue(key=key, value=value) for key, value in found.items()]


def _member(group: StreamsGroup, member: StreamsMember) -> messages.Member:
    endpoint = member.endpoint
    return messages.Member(
        member_id=member.member_id,
        member_epoch=member.epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else messages.Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=_pairs(member.client_tags),
        task_offsets=_offsets(group.task_offsets.get(member.member_id, {})),
        task_end_offsets=_offsets(group.task_end_offsets.get(member.member_id, {})),
        assignment=_assignment(member.assigned.assignment),
        target_assignment=_assignment(group.targets.get(member.member_id, NO_ASSIGNMENT)),
    )


def _offsets(found: Mapping[Task, int]) -> Sequence[messages.TaskOffset]:
    return [
        messages.TaskOffset(subtopology_id=task.subtopology_id, partition=task.partition, offset=offset)
        for task, offset in sorted(found.items())
    ]


def _assignment(tasks: TaskAssignment) -> messages.Assignment:
    return messages.Assignment(
        active_tasks=task_ids(messages.TaskIds, tasks.active),
        standby_tasks=task_ids(messages.TaskIds, tasks.standby),
        warmup_tasks=task_ids(messages.TaskIds, tasks.warmup),
    )


def _topic_names(group: DescribedGroup) -> set[str]:
    return {
        name
        for each in (None if group.topology is None else group.topology.subtopologies) or ()
        for name in (
            *each.source_topics,
            *(topic.name for topic in each.repartition_source_topics),
            *(topic.name for topic in each.state_changelog_topics),
        )
    }


API = declare(
    StreamsGroupDescribeRequest,
    handle,
    guard=guard_of(DescribedGroup, _topic_names),
    waits_for=groups(lambda request: request.group_ids),
    relayed=True,
)
