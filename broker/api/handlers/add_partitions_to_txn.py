"""AddPartitionsToTxn: add partitions to a transaction. Answered when the coordinator's record is durable.

Up to version 3, clients of transaction.version 1 send it. From version 4 on it is for brokers: it has many
transactions, and `verify_only` checks whether partitions are in a transaction already.
"""

from collections.abc import Callable, Sequence

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import CLUSTER_DENIED, TOPIC_DENIED, TRANSACTION_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import transactions
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.names import INTERNAL_TOPICS
from anabranch.broker.kafka.transactions.errors import code_for_version
from anabranch.broker.kafka.transactions.state_machine import VERSION_1, VERSION_2
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from anabranch.s3stream.errors import StorageError

BATCH_VERSION = 4
FENCED_VERSION = 2
"""First version whose clients know PRODUCER_FENCED."""

Errors = dict[TopicPartition, ErrorCode]


async def handle(
    serving: Serving, request: AddPartitionsToTxnRequest, exchange: Exchange
) -> AddPartitionsToTxnResponse:
    """Add the partitions of each transaction, all of them or none."""
    version = exchange.api_version
    if version >= BATCH_VERSION:
        results = [await _of_broker(serving, transaction) for transaction in request.transactions]
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    topics = request.v3_and_below_topics
    errors = await _add(serving, request.v3_and_below_transactional_id, producer, topics, VERSION_1)
    errors = {where: code_for_version(code, version, FENCED_VERSION) for where, code in errors.items()}
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, errors))


async def _of_broker(serving: Serving, requested: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
    producer = Producer(requested.producer_id, requested.producer_epoch)
    if requested.verify_only:
        errors = {
            where: _verify(serving, requested.transactional_id, producer, where)
            for where in _partitions(requested.topics)
        }
    else:
        # Nodes that wait for each other's markers must not keep the requests waiting which carry them.
        errors = await _add(
            serving, requested.transactional_id, producer, requested.topics, VERSION_2, waits_for_markers=False
        )
    return AddPartitionsToTxnResult(
        transactional_id=requested.transactional_id, topic_results=_results(requested.topics, errors)
    )


def _verify(serving: Serving, transactional_id: str, producer: Producer, where: TopicPartition) -> ErrorCode:
    try:
        serving.transactions.verify(transactional_id, producer, where)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def _add(
    serving: Serving,
    transactional_id: str,
    producer: Producer,
    topics: Sequence[AddPartitionsToTxnTopic],
    version: int,
    *,
    waits_for_markers: bool = True,
) -> Errors:
    requested = _partitions(topics)
    if not transactional_id:
        return dict.fromkeys(requested, ErrorCode.INVALID_REQUEST)
    unknown = {where for where in requested if not serving.topics.has_partition(where.topic, where.partition)}
    if unknown:
        missing, rest = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        return {where: missing if where in unknown else rest for where in requested}
    try:
        await serving.transactions.add(
            transactional_id, producer, requested, version, waits_for_markers=waits_for_markers
        )
    except KafkaError as error:
        return dict.fromkeys(requested, error.code)
    except StorageError:
        return dict.fromkeys(requested, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return dict.fromkeys(requested, ErrorCode.NONE)


def _partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _results(topics: Sequence[AddPartitionsToTxnTopic], errors: Errors) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=errors[TopicPartition(topic.name, index)]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]


def guard(caller: Caller, request: AddPartitionsToTxnRequest) -> Verdict:
    """Check WRITE on the transactional id and on all topics; versions for brokers need CLUSTER_ACTION."""
    if caller.version >= BATCH_VERSION:
        if caller.may_cluster(AclOperation.CLUSTER_ACTION):
            return Passed(request)
        return Refused(AddPartitionsToTxnResponse(error_code=CLUSTER_DENIED))
    topics = request.v3_and_below_topics
    if not caller.may_transaction(AclOperation.WRITE, request.v3_and_below_transactional_id):
        return Refused(_not_added(topics, lambda *_: TRANSACTION_DENIED))
    names = (topic.name for topic in topics if topic.name not in INTERNAL_TOPICS)
    writable = caller.topics(AclOperation.WRITE, names)
    if all(topic.name in writable for topic in topics):
        return Passed(request)

    def code_of(name: str, index: int) -> ErrorCode:
        if name not in writable:
            return TOPIC_DENIED
        is_known = caller.serving.topics.has_partition(name, index)
        return ErrorCode.OPERATION_NOT_ATTEMPTED if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return Refused(_not_added(topics, code_of))


def _not_added(
    topics: Sequence[AddPartitionsToTxnTopic], code_of: Callable[[str, int], ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code_of(topic.name, index)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


API = declare(
    AddPartitionsToTxnRequest,
    handle,
    guard=guard,
    waits_for=transactions(
        lambda request: (
            [each.transactional_id for each in request.transactions] or (request.v3_and_below_transactional_id,)
        )
    ),
)
