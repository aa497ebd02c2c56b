"""OffsetCommit: store the offsets of a group (KIP-211, KIP-345, KIP-848).

Versions:
    v2  oldest version served
    v3  response adds throttle_time_ms
    v4  throttling is applied after the response
    v5  request drops retention_time_ms
    v6  request adds topics.partitions.committed_leader_epoch
    v7  request adds group_instance_id
    v8  flexible
    v9  STALE_MEMBER_EPOCH and the consumer protocol (KIP-848)
    v10 request adds topics.topic_id; drops topics.name. response adds topics.topic_id; drops topics.name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 8


@message
class OffsetCommitRequestPartition:
    partition_index: int = wire.int32("0+")
    committed_offset: int = wire.int64("0+")
    committed_leader_epoch: int = wire.int32("6+", default=-1, ignorable=True)
    committed_metadata: str | None = wire.string("0+", nullable="0+")


@message
class OffsetCommitRequestTopic:
    name: str = wire.string("0-9", ignorable=True)
    topic_id: bytes = wire.uuid("10+", ignorable=True)
    partitions: Sequence[OffsetCommitRequestPartition] = wire.array(OffsetCommitRequestPartition, "0+")


@message(versions="2-10", flexible="8+")
class OffsetCommitRequest:
    group_id: str = wire.string("0+")
    generation_id_or_member_epoch: int = wire.int32("1+", default=-1, ignorable=True)
    member_id: str = wire.string("1+", ignorable=True)
    group_instance_id: str | None = wire.string("7+", nullable="7+", default=None)
    retention_time_ms: int = wire.int64("2-4", default=-1, ignorable=True)
    topics: Sequence[OffsetCommitRequestTopic] = wire.array(OffsetCommitRequestTopic, "0+")


@message
class OffsetCommitResponsePartition:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")


@message
class OffsetCommitResponseTopic:
    name: str = wire.string("0-9", ignorable=True)
    topic_id: bytes = wire.uuid("10+", ignorable=True)
    partitions: Sequence[OffsetCommitResponsePartition] = wire.array(OffsetCommitResponsePartition, "0+")


@message(versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: int = wire.int32("3+", ignorable=True)
    topics: Sequence[OffsetCommitResponseTopic] = wire.array(OffsetCommitResponseTopic, "0+")
