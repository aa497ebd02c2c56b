"""IncrementalAlterConfigs: set, delete, append to and subtract from configs (KIP-339).

Versions:
    v0  first version
    v1  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 44


@message
class AlterableConfig:
    name: str = wire.string("0+")
    config_operation: int = wire.int8("0+")
    value: str | None = wire.string("0+", nullable="0+")


@message
class AlterConfigsResource:
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")
    configs: Sequence[AlterableConfig] = wire.array(AlterableConfig, "0+")


@message(versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    resources: Sequence[AlterConfigsResource] = wire.array(AlterConfigsResource, "0+")
    validate_only: bool = wire.boolean("0+")


@message
class AlterConfigsResourceResponse:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")


@message(versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = wire.int32("0+")
    responses: Sequence[AlterConfigsResourceResponse] = wire.array(AlterConfigsResourceResponse, "0+")
