"""DeleteRecords: move the start of partitions forward. Offset -1 stands for the high watermark."""

from collections.abc import Iterable
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import TOPIC_DENIED, Verdict, merged, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import partitions
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
)
from anabranch.s3stream.errors import OffsetOutOfRange, StorageError

HIGH_WATERMARK = -1
INVALID_LOW_WATERMARK = -1


async def handle(serving: Serving, request: DeleteRecordsRequest, _exchange: Exchange) -> DeleteRecordsResponse:
    """Trim each partition. An error concerns its partition only."""
    topics = []
    for topic in request.topics:
        results = [await _trim(serving, topic.name, requested) for requested in topic.partitions]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    return DeleteRecordsResponse(topics=topics)


async def _trim(serving: Serving, topic: str, requested: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = serving.topics.partition(topic, requested.partition_index)
        await partition.stream.trim(_requested_start(partition, requested), asked=True)
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


def guard(caller: Caller, request: DeleteRecordsRequest) -> Verdict:
    """Check DELETE on each topic."""
    deletable = caller.topics(AclOperation.DELETE, (topic.name for topic in request.topics))
    allowed, denied = split(request.topics, lambda topic: topic.name in deletable)
    return merged(replace(request, topics=allowed), [_undeleted(topic) for topic in denied])


def _undeleted(topic: DeleteRecordsTopic) -> DeleteRecordsTopicResult:
    return DeleteRecordsTopicResult(
        name=topic.name, partitions=[_failure(each, TOPIC_DENIED) for each in topic.partitions]
    )


def _changes(_request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Iterable[Change]:
    for topic in response.topics:
        for each in topic.partitions:
            yield Change("TOPIC", f"{topic.name}-{each.partition_index}", each.error_code)


API = declare(
    DeleteRecordsRequest,
    handle,
    guard=guard,
    changes=_changes,
    waits_for=partitions(
        lambda request: ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    ),
)
