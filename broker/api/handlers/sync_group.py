"""SyncGroup: the leader sends the assignment, each member receives its part. Answered when it is durable."""

import asyncio

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.requests import SyncRequest, SyncResponse
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

NAMES_PROTOCOL_SINCE = 5
"""First version in which a member names the group's protocol (KIP-559)."""


async def handle(serving: Serving, request: SyncGroupRequest, exchange: Exchange) -> SyncGroupResponse:
    """Pass the request to its group and wait for the answer."""
    named = request.protocol_type is not None and request.protocol_name is not None
    if exchange.api_version >= NAMES_PROTOCOL_SINCE and not named:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    ticket: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
    sync = SyncRequest(
        ticket=respond_to(ticket),
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={part.member_id: part.assignment for part in request.assignments},
    )
    try:
        serving.groups.shard_with_id(request.group_id).membership.handle(request.group_id, sync)
        answer = await ticket
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def guard(caller: Caller, request: SyncGroupRequest) -> Verdict:
    """Check READ on the group, after what a request must have."""
    if caller.version >= NAMES_PROTOCOL_SINCE and None in {request.protocol_type, request.protocol_name}:
        return Passed(request)  # it is refused
    if caller.may_group(AclOperation.READ, request.group_id):
        return Passed(request)
    return Refused(SyncGroupResponse(error_code=GROUP_DENIED))


API = declare(SyncGroupRequest, handle, guard=guard, waits_for=group)
