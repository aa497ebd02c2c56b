"""DescribeConfigs: topic and broker configs with Kafka's names, sources, types, synonyms and documentation."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker.configs import TOPIC_CONFIGS, ConfigDef, ConfigSource, ConfigType, broker_configs, default_value
from broker.net.connection import Exchange
from broker.node import Node
from broker.topics import check_topic_name
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.describe_configs import (
    KEY,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

__all__ = ["KEY", "handle"]

TOPIC = 2
BROKER = 4


@dataclass(frozen=True, slots=True)
class _Value:
    """A config's value and where it comes from, nearest first."""

    row: ConfigDef
    value: str
    source: ConfigSource
    read_only: bool
    synonyms: Sequence[tuple[str, str, ConfigSource]]


def handle(node: Node, request: DescribeConfigsRequest, context: Exchange) -> DescribeConfigsResponse:
    """Describe each resource; an error concerns its resource only."""
    del context
    return DescribeConfigsResponse(results=[_resource(node, request, wanted) for wanted in request.resources])


def _resource(node: Node, request: DescribeConfigsRequest, wanted: DescribeConfigsResource) -> DescribeConfigsResult:
    try:
        values = _values(node, wanted)
    except KafkaError as error:
        # As in Kafka: an unknown topic has a code and no message, and no error an empty one.
        message = "" if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else error.message
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=message,
            resource_type=wanted.resource_type,
            resource_name=wanted.resource_name,
        )
    keys = wanted.configuration_keys
    return DescribeConfigsResult(
        error_message="",
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
        configs=[_result(request, value) for value in values if not keys or value.row.name in keys],
    )


def _values(node: Node, wanted: DescribeConfigsResource) -> Iterable[_Value]:
    if wanted.resource_type == TOPIC:
        return _topic_values(node, wanted.resource_name)
    if wanted.resource_type == BROKER:
        return _broker_values(node, wanted.resource_name)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {wanted.resource_type}")


def _topic_values(node: Node, name: str) -> Iterable[_Value]:
    check_topic_name(name)
    topic = node.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return [_topic_value(node, row, topic.info.configs) for row in TOPIC_CONFIGS.values()]


def _topic_value(node: Node, row: ConfigDef, own: Mapping[str, str]) -> _Value:
    default = default_value(row, node.settings)
    synonyms: list[tuple[str, str, ConfigSource]] = []
    if row.name in own:
        synonyms.append((row.name, own[row.name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
    if default != row.default:
        synonyms.append((row.broker_name, default, ConfigSource.STATIC_BROKER_CONFIG))
    if row.broker_name:
        synonyms.append((row.broker_name, row.default, ConfigSource.DEFAULT_CONFIG))
    source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT_CONFIG
    return _Value(row, own.get(row.name, default), source, read_only=False, synonyms=synonyms)


def _broker_values(node: Node, name: str) -> Iterable[_Value]:
    """One's own node by its id; the empty name asks for cluster-wide dynamic configs, of which there are none."""
    if not name:
        return ()
    if not name.lstrip("-").isdigit():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
    if name != str(node.node_id):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {node.node_id} or empty string, but received {name}",
        )
    values = []
    for row, value in broker_configs(node.settings, node.advertised.host, node.advertised.port):
        source = ConfigSource.DEFAULT_CONFIG if value == row.default else ConfigSource.STATIC_BROKER_CONFIG
        synonyms = [(row.name, value, source)]
        if source != ConfigSource.DEFAULT_CONFIG:
            synonyms.append((row.name, row.default, ConfigSource.DEFAULT_CONFIG))
        values.append(_Value(row, value, source, read_only=True, synonyms=synonyms))
    return values


def _result(request: DescribeConfigsRequest, value: _Value) -> DescribeConfigsResourceResult:
    synonyms = [DescribeConfigsSynonym(name=name, value=text, source=source) for name, text, source in value.synonyms]
    return DescribeConfigsResourceResult(
        name=value.row.name,
        value=value.value,
        read_only=value.read_only,
        config_source=value.source,
        is_sensitive=False,
        synonyms=synonyms if request.include_synonyms else (),
        config_type=ConfigType(value.row.type),
        documentation=value.row.documentation if request.include_documentation else None,
    )
