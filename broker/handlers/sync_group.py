"""SyncGroup: the leader brings the assignment, everybody gets their part. Answered when the assignment is durable."""

import asyncio

from broker.groups.values import Sync, SyncAnswer
from broker.net.connection import Exchange
from broker.node import Node
from protocol.errors import KafkaError
from protocol.messages import sync_group
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

KEY = sync_group.KEY


async def handle(node: Node, request: SyncGroupRequest, context: Exchange) -> SyncGroupResponse:  # noqa: ARG001 - every handler's signature
    """Hand the request to its group and wait for the answer."""
    ticket: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
    sync = Sync(
        ticket=ticket,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        generation=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments={part.member_id: part.assignment for part in request.assignments},
    )
    try:
        node.groups.members_shard(request.group_id).sync(request.group_id, sync)
    except KafkaError as error:
        return SyncGroupResponse(error_code=error.code)
    answer = await ticket
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )
