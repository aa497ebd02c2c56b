"""TxnOffsetCommit: offsets of a group that take effect when a transaction commits. Answered when they are durable.

A client of transaction.version 2 does not send AddOffsetsToTxn first: from version 5 on this request adds the group.
"""

import asyncio

from broker.coordination.internal_topics import OFFSETS_TOPIC
from broker.coordination.shards import partition_of
from broker.coordination.topic_partition import TopicPartition
from broker.groups.offsets import CommittedOffset
from broker.net.exchange import Exchange
from broker.node import Node
from broker.partitions.producers import Producer
from broker.transactions.errors import code_for_writer
from broker.transactions.state_machine import VERSION_2
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from s3stream.errors import StorageError

ABORTABLE_VERSION = 4
ADD_VERSION = 5

Refused = dict[TopicPartition, ErrorCode]


async def handle(node: Node, request: TxnOffsetCommitRequest, exchange: Exchange) -> TxnOffsetCommitResponse:
    """Check every partition, and pass the valid ones to the group as part of the transaction."""
    offsets, refused = _plan(node, request)
    error = ErrorCode.NONE
    if offsets:
        try:
            error = await _commit(node, request, exchange.api_version, offsets)
        except KafkaError as refusal:
            error = refusal.code
        except StorageError:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if error == ErrorCode.MESSAGE_TOO_LARGE:
            error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=refused.get(TopicPartition(topic.name, each.partition_index), error),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _plan(node: Node, request: TxnOffsetCommitRequest) -> tuple[list[tuple[TopicPartition, CommittedOffset]], Refused]:
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: Refused = {}
    now_ms = node.now_ms()
    for requested in request.topics:
        topic = node.topics.get(requested.name)
        for partition in requested.partitions:
            key = TopicPartition(requested.name, partition.partition_index)
            metadata = partition.committed_metadata or ""
            if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
                refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > node.settings.group.offset_metadata_bytes_max:
                refused[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = partition.committed_leader_epoch
                offsets.append((key, CommittedOffset(partition.committed_offset, epoch, metadata, now_ms)))
    return offsets, refused


async def _commit(
    node: Node, request: TxnOffsetCommitRequest, version: int, offsets: list[tuple[TopicPartition, CommittedOffset]]
) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    node.groups.shard(request.group_id)  # raises its error: the client then looks for the coordinator again
    where = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, node.groups.partition_count))
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        if version >= ADD_VERSION:
            await node.transactions.add(request.transactional_id, producer, [where], VERSION_2)
        else:
            await node.transactions.wait_until_idle(request.transactional_id)
        node.transactions.verify(request.transactional_id, producer, where)
    except KafkaError as error:
        knows_abortable = version >= ABORTABLE_VERSION
        return code_for_writer(
            error.code, knows_abortable=knows_abortable, retry=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    # Nothing is awaited between the check and the append, so that no marker can come between.
    node.groups.shard(request.group_id).offsets.commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        offsets,
        lambda error: None if outcome.done() else outcome.set_result(error),
        producer,
    )
    return await outcome
