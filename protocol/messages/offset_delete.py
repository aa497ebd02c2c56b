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
    partition_index: int = wire.int32("0+")


@message
class OffsetDeleteRequestTopic:
    name: str = wire.string("0+")
    partitions: Sequence[OffsetDeleteRequestPartition] = wire.array(OffsetDeleteRequestPartition, "0+")


@message(versions="0", flexible=None)
class OffsetDeleteRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[OffsetDeleteRequestTopic] = wire.array(OffsetDeleteRequestTopic, "0+")


@message
class OffsetDeleteResponsePartition:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class OffsetDeleteResponseTopic:
    name: str = wire.string("0+")
    partitions: Sequence[OffsetDeleteResponsePartition] = wire.array(OffsetDeleteResponsePartition, "0+")


@message(versions="0", flexible=None)
class OffsetDeleteResponse:
    error_code: int = wire.int16("0+")
    throttle_time_ms: int = wire.int32("0+", ignorable=True)
    topics: Sequence[OffsetDeleteResponseTopic] = wire.array(OffsetDeleteResponseTopic, "0+")
