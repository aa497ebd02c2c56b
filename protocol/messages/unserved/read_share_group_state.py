"""ReadShareGroupState: the persisted state of a share partition (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 84


@message
class PartitionData:
    """An element of `ReadStateData.partitions`."""

    partition: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")


@message
class ReadStateData:
    """An element of `ReadShareGroupStateRequest.topics`."""

    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    """Request of the ReadShareGroupState API."""

    group_id: str = wire.string("0+")
    topics: Sequence[ReadStateData] = wire.array(ReadStateData, "0+")


@message
class StateBatch:
    """An element of `PartitionResult.state_batches`."""

    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    delivery_state: int = wire.int8("0+")
    delivery_count: int = wire.int16("0+")


@message
class PartitionResult:
    """An element of `ReadStateResult.partitions`."""

    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    state_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    state_batches: Sequence[StateBatch] = wire.array(StateBatch, "0+")


@message
class ReadStateResult:
    """An element of `ReadShareGroupStateResponse.results`."""

    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    """Response of the ReadShareGroupState API."""

    results: Sequence[ReadStateResult] = wire.array(ReadStateResult, "0+")
