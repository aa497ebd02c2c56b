"""DeleteGroups: remove empty groups with their offsets. Answered when that is durable."""

import asyncio

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(node: Node, request: DeleteGroupsRequest, _exchange: Exchange) -> DeleteGroupsResponse:
    """Start all deletions, then wait for all."""
    deletions = [(group_id, _delete(node, group_id)) for group_id in request.groups_names]
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=await done) for group_id, done in deletions]
    )


def _delete(node: Node, group_id: str) -> asyncio.Future[ErrorCode]:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def finish(error: ErrorCode) -> None:
        if not done.done():  # the request may have been cancelled
            done.set_result(error)

    try:
        node.groups.shard(group_id).delete(group_id, finish)
    except KafkaError as error:
        done.set_result(error.code)
    return done
