"""DescribeConfigs: the configs of topics, brokers and groups with their sources (KIP-226, KIP-569).

Versions:
    v1  oldest version served
    v2  throttling is applied after the response
    v3  request adds include_documentation. response adds results.configs.config_type, results.configs.documentation
    v4  flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32


@message
class DescribeConfigsResource:
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")
    configuration_keys: Sequence[str] | None = wire.array(wire.Kind.STRING, "0+", nullable="0+")


@message(versions="1-4", flexible="4+")
class DescribeConfigsRequest:
    resources: Sequence[DescribeConfigsResource] = wire.array(DescribeConfigsResource, "0+")
    include_synonyms: bool = wire.boolean("1+")
    include_documentation: bool = wire.boolean("3+")


@message
class DescribeConfigsSynonym:
    name: str = wire.string("1+")
    value: str | None = wire.string("1+", nullable="0+")
    source: int = wire.int8("1+")


@message
class DescribeConfigsResourceResult:
    name: str = wire.string("0+")
    value: str | None = wire.string("0+", nullable="0+")
    read_only: bool = wire.boolean("0+")
    config_source: int = wire.int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = wire.boolean("0+")
    synonyms: Sequence[DescribeConfigsSynonym] = wire.array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = wire.int8("3+", ignorable=True)
    documentation: str | None = wire.string("3+", nullable="0+", ignorable=True)


@message
class DescribeConfigsResult:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    resource_type: int = wire.int8("0+")
    resource_name: str = wire.string("0+")
    configs: Sequence[DescribeConfigsResourceResult] = wire.array(DescribeConfigsResourceResult, "0+")


@message(versions="1-4", flexible="4+")
class DescribeConfigsResponse:
    throttle_time_ms: int = wire.int32("0+")
    results: Sequence[DescribeConfigsResult] = wire.array(DescribeConfigsResult, "0+")
