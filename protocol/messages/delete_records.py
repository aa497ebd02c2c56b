"""DeleteRecords: raise the log start offset of partitions (KIP-107).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 21


@message
class DeleteRecordsPartition:
    partition_index: int = wire.int32("0+")
    offset: int = wire.int64("0+")


@message
class DeleteRecordsTopic:
    name: str = wire.string("0+")
    partitions: Sequence[DeleteRecordsPartition] = wire.array(DeleteRecordsPartition, "0+")


@message(versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    topics: Sequence[DeleteRecordsTopic] = wire.array(DeleteRecordsTopic, "0+")
    timeout_ms: int = wire.int32("0+")


@message
class DeleteRecordsPartitionResult:
    partition_index: int = wire.int32("0+")
    low_watermark: int = wire.int64("0+")
    error_code: int = wire.int16("0+")


@message
class DeleteRecordsTopicResult:
    name: str = wire.string("0+")
    partitions: Sequence[DeleteRecordsPartitionResult] = wire.array(DeleteRecordsPartitionResult, "0+")


@message(versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: int = wire.int32("0+")
    topics: Sequence[DeleteRecordsTopicResult] = wire.array(DeleteRecordsTopicResult, "0+")
