"""DeleteRecords: move the start of partitions forward. Offset -1 stands for the high watermark."""

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from anabranch.s3stream.errors import OffsetOutOfRange, StorageError

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


async def handle(node: Node, request: DeleteRecordsRequest, _exchange: Exchange) -> DeleteRecordsResponse:
    """Trim each partition. An error concerns its partition only."""
    topics = []
    for topic in request.topics:
        results = [await _trim(node, topic.name, requested) for requested in topic.partitions]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _trim(node: Node, topic: str, requested: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = node.topics.partition(topic, requested.partition_index)
        await partition.stream.trim(_requested_start(partition, requested))
    except KafkaError as error:
        return _failure(requested, error.code)
    except OffsetOutOfRange:
        return _failure(requested, ErrorCode.OFFSET_OUT_OF_RANGE)
    except StorageError:
        return _failure(requested, ErrorCode.KAFKA_STORAGE_ERROR)
    return DeleteRecordsPartitionResult(
        partition_index=requested.partition_index, low_watermark=partition.log_start_offset
    )


def _requested_start(partition: Partition, requested: DeleteRecordsPartition) -> int:
    if not partition.config.deletable:
        raise KafkaError(ErrorCode.POLICY_VIOLATION)
    offset = partition.high_watermark if requested.offset == HIGH_WATERMARK else requested.offset
    if not 0 <= offset <= partition.high_watermark:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return offset


def _failure(requested: DeleteRecordsPartition, code: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=requested.partition_index, low_watermark=INVALID_LOW_WATERMARK, error_code=code
    )
