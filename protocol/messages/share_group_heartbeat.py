"""ShareGroupHeartbeat: join, stay in and leave a share group (KIP-932).

Versions:
    v0  early access in Kafka 4.0, served by no release
    v1  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 76


@message
class TopicPartitions:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    group_id: str = wire.string("0+")
    member_id: str = wire.string("0+")
    member_epoch: int = wire.int32("0+")
    rack_id: str | None = wire.string("0+", nullable="0+", default=None)
    subscribed_topic_names: Sequence[str] | None = wire.array(wire.Kind.STRING, "0+", nullable="0+", default=None)


@message
class Assignment:
    topic_partitions: Sequence[TopicPartitions] = wire.array(TopicPartitions, "0+")


@message(versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    member_id: str | None = wire.string("0+", nullable="0+", default=None)
    member_epoch: int = wire.int32("0+")
    heartbeat_interval_ms: int = wire.int32("0+")
    assignment: Assignment | None = wire.struct(Assignment, "0+", nullable="0+", default=None)
