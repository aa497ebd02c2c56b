"""LeaveGroup: members leave, or an administrator removes static members by their instance ids (KIP-345)."""

from anabranch.broker.api.access.groups import reads_group
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.groups.requests import LeaveRequest, LeavingMember
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

BATCH_VERSION = 3
"""First version in which a request has many members."""


def handle(serving: Serving, request: LeaveGroupRequest, exchange: Exchange) -> LeaveGroupResponse:
    """Answer at once. A rebalance, if any, follows."""
    batch = exchange.api_version >= BATCH_VERSION
    if batch:
        leavers = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    else:
        leavers = [LeavingMember(request.member_id, None)]
    try:
        errors = serving.groups.shard_with_id(request.group_id).membership.handle(
            request.group_id, LeaveRequest(leavers)
        )
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not batch:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.group_instance_id, error_code=error)
            for leaver, error in zip(leavers, errors, strict=True)
        ]
    )


API = declare(LeaveGroupRequest, handle, guard=reads_group(LeaveGroupResponse), waits_for=group)
