"""TxnOffsetCommit: offsets of a group that take effect when a transaction commits. Answered when they are durable.

A client of transaction.version 2 does not send AddOffsetsToTxn first: from version 5 on this request adds the group.
"""

import asyncio
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import (
    GROUP_DENIED,
    TRANSACTION_DENIED,
    Passed,
    Refused,
    Verdict,
    split,
    topic_error,
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
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.kafka.transactions.errors import code_for_writer
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from anabranch.s3stream.errors import StorageError

ABORTABLE_VERSION = 4
ADD_VERSION = 5
TOPIC_ID_VERSION = 6
MEMBER_EPOCH_VERSION = 6
"""First version whose clients know the errors of consumer groups (KIP-1319)."""

Refusals = dict[tuple[int, int], ErrorCode]
"""Errors by position of topic and partition in the request. The others get the outcome of the commit."""


async def handle(serving: Serving, request: TxnOffsetCommitRequest, exchange: Exchange) -> TxnOffsetCommitResponse:
    """Check every partition, and pass the valid ones to the group as part of the transaction."""
    offsets, refused = _plan(serving, request, exchange.api_version)
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
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=refused.get((topic_index, partition_index), error),
                    )
                    for partition_index, each in enumerate(topic.partitions)
                ],
            )
            for topic_index, topic in enumerate(request.topics)
        ]
    )


def _plan(
    serving: Serving, request: TxnOffsetCommitRequest, version: int
) -> tuple[list[tuple[TopicPartition, CommittedOffset]], Refusals]:
    offsets: list[tuple[TopicPartition, CommittedOffset]] = []
    refused: Refusals = {}
    now_ms = serving.now_ms()
    metadata_bytes_max = serving.settings.group.offset_metadata_bytes_max
    for topic_index, requested in enumerate(request.topics):
        topic = serving.topics.get(requested.topic_id if version >= TOPIC_ID_VERSION else requested.name)
        for partition_index, partition in enumerate(requested.partitions):
            if error := _check(topic, partition, version, metadata_bytes_max):
                refused[topic_index, partition_index] = error
                continue
            assert topic is not None, "partitions of unknown topics are refused"
            committed = CommittedOffset(
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch,
                metadata=partition.committed_metadata or "",
                commit_timestamp_ms=now_ms,
            )
            offsets.append((TopicPartition(topic.name, partition.partition_index), committed))
    return offsets, refused


def _check(
    topic: Topic | None, partition: TxnOffsetCommitRequestPartition, version: int, metadata_bytes_max: int
) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_ID_VERSION else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(partition.committed_metadata or "") > metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


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
        return await _append(serving, request, version, offsets, producer)
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
    partition.producers.check_epoch(producer.producer_id, producer.epoch)
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
    version: int,
    offsets: list[tuple[TopicPartition, CommittedOffset]],
    producer: Producer,
) -> ErrorCode:
    """Append the offsets before the first await, so that no marker can come between check and append."""
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    serving.groups.shard(request.group_id).offsets.commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        offsets,
        lambda error: None if outcome.done() else outcome.set_result(error),
        producer,
        knows_member_epochs=version >= MEMBER_EPOCH_VERSION,
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
    codes = {id(topic): topic_error(caller, AclOperation.READ, topic) for topic in request.topics}
    allowed, refused = split(request.topics, lambda topic: codes[id(topic)] is ErrorCode.NONE)
    errors = [_uncommitted(topic, codes[id(topic)]) for topic in refused]
    if errors and not allowed:
        return Refused(TxnOffsetCommitResponse(topics=errors))

    def amend(response: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
        return replace(response, topics=[*response.topics, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _uncommitted(topic: TxnOffsetCommitRequestTopic, code: ErrorCode) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
            for each in topic.partitions
        ],
    )


API = declare(TxnOffsetCommitRequest, handle, guard=guard, waits_for=group)
