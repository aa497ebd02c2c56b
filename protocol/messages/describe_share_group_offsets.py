"""DescribeShareGroupOffsets: start offsets of a share group's partitions, and how far they lag behind (KIP-932).

Versions:
    v0  first version. flexible
    v1  response adds groups.topics.partitions.lag (KIP-1226)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 90


@message
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = wire.string("0+")
    topics: Sequence[DescribeShareGroupOffsetsRequestTopic] | None = wire.array(
        DescribeShareGroupOffsetsRequestTopic, "0+", nullable="0+"
    )


@message(versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    groups: Sequence[DescribeShareGroupOffsetsRequestGroup] = wire.array(DescribeShareGroupOffsetsRequestGroup, "0+")


@message
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    leader_epoch: int = wire.int32("0+")
    lag: int = wire.int64("1+", default=-1, ignorable=True)
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = wire.string("0+")
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[DescribeShareGroupOffsetsResponsePartition] = wire.array(
        DescribeShareGroupOffsetsResponsePartition, "0+"
    )


@message
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = wire.string("0+")
    topics: Sequence[DescribeShareGroupOffsetsResponseTopic] = wire.array(DescribeShareGroupOffsetsResponseTopic, "0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)


@message(versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: int = wire.int32("0+")
    groups: Sequence[DescribeShareGroupOffsetsResponseGroup] = wire.array(DescribeShareGroupOffsetsResponseGroup, "0+")
