"""StreamsGroupHeartbeat (KIP-1071): join, stay in and leave a streams group. Answered when the change is durable.

A group that lacks internal topics has them created on behalf of the member whose heartbeat finds them missing, as if
its client had sent CreateTopics. The response still reports them missing, with the errors of their creation.
"""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from anabranch.broker.api.access.caller import Caller, caller_of
from anabranch.broker.api.access.changes import record
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers import create_topics
from anabranch.broker.api.handlers.streams_protocol import check_streams_protocol, task_ids
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.modern.member import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.kafka.groups.streams.configured_topology import (
    InternalTopic,
    Status,
    StatusCode,
    check_partitions,
)
from anabranch.broker.kafka.groups.streams.group import StreamsGroup
from anabranch.broker.kafka.groups.streams.requests import (
    Endpoint,
    EndpointPartitions,
    StreamsHeartbeat,
    StreamsHeartbeatResponse,
    TopicPartitions,
)
from anabranch.broker.kafka.groups.streams.tasks import Task, TaskAssignment, tasks_of
from anabranch.broker.kafka.groups.streams.topology import topology_of
from anabranch.broker.kafka.topics.names import INTERNAL_TOPICS, check_topic_name
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages import streams_group_heartbeat as messages
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

MISSING_TAGS_SINCE: Final = 1
"""First version whose clients know the status MISSING_CLIENT_TAGS."""
ERRORS_SHOWN: Final = 3
"""Errors of creations that a status lists."""


def handle(
    serving: Serving, request: StreamsGroupHeartbeatRequest, exchange: Exchange
) -> StreamsGroupHeartbeatResponse | Coroutine[Any, Any, StreamsGroupHeartbeatResponse] | None:
    """Check what does not depend on the group, then pass the request to it. None: answered later."""

    def done(answer: StreamsHeartbeatResponse | KafkaError) -> None:
        if isinstance(answer, KafkaError):
            exchange.complete(_refusal(answer))
        else:
            exchange.complete(_response(serving, request.group_id, answer))

    try:
        check_streams_protocol(serving)
        check_names(request)
        check_request(request)
        shard = serving.groups.shard(request.group_id)
        beat = _beat(request, exchange)
        if request.member_epoch >= 0 and not _is_ready(shard, request.group_id):
            return _beat_and_create(serving, shard, request, beat, exchange)
        beat.ticket = done
        shard.membership.handle(request.group_id, beat)
    except KafkaError as refused:
        return _refusal(refused)
    return None


def _is_ready(shard: GroupShard, group_id: str) -> bool:
    """Return whether a group had all its topics at its last heartbeat."""
    found = shard.group(group_id)
    return isinstance(found, StreamsGroup) and found.configured is not None and found.configured.is_ready


async def _beat_and_create(
    serving: Serving,
    shard: GroupShard,
    request: StreamsGroupHeartbeatRequest,
    beat: StreamsHeartbeat,
    exchange: Exchange,
) -> StreamsGroupHeartbeatResponse:
    """Handle a heartbeat, and create internal topics that it finds missing."""
    answered: asyncio.Future[StreamsHeartbeatResponse] = asyncio.get_running_loop().create_future()
    beat.ticket = respond_to(answered)
    try:
        shard.membership.handle(request.group_id, beat)
        answer = await answered
    except KafkaError as refused:
        return _refusal(refused)
    if answer.missing_topics:
        problem = await _create(serving, request.group_id, answer.missing_topics, exchange)
        answer = replace(answer, statuses=[_with(status, problem) for status in answer.statuses])
    return _response(serving, request.group_id, answer)


def _with(status: Status, problem: str) -> Status:
    """Return the status of missing topics with the reason why they are not created."""
    if not problem or status.code is not StatusCode.MISSING_INTERNAL_TOPICS:
        return status
    return status._replace(detail=f"{status.detail}; {problem}.")


async def _create(serving: Serving, group_id: str, topics: Mapping[str, InternalTopic], exchange: Exchange) -> str:
    """Create topics on behalf of the client. Returns why some of them are not created, empty if all are."""
    caller = caller_of(serving, exchange)
    if caller is not None and not caller.may_cluster(AclOperation.CREATE):
        denied = sorted(topics.keys() - caller.topics(AclOperation.CREATE, topics))
        if denied:
            return f"Unauthorized to CREATE on topics {', '.join(denied)}"
    wanted = CreateTopicsRequest(topics=[_creatable(topic) for topic in topics.values()])
    try:
        async with asyncio.timeout(serving.group_configs.streams(group_id).heartbeat_interval_ms / 1000):
            created = await create_topics.handle(serving, wanted, exchange)
    except TimeoutError:
        return ""  # it goes on with the next heartbeat
    record(serving, exchange, API.api.name, create_topics.changes_of(wanted, created))
    failed = [
        f"{result.name} ({result.error_message or ErrorCode(result.error_code).name})"
        for result in created.topics
        if result.error_code not in {ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS}
    ]
    if not failed:
        return ""
    more = len(failed) - ERRORS_SHOWN
    shown = ", ".join(failed[:ERRORS_SHOWN])
    return f"Creation failed: {shown} and {more} more" if more > 0 else f"Creation failed: {shown}"


def _creatable(topic: InternalTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or -1,
        assignments=(),
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


# -- Requests --------------------------------------------------------------------------------------------------------


def topic_names(request: StreamsGroupHeartbeatRequest) -> Sequence[str]:
    """Return the topics that the topology names, in order and each once."""
    if request.topology is None:
        return ()
    found: dict[str, None] = {}
    for each in request.topology.subtopologies:
        found.update(dict.fromkeys(each.source_topics))
        found.update(dict.fromkeys(each.repartition_sink_topics))
        found.update(dict.fromkeys(topic.name for topic in each.repartition_source_topics))
        found.update(dict.fromkeys(topic.name for topic in each.state_changelog_topics))
    return list(found)


def check_names(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise STREAMS_INVALID_TOPOLOGY, with Kafka's message, for names that a topology must not have."""
    names = topic_names(request)
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        raise _invalid_topology(
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        )
    invalid = [name for name in names if not _is_valid(name)]
    if invalid:
        raise _invalid_topology(f"Topic names {','.join(invalid)} are not valid topic names.")


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except KafkaError:
        return False
    return True


def check_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise Kafka's error, with its message, for an invalid request."""
    if request.topology is not None and any(each.source_topic_regex for each in request.topology.subtopologies):
        raise _invalid("Regular expressions for source topics are not supported yet.")
    for name, value in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if request.member_epoch == 0:
        _check_join(request)
    elif request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif request.member_epoch < LEAVE_STATIC_EPOCH:
        raise _invalid(f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.")
    owned = (request.active_tasks, request.standby_tasks, request.warmup_tasks)
    if None in owned and owned != (None, None, None):
        raise _invalid("If one task-type is non-null, all must be non-null.")
    if request.member_epoch != 0 and request.topology is not None:
        raise _invalid("Topology can only be provided when (re-)joining.")


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    for name, tasks in (
        ("ActiveTasks", request.active_tasks),
        ("StandbyTasks", request.standby_tasks),
        ("WarmupTasks", request.warmup_tasks),
    ):
        if tasks is None or tasks:
            raise _invalid(f"{name} must be empty when (re-)joining.")
    if request.topology is None:
        raise _invalid("Topology must be non-null when (re-)joining.")
    check_partitions(topology_of(request.topology))


def _beat(request: StreamsGroupHeartbeatRequest, exchange: Exchange) -> StreamsHeartbeat:
    owned = None
    if request.active_tasks is not None and request.standby_tasks is not None and request.warmup_tasks is not None:
        owned = TaskAssignment(*map(tasks_of, (request.active_tasks, request.standby_tasks, request.warmup_tasks)))
    endpoint, tags = request.user_endpoint, request.client_tags
    return StreamsHeartbeat(
        member_id=request.member_id,
        epoch=request.member_epoch,
        endpoint_epoch=request.endpoint_information_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topology=None if request.topology is None else topology_of(request.topology),
        owned=owned,
        process_id=request.process_id,
        endpoint=None if endpoint is None else Endpoint(endpoint.host, endpoint.port),
        client_tags=None if tags is None else {tag.key: tag.value for tag in tags},
        task_offsets=_offsets(request.task_offsets),
        task_end_offsets=_offsets(request.task_end_offsets),
        shutdown_application=request.shutdown_application,
        knows_missing_tags=exchange.api_version >= MISSING_TAGS_SINCE,
        client_id=exchange.client_id or "",
        client_host=f"/{exchange.client_host}",
    )


def _offsets(listed: Iterable[messages.TaskOffset] | None) -> Mapping[Task, int] | None:
    """Return offsets by task. Raises INVALID_REQUEST for a task that is listed twice."""
    if listed is None:
        return None
    found: dict[Task, int] = {}
    for each in listed:
        task = Task(each.subtopology_id, each.partition)
        if task in found:
            raise _invalid(
                f"Task offsets contain a duplicate entry for subtopology {each.subtopology_id} and partition "
                f"{each.partition}."
            )
        found[task] = each.offset
    return found


def _invalid(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, problem)


def _invalid_topology(problem: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, problem)


# -- Responses -------------------------------------------------------------------------------------------------------


def _response(serving: Serving, group_id: str, answer: StreamsHeartbeatResponse) -> StreamsGroupHeartbeatResponse:
    if answer.epoch in {LEAVE_EPOCH, LEAVE_STATIC_EPOCH}:
        return StreamsGroupHeartbeatResponse(member_id=answer.member_id, member_epoch=answer.epoch, status=())
    configs, assignment = serving.group_configs.streams(group_id), answer.assignment
    return StreamsGroupHeartbeatResponse(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=configs.heartbeat_interval_ms,
        task_offset_interval_ms=configs.task_offset_interval_ms,
        acceptable_recovery_lag=configs.acceptable_recovery_lag,
        status=[messages.Status(status_code=status.code, status_detail=status.detail) for status in answer.statuses],
        active_tasks=None if assignment is None else task_ids(messages.TaskIds, assignment.active),
        standby_tasks=None if assignment is None else task_ids(messages.TaskIds, assignment.standby),
        warmup_tasks=None if assignment is None else task_ids(messages.TaskIds, assignment.warmup),
        endpoint_information_epoch=answer.endpoint_epoch,
        partitions_by_user_endpoint=None if answer.endpoints is None else list(map(_endpoint, answer.endpoints)),
    )


def _endpoint(found: EndpointPartitions) -> messages.EndpointToPartitions:
    def listed(topics: Iterable[TopicPartitions]) -> Sequence[messages.TopicPartition]:
        return [messages.TopicPartition(topic=topic, partitions=indexes) for topic, indexes in topics]

    return messages.EndpointToPartitions(
        user_endpoint=messages.Endpoint(host=found.endpoint.host, port=found.endpoint.port),
        active_partitions=listed(found.active),
        standby_partitions=listed(found.standby),
    )


def _refusal(error: KafkaError) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(error_code=error.code, error_message=error.message or None)


def guard(caller: Caller, request: StreamsGroupHeartbeatRequest) -> Verdict:
    """Check READ on the group, and DESCRIBE on the topics of the topology."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(StreamsGroupHeartbeatResponse(error_code=GROUP_DENIED))
    try:
        check_names(request)
    except KafkaError as refused:
        return Refused(_refusal(refused))
    names = topic_names(request)
    if len(caller.topics(AclOperation.DESCRIBE, names)) < len(names):
        return Refused(StreamsGroupHeartbeatResponse(error_code=TOPIC_DENIED))
    return Passed(request)


API = declare(StreamsGroupHeartbeatRequest, handle, guard=guard, waits_for=group)
