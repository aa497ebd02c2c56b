"""OffsetForLeaderEpoch: the end offset of a leader epoch, to detect truncation (KIP-101, KIP-320).

Versions:
    v2  oldest version served
    v3  request adds replica_id
    v4  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 23


@message
class OffsetForLeaderPartition:
    partition: int = wire.int32("0+")
    current_leader_epoch: int = wire.int32("2+", default=-1, ignorable=True)
    leader_epoch: int = wire.int32("0+")


@message
class OffsetForLeaderTopic:
    topic: str = wire.string("0+")
    partitions: Sequence[OffsetForLeaderPartition] = wire.array(OffsetForLeaderPartition, "0+")


@message(versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    replica_id: int = wire.int32("3+", default=-2, ignorable=True)
    topics: Sequence[OffsetForLeaderTopic] = wire.array(OffsetForLeaderTopic, "0+")


@message
class EpochEndOffset:
    error_code: int = wire.int16("0+")
    partition: int = wire.int32("0+")
    leader_epoch: int = wire.int32("1+", default=-1, ignorable=True)
    end_offset: int = wire.int64("0+", default=-1)


@message
class OffsetForLeaderTopicResult:
    topic: str = wire.string("0+")
    partitions: Sequence[EpochEndOffset] = wire.array(EpochEndOffset, "0+")


@message(versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = wire.int32("2+", ignorable=True)
    topics: Sequence[OffsetForLeaderTopicResult] = wire.array(OffsetForLeaderTopicResult, "0+")
