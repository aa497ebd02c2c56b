"""ShareGroupHeartbeat: join, stay in and leave a share group (KIP-932).

Versions:
    v1  oldest version served
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 76


@message(versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    """Request of the ShareGroupHeartbeat API."""

    group_id: str = wire.string("1+")
    member_id: str = wire.string("1+")
    member_epoch: int = wire.int32("1+")
    rack_id: str | None = wire.string("1+", nullable="1+", default=None)
    subscribed_topic_names: Sequence[str] | None = wire.array(wire.Kind.STRING, "1+", nullable="1+", default=None)


@message
class TopicPartitions:
    """An element of `Assignment.topic_partitions`."""

    topic_id: bytes = wire.uuid("1+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "1+")


@message
class Assignment:
    """The value of `ShareGroupHeartbeatResponse.assignment`."""

    topic_partitions: Sequence[TopicPartitions] = wire.array(TopicPartitions, "1+")


@message(versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    """Response of the ShareGroupHeartbeat API."""

    throttle_time_ms: int = wire.int32("1+")
    error_code: int = wire.int16("1+")
    error_message: str | None = wire.string("1+", nullable="1+", default=None)
    member_id: str | None = wire.string("1+", nullable="1+", default=None)
    member_epoch: int = wire.int32("1+")
    heartbeat_interval_ms: int = wire.int32("1+")
    assignment: Assignment | None = wire.struct(Assignment, "1+", nullable="1+", default=None)
