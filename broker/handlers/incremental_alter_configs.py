"""IncrementalAlterConfigs: set, delete, append to and subtract from configs (KIP-339)."""

from collections import Counter

from broker.net.connection import Exchange
from broker.node import Node
from broker.resources import RESOURCES
from broker.resources.values import Change, Resource
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.incremental_alter_configs import (
    KEY,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from s3stream.errors import StorageError

__all__ = ["KEY", "find_resource", "handle"]


def find_resource(resource_type: int, *, is_duplicate: bool) -> Resource:
    """What is to be changed. Raises INVALID_REQUEST when a request has it twice, or nothing is of that type."""
    if is_duplicate:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    resource = RESOURCES.get(resource_type)
    if resource is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource_type}")
    return resource


async def handle(
    node: Node, request: IncrementalAlterConfigsRequest, context: Exchange
) -> IncrementalAlterConfigsResponse:
    """Change each resource that can be changed."""
    del context
    times = Counter((wanted.resource_type, wanted.resource_name) for wanted in request.resources)
    responses = []
    for wanted in request.resources:
        code, message = ErrorCode.NONE, None
        is_duplicate = times[wanted.resource_type, wanted.resource_name] > 1
        try:
            await _alter(node, wanted, is_duplicate=is_duplicate, validate_only=request.validate_only)
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


async def _alter(node: Node, wanted: AlterConfigsResource, *, is_duplicate: bool, validate_only: bool) -> None:
    resource = find_resource(wanted.resource_type, is_duplicate=is_duplicate)
    changes = [Change(config.name, config.config_operation, config.value) for config in wanted.configs]
    await resource.alter(node, wanted.resource_name, changes, validate_only=validate_only)
