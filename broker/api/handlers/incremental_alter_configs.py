"""IncrementalAlterConfigs: set, delete, append to and subtract from configs (KIP-339)."""

from anabranch.broker.api.access.configs import alters_configs, changed_configs
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.resources.changes import change_each
from anabranch.broker.api.resources.values import ConfigChange, Resource
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    serving: Serving, request: IncrementalAlterConfigsRequest, _exchange: Exchange
) -> IncrementalAlterConfigsResponse:
    """Change each resource that can be changed."""

    async def alter(resource: Resource, requested: AlterConfigsResource) -> None:
        changes = [ConfigChange(config.name, config.config_operation, config.value) for config in requested.configs]
        await resource.alter(serving, requested.resource_name, changes, validate_only=request.validate_only)

    outcomes = await change_each(request.resources, alter)
    return IncrementalAlterConfigsResponse(
        responses=[AlterConfigsResourceResponse(**each._asdict()) for each in outcomes]
    )


API = declare(
    IncrementalAlterConfigsRequest,
    handle,
    guard=alters_configs(AlterConfigsResourceResponse),
    changes=changed_configs,
)
