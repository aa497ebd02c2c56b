"""DescribeTopicPartitions: topics and partitions page by page (KIP-966).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 75


@message
class TopicRequest:
    name: str = wire.string("0+")


@message
class Cursor:
    topic_name: str = wire.string("0+")
    partition_index: int = wire.int32("0+")


@message(versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    topics: Sequence[TopicRequest] = wire.array(TopicRequest, "0+")
    response_partition_limit: int = wire.int32("0+", default=2000)
    cursor: Cursor | None = wire.struct(Cursor, "0+", nullable="0+", default=None)


@message
class DescribeTopicPartitionsResponsePartition:
    error_code: int = wire.int16("0+")
    partition_index: int = wire.int32("0+")
    leader_id: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+", default=-1, ignorable=True)
    replica_nodes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    isr_nodes: Sequence[int] = wire.array(wire.Kind.INT32, "0+")
    eligible_leader_replicas: Sequence[int] | None = wire.array(wire.Kind.INT32, "0+", nullable="0+", default=None)
    last_known_elr: Sequence[int] | None = wire.array(wire.Kind.INT32, "0+", nullable="0+", default=None)
    offline_replicas: Sequence[int] = wire.array(wire.Kind.INT32, "0+", ignorable=True)


@message
class DescribeTopicPartitionsResponseTopic:
    error_code: int = wire.int16("0+")
    name: str | None = wire.string("0+", nullable="0+")
    topic_id: bytes = wire.uuid("0+", ignorable=True)
    is_internal: bool = wire.boolean("0+", ignorable=True)
    partitions: Sequence[DescribeTopicPartitionsResponsePartition] = wire.array(
        DescribeTopicPartitionsResponsePartition, "0+"
    )
    topic_authorized_operations: int = wire.int32("0+", default=-(2**31))


@message(versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = wire.int32("0+", ignorable=True)
    topics: Sequence[DescribeTopicPartitionsResponseTopic] = wire.array(DescribeTopicPartitionsResponseTopic, "0+")
    next_cursor: Cursor | None = wire.struct(Cursor, "0+", nullable="0+", default=None)
