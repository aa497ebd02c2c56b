"""ListConfigResources: the resources that have configs (KIP-714, KIP-1142).

Versions:
    v0  first version. flexible
    v1  request adds resource_types. response adds config_resources.resource_type
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 74


@message(versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    resource_types: Sequence[int] = wire.array(wire.Kind.INT8, "1+")


@message
class ConfigResource:
    resource_name: str = wire.string("0+")
    resource_type: int = wire.int8("1+", default=16, ignorable=True)


@message(versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    config_resources: Sequence[ConfigResource] = wire.array(ConfigResource, "0+")
