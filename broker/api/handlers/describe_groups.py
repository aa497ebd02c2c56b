"""DescribeGroups: state, protocol and members of classic groups."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.groups import with_operations
from anabranch.broker.api.access.guard import GROUP_DENIED, Passed, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.state_table import ClassicGroupState
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

NOT_FOUND_VERSION = 6
"""First version in which errors have messages, and an unknown group is one. Before, it is a group in state Dead."""


def handle(serving: Serving, request: DescribeGroupsRequest, exchange: Exchange) -> DescribeGroupsResponse:
    """Answer at once."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
    return DescribeGroupsResponse(
        groups=[_described(serving, group_id, exchange.api_version, operations) for group_id in request.groups]
    )


def _described(serving: Serving, group_id: str, version: int, operations: int) -> DescribedGroup:
    try:
        group = serving.groups.shard(group_id).group(group_id)
    except KafkaError as error:
        message = error.message if version >= NOT_FOUND_VERSION else None
        return DescribedGroup(error_code=error.code, error_message=message, group_id=group_id)
    if not isinstance(group, ClassicGroup):
        found = version < NOT_FOUND_VERSION
        problem = f"Group {group_id} {'not found' if group is None else 'is not a classic group'}."
        return DescribedGroup(
            error_code=ErrorCode.NONE if found else ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=None if found else problem,
            group_id=group_id,
            group_state=ClassicGroupState.DEAD,
            authorized_operations=operations if found else NOT_REQUESTED,
        )
    stable = group.state is ClassicGroupState.STABLE
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=_members(group, stable=stable),
        authorized_operations=operations,
    )


def _members(group: ClassicGroup, *, stable: bool) -> list[DescribedGroupMember]:
    """Describe members. Metadata is included only in a stable group, which has agreed on a protocol."""
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol_name) if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


def guard(caller: Caller, request: DescribeGroupsRequest) -> Verdict:
    """Check DESCRIBE on each group, and name the operations that the client may do."""
    allowed, denied = split(request.groups, lambda group_id: caller.may_group(AclOperation.DESCRIBE, group_id))
    errors = [DescribedGroup(error_code=GROUP_DENIED, group_id=group_id) for group_id in denied]

    def amend(response: DescribeGroupsResponse) -> DescribeGroupsResponse:
        groups = response.groups
        if request.include_authorized_operations:
            groups = [with_operations(caller, group) for group in groups]
        return replace(response, groups=[*errors, *groups])

    return Passed(replace(request, groups=allowed), amend)


API = declare(
    DescribeGroupsRequest,
    handle,
    guard=guard,
    waits_for=groups(lambda request: request.groups),
    relayed=True,
)
