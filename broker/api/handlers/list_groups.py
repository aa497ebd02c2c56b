"""ListGroups: ids of the groups coordinated here, filtered by state and type (KIP-518, KIP-848)."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse


def handle(serving: Serving, request: ListGroupsRequest, _exchange: Exchange) -> ListGroupsResponse:
    """Answer at once. Filters ignore case; an unknown name matches nothing."""
    states = {state.lower() for state in request.states_filter}
    types = {type_.lower() for type_ in request.types_filter}
    try:
        groups = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in serving.groups.groups()
            if (not states or group.state.lower() in states) and (not types or group.group_type in types)
        ]
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(groups=groups)


def guard(caller: Caller, request: ListGroupsRequest) -> Verdict:
    """Leave out groups that the client may not describe, unless it may describe the cluster."""
    if caller.may_cluster(AclOperation.DESCRIBE, audited=False):
        return Passed(request)

    def amend(response: ListGroupsResponse) -> ListGroupsResponse:
        seen = [
            group for group in response.groups if caller.may_group(AclOperation.DESCRIBE, group.group_id, audited=False)
        ]
        return replace(response, groups=seen)

    return Passed(request, amend)


API = declare(ListGroupsRequest, handle, guard=guard, reads=True, relayed=True)
