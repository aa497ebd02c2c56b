"""OffsetDelete (KIP-496): delete committed offsets of topics that a group no longer reads. Answered when durable."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(serving: Serving, request: OffsetDeleteRequest, _exchange: Exchange) -> OffsetDeleteResponse:
    """Delete the offsets that may be deleted, and wait until that is durable."""
    keys = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    existing = [key for key in keys if serving.topics.has_partition(key.topic, key.partition)]
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def finish(error: ErrorCode) -> None:
        if not done.done():  # the request may have been cancelled
            done.set_result(error)

    try:
        found = serving.groups.shard(request.group_id).offsets.delete(request.group_id, existing, finish)
    except KafkaError as refused:
        return OffsetDeleteResponse(error_code=refused.code)
    if error := await done:
        return OffsetDeleteResponse(error_code=error)
    errors = dict(zip(existing, found, strict=True))
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
            if topic.partitions
        ]
    )


def guard(caller: Caller, request: OffsetDeleteRequest) -> Verdict:
    """Check DELETE on the group, and READ on each topic."""
    if not caller.may_group(AclOperation.DELETE, request.group_id):
        return Refused(OffsetDeleteResponse(error_code=GROUP_DENIED))
    readable = caller.topics(AclOperation.READ, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in readable)
    errors = [_undeleted(topic) for topic in denied]

    def amend(response: OffsetDeleteResponse) -> OffsetDeleteResponse:
        return response if response.error_code else replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _undeleted(topic: OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic:
    return OffsetDeleteResponseTopic(
        name=topic.name,
        partitions=[
            OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=TOPIC_DENIED)
            for each in topic.partitions
        ],
    )


def _changes(request: OffsetDeleteRequest, response: OffsetDeleteResponse) -> Iterable[Change]:
    return (Change("GROUP", request.group_id, response.error_code),)


API = declare(OffsetDeleteRequest, handle, guard=guard, changes=_changes, waits_for=group)
