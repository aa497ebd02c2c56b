"""OffsetDelete: remove stored offsets of a group (KIP-496).

Versions:
    v0  first version
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 47


@message
class OffsetDeleteRequestPartition:
    """An element of `OffsetDeleteRequestTopic.partitions`."""

    partition_index: int = wire.int32("0+")


@message
class OffsetDeleteRequestTopic:
    """An element of `OffsetDeleteRequest.topics`."""

    name: str = wire.string("0+")
    partitions: Sequence[OffsetDeleteRequestPartition] = wire.array(OffsetDeleteRequestPartition, "0+")


@message(versions="0", flexible=None)
class OffsetDeleteRequest:
    """Request of the OffsetDelete API."""

    group_id: str = wire.string("0+")
    topics: Sequence[OffsetDeleteRequestTopic] = wire.array(OffsetDeleteRequestTopic, "0+")


@message
class OffsetDeleteResponsePartition:
    """An element of `OffsetDeleteResponseTopic.partitions`."""

    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class OffsetDeleteResponseTopic:
    """An element of `OffsetDeleteResponse.topics`."""

    name: str = wire.string("0+")
    partitions: Sequence[OffsetDeleteResponsePartition] = wire.array(OffsetDeleteResponsePartition, "0+")


@message(versions="0", flexible=None)
class OffsetDeleteResponse:
    """Response of the OffsetDelete API."""

    error_code: int = wire.int16("0+")
    throttle_time_ms: int = wire.int32("0+", ignorable=True)
    topics: Sequence[OffsetDeleteResponseTopic] = wire.array(OffsetDeleteResponseTopic, "0+")
