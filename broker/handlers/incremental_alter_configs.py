"""IncrementalAlterConfigs: set, delete, append to and subtract from topic configs (KIP-339). A node's are read only."""

from collections import Counter
from collections.abc import Mapping, Sequence

from broker.configs import TOPIC_CONFIGS, ConfigType, check_topic_configs, default_value
from broker.handlers.describe_configs import BROKER, TOPIC
from broker.net.connection import Exchange
from broker.node import Node
from broker.topics import Topic, check_topic_name
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.incremental_alter_configs import (
    KEY,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from s3stream.errors import StorageError

__all__ = ["KEY", "handle"]

SET, DELETE, APPEND, SUBTRACT = range(4)


async def handle(
    node: Node, request: IncrementalAlterConfigsRequest, context: Exchange
) -> IncrementalAlterConfigsResponse:
    """Change each resource that can be changed."""
    del context
    times = Counter((wanted.resource_type, wanted.resource_name) for wanted in request.resources)
    responses = []
    for wanted in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            await _alter(
                node,
                wanted,
                is_duplicate=times[wanted.resource_type, wanted.resource_name] > 1,
                validate_only=request.validate_only,
            )
        except KafkaError as error:
            code, message = error.code, error.message
        except StorageError as error:
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
        responses.append(
            AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=wanted.resource_type,
                resource_name=wanted.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=responses)


def find_alterable(
    node: Node, resource_type: int, name: str, config_names: Sequence[str], *, is_duplicate: bool
) -> Topic:
    """The topic whose configs may be changed. Raises what Kafka raises for everything else."""
    if is_duplicate:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    if resource_type == BROKER:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "Broker configs are read only here: they are settings of the node's start."
        )
    if resource_type != TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    check_topic_name(name)
    topic = node.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    if len(set(config_names)) < len(config_names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    return topic


async def _alter(node: Node, wanted: AlterConfigsResource, *, is_duplicate: bool, validate_only: bool) -> None:
    names = [config.name for config in wanted.configs]
    topic = find_alterable(node, wanted.resource_type, wanted.resource_name, names, is_duplicate=is_duplicate)
    changes = {config.name: _new_value(node, config, topic.info.configs) for config in wanted.configs}
    kept = {name: value for name, value in topic.info.configs.items() if name not in changes}
    set_values = {name: value for name, value in changes.items() if value is not None}
    set_configs = check_topic_configs(set_values, node.settings, beside=kept)
    unset = [name for name, value in changes.items() if value is None]
    if not validate_only:
        await node.topics.alter(wanted.resource_name, set_configs=set_configs, unset=unset)


def _new_value(node: Node, config: AlterableConfig, own: Mapping[str, str]) -> str | None:
    """The value after the change; None when it goes back to the default."""
    if config.config_operation == DELETE:
        return None
    if config.value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
    if config.config_operation == SET:
        return config.value
    row = TOPIC_CONFIGS.get(config.name)
    if row is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {config.name}")
    if config.config_operation not in {APPEND, SUBTRACT}:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation type {config.config_operation} for {config.name}"
        )
    if row.type != ConfigType.LIST:
        operation = "APPEND" if config.config_operation == APPEND else "SUBTRACT"
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"Can't {operation} to key {config.name} because its type is not LIST."
        )
    current = own.get(config.name, default_value(row, node.settings))
    items = [item for item in current.split(",") if item]
    changed = [item for item in config.value.split(",") if item]
    if config.config_operation == APPEND:
        items += [item for item in changed if item not in items]
    else:
        items = [item for item in items if item not in changed]
    return ",".join(items)
