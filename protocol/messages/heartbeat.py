"""Heartbeat: keep a member of a classic group alive, and notify it of rebalances.

Versions:
    v0  first version
    v1  response adds throttle_time_ms
    v2  throttling is applied after the response
    v3  request adds group_instance_id
    v4  flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 12


@message(versions="0-4", flexible="4+")
class HeartbeatRequest:
    group_id: str = wire.string("0+")
    generation_id: int = wire.int32("0+")
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)


@message(versions="0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("0+")
