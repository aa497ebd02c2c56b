"""DescribeProducers: the producers active in partitions (KIP-664).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 61


@message
class TopicRequest:
    name: str = wire.string("0+")
    partition_indexes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0", flexible="0+")
class DescribeProducersRequest:
    topics: Sequence[TopicRequest] = wire.array(TopicRequest, "0+")


@message
class ProducerState:
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int32("0+")
    last_sequence: int = wire.int32("0+", default=-1)
    last_timestamp: int = wire.int64("0+", default=-1)
    coordinator_epoch: int = wire.int32("0+")
    current_txn_start_offset: int = wire.int64("0+", default=-1)


@message
class PartitionResponse:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    active_producers: Sequence[ProducerState] = wire.array(ProducerState, "0+")


@message
class TopicResponse:
    name: str = wire.string("0+")
    partitions: Sequence[PartitionResponse] = wire.array(PartitionResponse, "0+")


@message(versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: int = wire.int32("0+")
    topics: Sequence[TopicResponse] = wire.array(TopicResponse, "0+")
