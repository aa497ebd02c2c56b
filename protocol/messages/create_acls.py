"""CreateAcls: add access rules (KIP-140, KIP-290).

Versions:
    v1  oldest version served
    v2  flexible
    v3  user resource type (KIP-373)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 30


@message
class AclCreation:
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")
    resource_pattern_type: int = wire.int8("1+", default=3)
    principal: str = wire.string("0+")
    host: str = wire.string("0+")
    operation: int = wire.int8("0+")
    permission_type: int = wire.int8("0+")


@message(versions="1-3", flexible="2+")
class CreateAclsRequest:
    creations: Sequence[AclCreation] = wire.array(AclCreation, "0+")


@message
class AclCreationResult:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")


@message(versions="1-3", flexible="2+")
class CreateAclsResponse:
    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[AclCreationResult] = wire.array(AclCreationResult, "0+")
