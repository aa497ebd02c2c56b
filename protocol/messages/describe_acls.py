"""DescribeAcls: the access rules that match a filter (KIP-140, KIP-290).

Versions:
    v1  oldest version served
    v2  flexible
    v3  user resource type (KIP-373)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 29


@message(versions="1-3", flexible="2+")
class DescribeAclsRequest:
    resource_type_filter: int = wire.int8("0+")
    resource_name_filter: str | None = wire.string("0+", nullable="0+")
    pattern_type_filter: int = wire.int8("1+", default=3)
    principal_filter: str | None = wire.string("0+", nullable="0+")
    host_filter: str | None = wire.string("0+", nullable="0+")
    operation: int = wire.int8("0+")
    permission_type: int = wire.int8("0+")


@message
class AclDescription:
    principal: str = wire.string("0+")
    host: str = wire.string("0+")
    operation: int = wire.int8("0+")
    permission_type: int = wire.int8("0+")


@message
class DescribeAclsResource:
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")
    pattern_type: int = wire.int8("1+", default=3)
    acls: Sequence[AclDescription] = wire.array(AclDescription, "0+")


@message(versions="1-3", flexible="2+")
class DescribeAclsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    resources: Sequence[DescribeAclsResource] = wire.array(DescribeAclsResource, "0+")
