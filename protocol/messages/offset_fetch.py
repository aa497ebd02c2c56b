"""OffsetFetch: read the offsets a group stored (KIP-447, KIP-709, KIP-848).

Versions:
    v1  oldest version served
    v2  request lets topics be null. response adds error_code
    v3  response adds throttle_time_ms
    v4  throttling is applied after the response
    v5  response adds topics.partitions.committed_leader_epoch
    v6  flexible
    v7  request adds require_stable
    v8  request adds groups; drops group_id, topics. response adds groups; drops topics, error_code. several groups in
        one request (KIP-709)
    v9  request adds groups.member_id, groups.member_epoch
    v10 request adds groups.topics.topic_id; drops groups.topics.name. response adds groups.topics.topic_id; drops
        groups.topics.name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 9


@message
class OffsetFetchRequestTopic:
    name: str = wire.string("0-7")
    partition_indexes: Sequence[int] = wire.array(wire.Kind.INT32, "0-7")


@message
class OffsetFetchRequestTopics:
    name: str = wire.string("8-9", ignorable=True)
    topic_id: bytes = wire.uuid("10+", ignorable=True)
    partition_indexes: Sequence[int] = wire.array(wire.Kind.INT32, "8+")


@message
class OffsetFetchRequestGroup:
    group_id: str = wire.string("8+")
    member_id: str | None = wire.string("9+", nullable="9+", default=None, ignorable=True)
    member_epoch: int = wire.int32("9+", default=-1, ignorable=True)
    topics: Sequence[OffsetFetchRequestTopics] | None = wire.array(OffsetFetchRequestTopics, "8+", nullable="8+")


@message(versions="1-10", flexible="6+")
class OffsetFetchRequest:
    group_id: str = wire.string("0-7")
    topics: Sequence[OffsetFetchRequestTopic] | None = wire.array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: Sequence[OffsetFetchRequestGroup] = wire.array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = wire.boolean("7+")


@message
class OffsetFetchResponsePartition:
    partition_index: int = wire.int32("0-7")
    committed_offset: int = wire.int64("0-7")
    committed_leader_epoch: int = wire.int32("5-7", default=-1, ignorable=True)
    metadata: str | None = wire.string("0-7", nullable="0-7")
    error_code: int = wire.int16("0-7")


@message
class OffsetFetchResponseTopic:
    name: str = wire.string("0-7")
    partitions: Sequence[OffsetFetchResponsePartition] = wire.array(OffsetFetchResponsePartition, "0-7")


@message
class OffsetFetchResponsePartitions:
    partition_index: int = wire.int32("8+")
    committed_offset: int = wire.int64("8+")
    committed_leader_epoch: int = wire.int32("8+", default=-1, ignorable=True)
    metadata: str | None = wire.string("8+", nullable="8+")
    error_code: int = wire.int16("8+")


@message
class OffsetFetchResponseTopics:
    name: str = wire.string("8-9", ignorable=True)
    topic_id: bytes = wire.uuid("10+", ignorable=True)
    partitions: Sequence[OffsetFetchResponsePartitions] = wire.array(OffsetFetchResponsePartitions, "8+")


@message
class OffsetFetchResponseGroup:
    group_id: str = wire.string("8+")
    topics: Sequence[OffsetFetchResponseTopics] = wire.array(OffsetFetchResponseTopics, "8+")
    error_code: int = wire.int16("8+")


@message(versions="1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: int = wire.int32("3+", ignorable=True)
    topics: Sequence[OffsetFetchResponseTopic] = wire.array(OffsetFetchResponseTopic, "0-7")
    error_code: int = wire.int16("2-7", ignorable=True)
    groups: Sequence[OffsetFetchResponseGroup] = wire.array(OffsetFetchResponseGroup, "8+")
