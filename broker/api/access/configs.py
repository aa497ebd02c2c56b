"""Guards of the APIs for configs, and the changes that these APIs are asked for."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, GROUP_DENIED, TOPIC_DENIED, Guard, Passed, Verdict
from anabranch.broker.api.resources.values import ResourceType
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.protocol.errors import ErrorCode


def denial(caller: Caller, operation: AclOperation, resource_type: int, name: str) -> ErrorCode | None:
    """Return the error for a resource whose configs the client may not see or change; None for unknown types, too."""
    if resource_type == ResourceType.TOPIC:
        return None if caller.may_topic(operation, name) else TOPIC_DENIED
    if resource_type == ResourceType.GROUP:
        return None if caller.may_group(operation, name) else GROUP_DENIED
    if resource_type in {ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS}:
        return None if caller.may_cluster(operation) else CLUSTER_DENIED
    return None  # it is refused


def alters_configs(error_type: Callable[..., Any]) -> Guard[Any]:
    """Return a guard that demands ALTER_CONFIGS on each resource. `error_type` is the type of a resource's answer."""

    def guard(caller: Caller, request: Any) -> Verdict:
        counts = Counter((each.resource_type, each.resource_name) for each in request.resources)
        allowed, errors = [], []
        for each in request.resources:
            code = None
            if counts[each.resource_type, each.resource_name] == 1:
                code = denial(caller, AclOperation.ALTER_CONFIGS, each.resource_type, each.resource_name)
            if code is None:
                allowed.append(each)
            else:
                of_broker = each.resource_type in {ResourceType.BROKER, ResourceType.BROKER_LOGGER}
                errors.append(
                    error_type(
                        error_code=code,
                        error_message=None if of_broker else code.message,
                        resource_type=each.resource_type,
                        resource_name=each.resource_name,
                    )
                )

        def amend(response: Any) -> Any:
            return replace(response, responses=[*response.responses, *errors])

        return Passed(replace(request, resources=allowed), amend if errors else None)

    return guard


def changed_configs(_request: Any, response: Any) -> Iterable[Change]:
    """Return the resources whose configs were to be changed."""
    for each in response.responses:
        known = each.resource_type in set(ResourceType)
        kind = ResourceType(each.resource_type).name if known else str(each.resource_type)
        yield Change(kind, each.resource_name, each.error_code)
