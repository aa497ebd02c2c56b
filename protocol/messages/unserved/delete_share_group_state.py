"""DeleteShareGroupState: remove the persisted state of a share partition (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 86


@message
class PartitionData:
    """An element of `DeleteStateData.partitions`."""

    partition: int = wire.int32("0+")


@message
class DeleteStateData:
    """An element of `DeleteShareGroupStateRequest.topics`."""

    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupStateRequest:
    """Request of the DeleteShareGroupState API."""

    group_id: str = wire.string("0+")
    topics: Sequence[DeleteStateData] = wire.array(DeleteStateData, "0+")


@message
class PartitionResult:
    """An element of `DeleteStateResult.partitions`."""

    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message
class DeleteStateResult:
    """An element of `DeleteShareGroupStateResponse.results`."""

    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0", flexible="0+")
class DeleteShareGroupStateResponse:
    """Response of the DeleteShareGroupState API."""

    results: Sequence[DeleteStateResult] = wire.array(DeleteStateResult, "0+")
