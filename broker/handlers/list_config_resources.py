"""ListConfigResources: the topics and nodes there are, groups and subscriptions that have configs (KIP-1142)."""

from broker.net.exchange import Exchange
from broker.node import Node
from broker.resources.table import RESOURCES
from broker.resources.values import ResourceType
from protocol.errors import ErrorCode
from protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TYPES_SINCE = 1


def handle(node: Node, request: ListConfigResourcesRequest, exchange: Exchange) -> ListConfigResourcesResponse:
    """List the resources of the types asked for; none named means all types. Version 0 asks for client metrics only."""
    wanted = {int(ResourceType.CLIENT_METRICS)}
    if exchange.api_version >= TYPES_SINCE:
        wanted = set(request.resource_types or RESOURCES)
    if not wanted <= set(RESOURCES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type, resource in RESOURCES.items()
            if resource_type in wanted
            for name in resource.names(node)
        ]
    )
