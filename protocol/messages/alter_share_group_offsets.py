"""AlterShareGroupOffsets: set the start offsets of an empty share group (KIP-932).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 91


@message
class AlterShareGroupOffsetsRequestPartition:
    partition_index: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")


@message
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = wire.string("0+")
    partitions: Sequence[AlterShareGroupOffsetsRequestPartition] = wire.array(
        AlterShareGroupOffsetsRequestPartition, "0+"
    )


@message(versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[AlterShareGroupOffsetsRequestTopic] = wire.array(AlterShareGroupOffsetsRequestTopic, "0+")


@message
class AlterShareGroupOffsetsResponsePartition:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = wire.string("0+")
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[AlterShareGroupOffsetsResponsePartition] = wire.array(
        AlterShareGroupOffsetsResponsePartition, "0+"
    )


@message(versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    responses: Sequence[AlterShareGroupOffsetsResponseTopic] = wire.array(AlterShareGroupOffsetsResponseTopic, "0+")
