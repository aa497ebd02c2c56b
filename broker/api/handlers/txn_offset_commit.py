"""TxnOffsetCommit: offsets of a group that take effect when a transaction commits. Answered when they are durable.

A client of transaction.version 2 does not send AddOffsetsToTxn first: from version 5 on this request adds the group.
"""

import asyncio
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import (
    GROUP_DENIED,
    TOPIC_DENIED,
    TRANSACTION_DENIED,
    Passed,
    Refused,
    Verdict,
    split,
)
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.partitions.transactions import Verification
from anabranch.broker.kafka.transactions.errors import code_for_writer
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from anabranch.s3stream.errors import StorageError

ABORTABLE_VERSION = 4
ADD_VERSION = 5

Refusals = dict[TopicPartition, ErrorCode]


async def handle(serving: Serving, request: TxnOffsetCommitRequest, exchange: Exchange) -> TxnOffsetCommitResponse:
    """Check every partition, and pass the valid ones to the group as part of the transaction."""
    offsets, refused = _plan(serving, request)
    error = ErrorCode.NONE
    if offsets:
        try:
            error = await _commit(serving, request, exchange.api_version, offsets)
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


def _plan(
    serving: Serving, request: TxnOffsetCommitRequest
) -> tuple[list[tuple[TopicPartition, CommittedOffset]], Refusals]:
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: Refusals = {}
    now_ms = serving.now_ms()
    for requested in request.topics:
        topic = serving.topics.get(requested.name)
        for partition in requested.partitions:
            key = TopicPartition(requested.name, partition.partition_index)
            metadata = partition.committed_metadata or ""
            if topic is None or not 0 <= partition.partition_index < len(topic.partitions):
                refused[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > serving.settings.group.offset_metadata_bytes_max:
                refused[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                epoch = partition.committed_leader_epoch
                offsets.append((key, CommittedOffset(partition.committed_offset, epoch, metadata, now_ms)))
    return offsets, refused


async def _commit(
    serving: Serving,
    request: TxnOffsetCommitRequest,
    version: int,
    offsets: list[tuple[TopicPartition, CommittedOffset]],
) -> ErrorCode:
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    serving.groups.shard(request.group_id)  # raises its error: the client then looks for the coordinator again
    where = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, serving.groups.partition_count))
    producer = Producer(request.producer_id, request.producer_epoch)
    transactions = _partition(serving, where).transactions
    verification = transactions.begin_verification(producer)
    try:
        await _verify(serving, request, version, where, verification)
        return await _append(serving, request, offsets, producer)
    finally:
        transactions.end_verification(verification)


def _partition(serving: Serving, where: TopicPartition) -> Partition:
    """Return the group's partition of `__consumer_offsets`. Raises NOT_COORDINATOR if another node leads it now."""
    try:
        return serving.topics.partition(*where)
    except KafkaError:
        raise KafkaError(ErrorCode.NOT_COORDINATOR) from None


async def _verify(
    serving: Serving, request: TxnOffsetCommitRequest, version: int, where: TopicPartition, verification: Verification
) -> None:
    """Return if the group's partition is in the open transaction. Valid until the caller's next await.

    Raises KafkaError with the code for the client, and StorageError.
    """
    partition, producer = _partition(serving, where), verification.producer
    transactional_id = request.transactional_id
    is_open = producer.producer_id in partition.transactions.open
    continues = is_open and partition.producers.epoch(producer.producer_id) == producer.epoch
    if continues and serving.verifier.leads_elsewhere(transactional_id):
        return  # the transaction has no marker here yet
    marked_by = partition.transactions.coordinator_epoch(producer.producer_id)
    code = ErrorCode.NONE
    try:
        await serving.verifier.ask(transactional_id, producer, where, add=version >= ADD_VERSION, marked_by=marked_by)
    except KafkaError as error:
        code = error.code
    if not code and not _partition(serving, where).transactions.is_valid(verification):
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # by now the transaction has ended: ask again
    if code:
        abortable = version >= ABORTABLE_VERSION
        raise KafkaError(code_for_writer(code, knows_abortable=abortable, retry=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))


async def _append(
    serving: Serving,
    request: TxnOffsetCommitRequest,
    offsets: list[tuple[TopicPartition, CommittedOffset]],
    producer: Producer,
) -> ErrorCode:
    """Append the offsets before the first await, so that no marker can come between check and append."""
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    serving.groups.shard(request.group_id).offsets.commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        offsets,
        lambda error: None if outcome.done() else outcome.set_result(error),
        producer,
    )
    return await outcome


def guard(caller: Caller, request: TxnOffsetCommitRequest) -> Verdict:
    """Check WRITE on the transactional id, and READ on the group and each topic."""
    code = None
    if not caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        code = TRANSACTION_DENIED
    elif not caller.may_group(AclOperation.READ, request.group_id):
        code = GROUP_DENIED
    if code is not None:
        return Refused(TxnOffsetCommitResponse(topics=[_uncommitted(topic, code) for topic in request.topics]))
    readable = caller.topics(AclOperation.READ, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in readable)
    errors = [_uncommitted(topic, TOPIC_DENIED) for topic in denied]
    if errors and not allowed:
        return Refused(TxnOffsetCommitResponse(topics=errors))

    def amend(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _uncommitted(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


API = declare(TxnOffsetCommitRequest, handle, guard=guard, waits_for=group)
