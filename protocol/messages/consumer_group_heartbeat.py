"""ConsumerGroupHeartbeat: join, stay in and leave a consumer group (KIP-848).

Versions:
    v0  first version. flexible
    v1  request adds subscribed_topic_regex. the client generates its member id (KIP-1082);
        subscription by a pattern
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 68


@message
class TopicPartitions:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    group_id: str = wire.string("0+")
    member_id: str = wire.string("0+")
    member_epoch: int = wire.int32("0+")
    instance_id: str | None = wire.string("0+", nullable="0+", default=None)
    rack_id: str | None = wire.string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = wire.int32("0+", default=-1)
    subscribed_topic_names: Sequence[str] | None = wire.array(wire.Kind.STRING, "0+", nullable="0+", default=None)
    subscribed_topic_regex: str | None = wire.string("1+", nullable="1+", default=None)
    server_assignor: str | None = wire.string("0+", nullable="0+", default=None)
    topic_partitions: Sequence[TopicPartitions] | None = wire.array(TopicPartitions, "0+", nullable="0+", default=None)


@message
class Assignment:
    topic_partitions: Sequence[TopicPartitions] = wire.array(TopicPartitions, "0+")


@message(versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    member_id: str | None = wire.string("0+", nullable="0+", default=None)
    member_epoch: int = wire.int32("0+")
    heartbeat_interval_ms: int = wire.int32("0+")
    assignment: Assignment | None = wire.struct(Assignment, "0+", nullable="0+", default=None)
