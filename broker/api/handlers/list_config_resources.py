"""ListConfigResources (KIP-1142): all topics and living nodes, and the groups and subscriptions that have configs."""

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.resources.table import RESOURCES
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TYPES_SINCE = 1


def handle(serving: Serving, request: ListConfigResourcesRequest, exchange: Exchange) -> ListConfigResourcesResponse:
    """List the resources of the requested types; an empty list requests all. Version 0 requests client metrics."""
    requested = {int(ResourceType.CLIENT_METRICS)}
    if exchange.api_version >= TYPES_SINCE:
        requested = set(request.resource_types or RESOURCES)
    if not requested <= set(RESOURCES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type, resource in RESOURCES.items()
            if resource_type in requested
            for name in resource.names(serving)
        ]
    )


def refusal(_request: ListConfigResourcesRequest, _version: int) -> ListConfigResourcesResponse:
    """Return the answer to a client that is not authorized."""
    return ListConfigResourcesResponse(error_code=CLUSTER_DENIED)


API = declare(ListConfigResourcesRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE_CONFIGS, refusal))
