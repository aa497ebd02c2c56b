"""DescribeGroups: the state and members of classic groups (KIP-430).

Versions:
    v0  first version
    v1  response adds throttle_time_ms
    v2  throttling is applied after the response
    v3  request adds include_authorized_operations. response adds groups.authorized_operations
    v4  response adds groups.members.group_instance_id
    v5  flexible
    v6  response adds groups.error_message. GROUP_ID_NOT_FOUND instead of a dead group (KIP-1043)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 15


@message(versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    groups: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    include_authorized_operations: bool = wire.boolean("3+")


@message
class DescribedGroupMember:
    member_id: str = wire.string("0+")
    group_instance_id: str | None = wire.string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = wire.string("0+")
    client_host: str = wire.string("0+")
    member_metadata: bytes = wire.bytes_("0+")
    member_assignment: bytes = wire.bytes_("0+")


@message
class DescribedGroup:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("6+", nullable="6+", default=None)
    group_id: str = wire.string("0+")
    group_state: str = wire.string("0+")
    protocol_type: str = wire.string("0+")
    protocol_data: str = wire.string("0+")
    members: Sequence[DescribedGroupMember] = wire.array(DescribedGroupMember, "0+")
    authorized_operations: int = wire.int32("3+", default=-(2**31))


@message(versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    groups: Sequence[DescribedGroup] = wire.array(DescribedGroup, "0+")
