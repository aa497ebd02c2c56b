"""Parts that guards of the APIs for groups share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, Guard, Passed, Refused, Verdict
from anabranch.broker.kafka.acls.model import AclOperation, AclResourceType


def reads_group(refusal: Callable[..., Any]) -> Guard[Any]:
    """Return a guard that demands READ on the group. `refusal` is the type of the answer."""

    def guard(caller: Caller, request: Any) -> Verdict:
        if caller.may_group(AclOperation.READ, request.group_id):
            return Passed(request)
        return Refused(refusal(error_code=GROUP_DENIED))

    return guard


def with_operations(caller: Caller, group: Any) -> Any:
    """Return the description of a group with the operations that the client may do."""
    if group.error_code:
        return group
    return replace(group, authorized_operations=caller.operations(AclResourceType.GROUP, group.group_id))
