"""JoinGroup: become, or remain, a member. Answered when the group's join phase ends."""

import asyncio

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, Passed, Refused, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.requests import JoinRequest, JoinResponse, MemberProtocol
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember

MEMBER_ID_REQUIRED_VERSION = 4
NULLABLE_PROTOCOL_NAME_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9


async def handle(serving: Serving, request: JoinGroupRequest, exchange: Exchange) -> JoinGroupResponse:
    """Check what does not depend on the group, pass the request to it, and wait for its answer."""
    ticket: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
    version = exchange.api_version
    try:
        shard = serving.groups.shard_with_id(request.group_id)
    except KafkaError as error:
        return _response(JoinResponse(error.code), version)  # as in Kafka, without the member's id
    try:
        _check_session_timeout(serving, request)
        shard.membership.handle(request.group_id, _join(serving, request, exchange, ticket))
        return _response(await ticket, version)
    except KafkaError as error:
        return _response(JoinResponse(error.code, request.member_id), version)


def _check_session_timeout(serving: Serving, request: JoinGroupRequest) -> None:
    settings = serving.settings.group
    if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
        raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)


def _join(
    serving: Serving, request: JoinGroupRequest, exchange: Exchange, ticket: asyncio.Future[JoinResponse]
) -> JoinRequest:
    rebalance_timeout_ms = request.rebalance_timeout_ms
    client_id = exchange.client_id or ""
    return JoinRequest(
        ticket=respond_to(ticket),
        member_id=request.member_id,
        new_member_id=f"{request.group_instance_id or client_id}-{serving.groups.new_id()}",
        group_instance_id=request.group_instance_id,
        client_id=client_id,
        client_host=f"/{exchange.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        # Version 0 has one timeout for both.
        rebalance_timeout_ms=request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=[MemberProtocol(protocol.name, protocol.metadata) for protocol in request.protocols],
        member_id_required=exchange.api_version >= MEMBER_ID_REQUIRED_VERSION,
        can_skip_assignment=exchange.api_version >= SKIP_ASSIGNMENT_VERSION,
    )


def _response(answer: JoinResponse, version: int) -> JoinGroupResponse:
    protocol_name = answer.protocol_name
    if protocol_name is None and version < NULLABLE_PROTOCOL_NAME_VERSION:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name,
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in answer.members
        ],
    )


def guard(caller: Caller, request: JoinGroupRequest) -> Verdict:
    """Check READ on the group."""
    if caller.may_group(AclOperation.READ, request.group_id):
        return Passed(request)
    name = None if caller.version >= NULLABLE_PROTOCOL_NAME_VERSION else ""
    return Refused(JoinGroupResponse(error_code=GROUP_DENIED, protocol_name=name))


API = declare(JoinGroupRequest, handle, guard=guard, waits_for=group)
