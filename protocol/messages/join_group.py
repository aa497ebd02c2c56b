"""JoinGroup: become or stay a member of a classic group (KIP-62, KIP-345, KIP-394).

Versions:
    v0  first version
    v1  request adds rebalance_timeout_ms
    v2  response adds throttle_time_ms
    v3  throttling is applied after the response
    v4  MEMBER_ID_REQUIRED may be returned (KIP-394)
    v5  request adds group_instance_id. response adds members.group_instance_id
    v6  flexible
    v7  response adds protocol_type; lets protocol_name be null
    v8  request adds reason
    v9  response adds skip_assignment
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 11


@message
class JoinGroupRequestProtocol:
    name: str = wire.string("0+")
    metadata: bytes = wire.bytes_("0+")


@message(versions="0-9", flexible="6+")
class JoinGroupRequest:
    group_id: str = wire.string("0+")
    session_timeout_ms: int = wire.int32("0+")
    rebalance_timeout_ms: int = wire.int32("1+", default=-1, ignorable=True)
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("5+", nullable="5+", default=None)
    protocol_type: str = wire.string("0+")
    protocols: Sequence[JoinGroupRequestProtocol] = wire.array(JoinGroupRequestProtocol, "0+")
    reason: str | None = wire.string("8+", nullable="8+", default=None, ignorable=True)


@message
class JoinGroupResponseMember:
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = wire.bytes_("0+")


@message(versions="0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: int = wire.int32("2+", ignorable=True)
    error_code: int = wire.int16("0+")
    generation_id: int = wire.int32("0+", default=-1)
    protocol_type: str | None = wire.string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = wire.string("0+", nullable="7+")
    leader: str = wire.string("0+")
    skip_assignment: bool = wire.boolean("9+")
    member_id: str = wire.string("0+")
    members: Sequence[JoinGroupResponseMember] = wire.array(JoinGroupResponseMember, "0+")
