"""ListGroups: the groups a node coordinates (KIP-518, KIP-848).

Versions:
    v0  first version
    v1  response adds throttle_time_ms
    v2  throttling is applied after the response
    v3  flexible
    v4  request adds states_filter. response adds groups.group_state
    v5  request adds types_filter. response adds groups.group_type
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 16


@message(versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: Sequence[str] = wire.array(wire.Kind.STRING, "4+")
    types_filter: Sequence[str] = wire.array(wire.Kind.STRING, "5+")


@message
class ListedGroup:
    group_id: str = wire.string("0+")
    protocol_type: str = wire.string("0+")
    group_state: str = wire.string("4+", ignorable=True)
    group_type: str = wire.string("5+", ignorable=True)


@message(versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("0+")
    groups: Sequence[ListedGroup] = wire.array(ListedGroup, "0+")
