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
    """An element of `DescribeProducersRequest.topics`."""

    name: str = wire.string("0+")
    partition_indexes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0", flexible="0+")
class DescribeProducersRequest:
    """Request of the DescribeProducers API."""

    topics: Sequence[TopicRequest] = wire.array(TopicRequest, "0+")


@message
class ProducerState:
    """An element of `PartitionResponse.active_producers`."""

    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int32("0+")
    last_sequence: int = wire.int32("0+", default=-1)
    last_timestamp: int = wire.int64("0+", default=-1)
    coordinator_epoch: int = wire.int32("0+")
    current_txn_start_offset: int = wire.int64("0+", default=-1)


@message
class PartitionResponse:
    """An element of `TopicResponse.partitions`."""

    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    active_producers: Sequence[ProducerState] = wire.array(ProducerState, "0+")


@message
class TopicResponse:
    """An element of `DescribeProducersResponse.topics`."""

    name: str = wire.string("0+")
    partitions: Sequence[PartitionResponse] = wire.array(PartitionResponse, "0+")


@message(versions="0", flexible="0+")
class DescribeProducersResponse:
    """Response of the DescribeProducers API."""

    throttle_time_ms: int = wire.int32("0+")
    topics: Sequence[TopicResponse] = wire.array(TopicResponse, "0+")
