"""The response to a Produce request, built from the outcome of each batch."""

from collections.abc import Iterable, Sequence

from anabranch.broker.kafka.partitions.record_checks import RecordsRefused
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from anabranch.s3stream.errors import AppendTooLarge, StorageError, StreamFenced
from anabranch.wal.interface import WalError

BatchItem = tuple[TopicProduceData, PartitionProduceData]
"""A topic of the request, and the batch for one of its partitions."""
_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors that Kafka answers without the partition's log start offset."""


def build_response(
    work: Sequence[BatchItem],
    results: Sequence[PartitionProduceResponse],
    leaders: Iterable[Member],
    listener: str,
    error: WalError | None,
) -> ProduceResponse:
    """Group the results by topic, in the order of the request.

    `leaders` are the nodes that results name: the response has their addresses for clients of `listener`. With `error`
    the log has failed: every batch that was appended is answered with KAFKA_STORAGE_ERROR.
    """
    if error is not None:
        results = [
            result if result.error_code else failure(result.index, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            for result in results
        ]
    responses: list[TopicProduceResponse] = []
    previous: TopicProduceData | None = None
    partitions: list[PartitionProduceResponse] = []
    for (topic, _), result in zip(work, results, strict=True):
        if topic is not previous:
            previous = topic
            partitions = []
            responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
        partitions.append(result)
    endpoints = [
        NodeEndpoint(node_id=leader.node_id, host=address.host, port=address.port, rack=leader.rack or None)
        for leader in leaders
        if (address := leader.at(listener)) is not None
    ]
    return ProduceResponse(responses=responses, node_endpoints=endpoints)


def failure(index: int, code: ErrorCode, message: str) -> PartitionProduceResponse:
    """Answer for a batch that was not appended."""
    return PartitionProduceResponse(index=index, error_code=code, base_offset=-1, error_message=message)


def refusal(index: int, error: KafkaError, log_start_offset: int) -> PartitionProduceResponse:
    """Answer for a batch that its partition refuses, with the records at fault (KIP-467)."""
    if error.code in _WITHOUT_LOG_START:
        return failure(index, error.code, error.message)
    errors = error.errors if isinstance(error, RecordsRefused) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        log_start_offset=log_start_offset,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=message) for at, message in errors
        ],
        error_message=error.message,
    )


def code_of(error: StorageError) -> ErrorCode:
    """Error code of a failed append."""
    if isinstance(error, AppendTooLarge):
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, StreamFenced) else ErrorCode.KAFKA_STORAGE_ERROR


def refuse_all(request: ProduceRequest, code: ErrorCode) -> ProduceResponse:
    """Answer every batch of the request with the same error."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
