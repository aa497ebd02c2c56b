"""WriteShareGroupState: changes of the states of share partitions, sent by their leaders (KIP-932).

Versions:
    v0  first version. flexible
    v1  request adds topics.partitions.delivery_complete_count (KIP-1226)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 85


@message
class StateBatch:
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    delivery_state: int = wire.int8("0+")
    delivery_count: int = wire.int16("0+")


@message
class PartitionData:
    partition: int = wire.int32("0+")
    state_epoch: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    delivery_complete_count: int = wire.int32("1+", default=-1, ignorable=True)
    state_batches: Sequence[StateBatch] = wire.array(StateBatch, "0+")


@message
class WriteStateData:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0-1", flexible="0+")
class WriteShareGroupStateRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[WriteStateData] = wire.array(WriteStateData, "0+")


@message
class PartitionResult:
    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message
class WriteStateResult:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0-1", flexible="0+")
class WriteShareGroupStateResponse:
    results: Sequence[WriteStateResult] = wire.array(WriteStateResult, "0+")
