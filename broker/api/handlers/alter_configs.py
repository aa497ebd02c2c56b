"""AlterConfigs: replace all configs of a topic, group or subscription. Superseded, but still in use."""

from anabranch.broker.api.access.configs import alters_configs, changed_configs
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.resources.changes import change_each
from anabranch.broker.api.resources.values import Resource
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(serving: Serving, request: AlterConfigsRequest, _exchange: Exchange) -> AlterConfigsResponse:
    """Change each resource that can be changed."""

    async def replace(resource: Resource, requested: AlterConfigsResource) -> None:
        configs = [(config.name, config.value) for config in requested.configs]
        await resource.replace(serving, requested.resource_name, configs, validate_only=request.validate_only)

    outcomes = await change_each(request.resources, replace)
    return AlterConfigsResponse(responses=[AlterConfigsResourceResponse(**each._asdict()) for each in outcomes])


API = declare(AlterConfigsRequest, handle, guard=alters_configs(AlterConfigsResourceResponse), changes=changed_configs)
