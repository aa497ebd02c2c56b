"""ListConfigResources: what has configs: topics and brokers here; client metrics are not served, so there are none."""

from broker.handlers.describe_configs import BROKER, TOPIC
from broker.net.connection import Exchange
from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.list_config_resources import (
    KEY,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

__all__ = ["KEY", "handle"]

BROKER_LOGGER = 8
CLIENT_METRICS = 16
GROUP = 32
TYPES_SINCE = 1


def handle(node: Node, request: ListConfigResourcesRequest, context: Exchange) -> ListConfigResourcesResponse:
    """List the resources of the types asked for; none named means all types. Version 0 asks for client metrics only."""
    known = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)
    wanted = set(request.resource_types or known) if context.api_version >= TYPES_SINCE else {CLIENT_METRICS}
    if not wanted <= set(known):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    found: list[ConfigResource] = []
    if TOPIC in wanted:
        found += [ConfigResource(resource_name=topic.name, resource_type=TOPIC) for topic in node.topics]
    if BROKER in wanted:
        found.append(ConfigResource(resource_name=str(node.node_id), resource_type=BROKER))
    return ListConfigResourcesResponse(config_resources=found)
