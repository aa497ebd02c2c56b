"""TxnOffsetCommit: offsets of a group that take effect when a transaction commits. Answered when they are durable.

A client of transaction.version 2 does not send AddOffsetsToTxn first: from version 5 on this request adds the group.
"""

import asyncio

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, TRANSACTION_DENIED, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.commits import CommitAnswers, check_offsets, commit_error
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

ANSWERS = CommitAnswers(TxnOffsetCommitResponse, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)


async def handle(serving: Serving, request: TxnOffsetCommitRequest, exchange: Exchange) -> TxnOffsetCommitResponse:
    """Check every partition, and pass the valid ones to the group as part of the transaction."""
    version = exchange.api_version
    offsets, refused = check_offsets(
        serving, request.topics, by_id=version >= TOPIC_ID_VERSION, now_ms=serving.now_ms()
    )
    error = ErrorCode.NONE
    if offsets:
        try:
            error = await _commit(serving, request, version, offsets)
        except KafkaError as refusal:
            error = refusal.code
        except StorageError:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ANSWERS.answer(request.topics, refused, commit_error(error))


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
    if not caller.may_transaction(AclOperation.WRITE, request.transactional_id):
        return ANSWERS.refuse(request.topics, TRANSACTION_DENIED)
    if not caller.may_group(AclOperation.READ, request.group_id):
        return ANSWERS.refuse(request.topics, GROUP_DENIED)
    return ANSWERS.check_topics(caller, request)


API = declare(TxnOffsetCommitRequest, handle, guard=guard, waits_for=group)
