"""AlterShareGroupOffsets (KIP-932): set the start offsets of an empty share group. Answered when they are durable."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_protocol import ask, check_share_protocol
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition
from anabranch.broker.kafka.groups.share.creator import outcome
from anabranch.broker.kafka.groups.share.requests import AlterOffsets, StatesCreated, StatesToCreate
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def handle(
    serving: Serving, request: AlterShareGroupOffsetsRequest, _exchange: Exchange
) -> AlterShareGroupOffsetsResponse:
    """Begin in the group, have the share coordinators create states anew, and end in the group."""
    offsets = {
        TopicIdPartition(topic.topic_id, wanted.partition_index): wanted.start_offset
        for named in request.topics
        if (topic := serving.topics.get(named.topic_name)) is not None
        for wanted in named.partitions
        if 0 <= wanted.partition_index < len(topic.partitions)
    }
    try:
        errors = await _alter(serving, request.group_id, offsets)
    except KafkaError as error:
        return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message or None)
    return AlterShareGroupOffsetsResponse(responses=[_answer(serving, topic, errors) for topic in request.topics])


async def _alter(
    serving: Serving, group_id: str, offsets: Mapping[TopicIdPartition, int]
) -> Mapping[TopicIdPartition, ErrorCode]:
    check_share_protocol(serving)
    shard = serving.groups.shard_with_id(group_id)
    if not offsets and shard.group(group_id) is None:
        return {}
    asked: StatesToCreate = await ask(shard, group_id, lambda ticket: AlterOffsets(offsets, ticket))
    if not asked.states:
        return {}
    errors = await serving.share_persister.initialize(asked.states)
    created = outcome(asked, errors)
    await ask(shard, group_id, lambda ticket: StatesCreated(created.created, created.failed, ticket))
    return {TopicIdPartition(key.topic_id, key.partition): code for key, code in errors.items()}


def _answer(
    serving: Serving, named: AlterShareGroupOffsetsRequestTopic, errors: Mapping[TopicIdPartition, ErrorCode]
) -> AlterShareGroupOffsetsResponseTopic:
    topic = serving.topics.get(named.topic_name)
    topic_id = bytes(16) if topic is None else topic.topic_id
    partitions = []
    for wanted in named.partitions:
        code = errors.get(TopicIdPartition(topic_id, wanted.partition_index), UNKNOWN)
        partitions.append(
            AlterShareGroupOffsetsResponsePartition(
                partition_index=wanted.partition_index,
                error_code=code,
                error_message=code.message if code else None,
            )
        )
    return AlterShareGroupOffsetsResponseTopic(topic_name=named.topic_name, topic_id=topic_id, partitions=partitions)


def guard(caller: Caller, request: AlterShareGroupOffsetsRequest) -> Verdict:
    """Check READ on the group and on each topic."""
    if not caller.may_group(AclOperation.READ, request.group_id):
        return Refused(AlterShareGroupOffsetsResponse(error_code=GROUP_DENIED, error_message=GROUP_DENIED.message))
    allowed, denied = split(request.topics, lambda topic: caller.may_topic(AclOperation.READ, topic.topic_name))
    errors = [
        AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name,
            partitions=[
                AlterShareGroupOffsetsResponsePartition(
                    partition_index=wanted.partition_index, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message
                )
                for wanted in topic.partitions
            ],
        )
        for topic in denied
    ]

    def amend(response: AlterShareGroupOffsetsResponse) -> AlterShareGroupOffsetsResponse:
        return response if response.error_code else replace(response, responses=[*response.responses, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _changes(request: AlterShareGroupOffsetsRequest, response: AlterShareGroupOffsetsResponse) -> Iterable[Change]:
    if response.error_code:
        yield Change("GROUP", request.group_id, response.error_code)
    for topic in response.responses:
        code = next((each.error_code for each in topic.partitions if each.error_code), 0)
        yield Change("GROUP", f"{request.group_id}: offsets of {topic.topic_name}", code)


API = declare(AlterShareGroupOffsetsRequest, handle, guard=guard, changes=_changes, waits_for=group, relayed=True)
