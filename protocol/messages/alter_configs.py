"""AlterConfigs: replace the configs of a resource as a whole (KIP-133).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 33


@message
class AlterableConfig:
    name: str = wire.string("0+")
    value: str | None = wire.string("0+", nullable="0+")


@message
class AlterConfigsResource:
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")
    configs: Sequence[AlterableConfig] = wire.array(AlterableConfig, "0+")


@message(versions="0-2", flexible="2+")
class AlterConfigsRequest:
    resources: Sequence[AlterConfigsResource] = wire.array(AlterConfigsResource, "0+")
    validate_only: bool = wire.boolean("0+")


@message
class AlterConfigsResourceResponse:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")


@message(versions="0-2", flexible="2+")
class AlterConfigsResponse:
    throttle_time_ms: int = wire.int32("0+")
    responses: Sequence[AlterConfigsResourceResponse] = wire.array(AlterConfigsResourceResponse, "0+")
