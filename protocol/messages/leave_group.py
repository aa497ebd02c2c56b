"""LeaveGroup: remove members from a classic group (KIP-345, KIP-800).

Versions:
    v0  first version
    v1  response adds throttle_time_ms
    v2  throttling is applied after the response
    v3  request adds members; drops member_id. response adds members
    v4  flexible
    v5  request adds members.reason
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 13


@message
class MemberIdentity:
    member_id: str = wire.string("3+")
    group_instance_id: str | None = wire.string("3+", nullable="3+", default=None)
    reason: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)


@message(versions="0-5", flexible="4+")
class LeaveGroupRequest:
    group_id: str = wire.string("0+")
    member_id: str = wire.string("0-2")
    members: Sequence[MemberIdentity] = wire.array(MemberIdentity, "3+")


@message
class MemberResponse:
    member_id: str = wire.string("3+")
    group_instance_id: str | None = wire.string("3+", nullable="3+")
    error_code: int = wire.int16("3+")


@message(versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("0+")
    members: Sequence[MemberResponse] = wire.array(MemberResponse, "3+")
