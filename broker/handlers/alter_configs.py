"""AlterConfigs: replace all configs of a topic. Older than IncrementalAlterConfigs, and clients still use it."""

from collections import Counter

from broker.configs import check_topic_configs
from broker.handlers.incremental_alter_configs import find_alterable
from broker.net.connection import Exchange
from broker.node import Node
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.alter_configs import (
    KEY,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from s3stream.errors import StorageError

__all__ = ["KEY", "handle"]


async def handle(node: Node, request: AlterConfigsRequest, context: Exchange) -> AlterConfigsResponse:
    """Change each resource that can be changed."""
    del context
    times = Counter((wanted.resource_type, wanted.resource_name) for wanted in request.resources)
    responses = []
    for wanted in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            is_duplicate = times[wanted.resource_type, wanted.resource_name] > 1
            await _replace(node, wanted, is_duplicate=is_duplicate, validate_only=request.validate_only)
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
    return AlterConfigsResponse(responses=responses)


async def _replace(node: Node, wanted: AlterConfigsResource, *, is_duplicate: bool, validate_only: bool) -> None:
    names = [config.name for config in wanted.configs]
    topic = find_alterable(node, wanted.resource_type, wanted.resource_name, names, is_duplicate=is_duplicate)
    for config in wanted.configs:
        if config.value is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {config.name}")
    configs = check_topic_configs({config.name: config.value for config in wanted.configs}, node.settings)
    if not validate_only:
        unset = [name for name in topic.info.configs if name not in configs]
        await node.topics.alter(topic.name, set_configs=configs, unset=unset)
