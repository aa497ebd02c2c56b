"""Heartbeat: stay alive in a classic group, and learn of rebalances.

Versions:
    v0  the first
    v1  response adds throttle_time_ms
    v2  throttling moves to after the answer
    v3  request adds group_instance_id
    v4  flexible
"""

from protocol import wire
from protocol.wire import message

KEY = 12


@message(versions="0-4", flexible="4+")
class HeartbeatRequest:
    """What a client asks of Heartbeat."""

    group_id: str = wire.string("0+")
    generation_id: int = wire.int32("0+")
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)


@message(versions="0-4", flexible="4+")
class HeartbeatResponse:
    """A node's answer to Heartbeat."""

    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("0+")
