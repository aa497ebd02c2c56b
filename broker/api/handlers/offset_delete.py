"""OffsetDelete (KIP-496): delete committed offsets of topics that a group no longer reads. Answered when durable."""

import asyncio

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


async def handle(node: Node, request: OffsetDeleteRequest, _exchange: Exchange) -> OffsetDeleteResponse:
    """Delete the offsets that may be deleted, and wait until that is durable."""
    keys = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    existing = [key for key in keys if node.topics.has_partition(key.topic, key.partition)]
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def finish(error: ErrorCode) -> None:
        if not done.done():  # the request may have been cancelled
            done.set_result(error)

    try:
        found = node.groups.shard(request.group_id).offsets.delete(request.group_id, existing, finish)
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
