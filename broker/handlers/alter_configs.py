"""AlterConfigs: replace all configs of a topic, group or subscription. Clients still use it."""

from collections import Counter

from broker.handlers.incremental_alter_configs import find_resource
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
    resource = find_resource(wanted.resource_type, is_duplicate=is_duplicate)
    configs = [(config.name, config.value) for config in wanted.configs]
    await resource.replace(node, wanted.resource_name, configs, validate_only=validate_only)
