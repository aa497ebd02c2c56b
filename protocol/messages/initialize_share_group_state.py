"""InitializeShareGroupState: the states that share partitions begin with, sent by group coordinators (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 83


@message
class PartitionData:
    partition: int = wire.int32("0+")
    state_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")


@message
class InitializeStateData:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0", flexible="0+")
class InitializeShareGroupStateRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[InitializeStateData] = wire.array(InitializeStateData, "0+")


@message
class PartitionResult:
    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message
class InitializeStateResult:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0", flexible="0+")
class InitializeShareGroupStateResponse:
    results: Sequence[InitializeStateResult] = wire.array(InitializeStateResult, "0+")
