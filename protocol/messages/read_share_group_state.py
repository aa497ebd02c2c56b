"""ReadShareGroupState: the states of share partitions, asked for by their leaders (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 84


@message
class PartitionData:
    partition: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")


@message
class ReadStateData:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0", flexible="0+")
class ReadShareGroupStateRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[ReadStateData] = wire.array(ReadStateData, "0+")


@message
class StateBatch:
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    delivery_state: int = wire.int8("0+")
    delivery_count: int = wire.int16("0+")


@message
class PartitionResult:
    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    state_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    state_batches: Sequence[StateBatch] = wire.array(StateBatch, "0+")


@message
class ReadStateResult:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0", flexible="0+")
class ReadShareGroupStateResponse:
    results: Sequence[ReadStateResult] = wire.array(ReadStateResult, "0+")
