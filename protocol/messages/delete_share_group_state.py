"""DeleteShareGroupState: removes the states of share partitions, sent by group coordinators (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 86


@message
class PartitionData:
    partition: int = wire.int32("0+")


@message
class DeleteStateData:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[DeleteStateData] = wire.array(DeleteStateData, "0+")


@message
class PartitionResult:
    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message
class DeleteStateResult:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    results: Sequence[DeleteStateResult] = wire.array(DeleteStateResult, "0+")
