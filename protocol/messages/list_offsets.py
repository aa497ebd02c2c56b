"""ListOffsets: find offsets by timestamp, or special ones (earliest, latest, ...).

Versions:
    v1  oldest version served
    v2  request adds isolation_level. response adds throttle_time_ms
    v3  throttling is applied after the response
    v4  request adds topics.partitions.current_leader_epoch. response adds topics.partitions.leader_epoch
    v5  as v4
    v6  flexible
    v7  max timestamp, -3 (KIP-734)
    v8  earliest local, -4 (KIP-405)
    v9  latest tiered, -5 (KIP-1005)
    v10 request adds timeout_ms
    v11 earliest pending upload, -6 (KIP-1023)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 2


@message
class ListOffsetsPartition:
    partition_index: int = wire.int32("0+")
    current_leader_epoch: int = wire.int32("4+", default=-1, ignorable=True)
    timestamp: int = wire.int64("0+")


@message
class ListOffsetsTopic:
    name: str = wire.string("0+")
    partitions: Sequence[ListOffsetsPartition] = wire.array(ListOffsetsPartition, "0+")


@message(versions="1-11", flexible="6+")
class ListOffsetsRequest:
    replica_id: int = wire.int32("0+")
    isolation_level: int = wire.int8("2+")
    topics: Sequence[ListOffsetsTopic] = wire.array(ListOffsetsTopic, "0+")
    timeout_ms: int = wire.int32("10+", ignorable=True)


@message
class ListOffsetsPartitionResponse:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    timestamp: int = wire.int64("1+", default=-1)
    offset: int = wire.int64("1+", default=-1)
    leader_epoch: int = wire.int32("4+", default=-1)


@message
class ListOffsetsTopicResponse:
    name: str = wire.string("0+")
    partitions: Sequence[ListOffsetsPartitionResponse] = wire.array(ListOffsetsPartitionResponse, "0+")


@message(versions="1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: int = wire.int32("2+", ignorable=True)
    topics: Sequence[ListOffsetsTopicResponse] = wire.array(ListOffsetsTopicResponse, "0+")
