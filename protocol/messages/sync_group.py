"""SyncGroup: send the leader's assignment, and receive the member's own (KIP-345, KIP-559).

Versions:
    v0  first version
    v1  response adds throttle_time_ms
    v2  throttling is applied after the response
    v3  request adds group_instance_id
    v4  flexible
    v5  request adds protocol_type, protocol_name. response adds protocol_type, protocol_name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 14


@message
class SyncGroupRequestAssignment:
    member_id: str = wire.string("0+")
    assignment: bytes = wire.bytes_("0+")


@message(versions="0-5", flexible="4+")
class SyncGroupRequest:
    group_id: str = wire.string("0+")
    generation_id: int = wire.int32("0+")
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    protocol_type: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)
    assignments: Sequence[SyncGroupRequestAssignment] = wire.array(SyncGroupRequestAssignment, "0+")


@message(versions="0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("0+")
    protocol_type: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = wire.bytes_("0+")
