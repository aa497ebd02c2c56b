"""DeleteGroups: remove empty groups with their offsets. Answered when that is durable."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import GROUP_DENIED, Passed, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_protocol import ask
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.share.group import ShareGroup
from anabranch.broker.kafka.groups.share.requests import DeleteStates
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(serving: Serving, request: DeleteGroupsRequest, _exchange: Exchange) -> DeleteGroupsResponse:
    """Delete the states of share groups, start all deletions, then wait for all."""
    refused = {
        group_id: error for group_id in request.groups_names if (error := await _delete_states(serving, group_id))
    }
    deletions = [
        (group_id, _done(refused[group_id]) if group_id in refused else _delete(serving, group_id))
        for group_id in request.groups_names
    ]
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=group_id, error_code=await done) for group_id, done in deletions]
    )


async def _delete_states(serving: Serving, group_id: str) -> ErrorCode:
    """Delete what a share group has consumed, wherever it is kept: return why it is not done. Others have no states."""
    try:
        shard = serving.groups.shard(group_id)
        group = shard.group(group_id)
        if not isinstance(group, ShareGroup):
            return ErrorCode.NONE
        keys = await ask(shard, group_id, DeleteStates)
    except KafkaError as error:
        return error.code
    codes = await serving.share_persister.delete(keys) if keys else {}
    return next((code for code in codes.values() if code), ErrorCode.NONE)


def _done(error: ErrorCode) -> asyncio.Future[ErrorCode]:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    done.set_result(error)
    return done


def _delete(serving: Serving, group_id: str) -> asyncio.Future[ErrorCode]:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def finish(error: ErrorCode) -> None:
        if not done.done():  # the request may have been cancelled
            done.set_result(error)

    try:
        serving.groups.shard(group_id).delete(group_id, finish)
    except KafkaError as error:
        done.set_result(error.code)
    return done


def guard(caller: Caller, request: DeleteGroupsRequest) -> Verdict:
    """Check DELETE on each group."""
    names = list(dict.fromkeys(request.groups_names))
    allowed, denied = split(names, lambda group_id: caller.may_group(AclOperation.DELETE, group_id))
    errors = [DeletableGroupResult(group_id=group_id, error_code=GROUP_DENIED) for group_id in denied]

    def amend(response: DeleteGroupsResponse) -> DeleteGroupsResponse:
        return replace(response, results=[*response.results, *errors])

    return Passed(replace(request, groups_names=allowed), amend)


def _changes(_request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Iterable[Change]:
    return (Change("GROUP", each.group_id, each.error_code) for each in response.results)


API = declare(
    DeleteGroupsRequest,
    handle,
    guard=guard,
    changes=_changes,
    waits_for=groups(lambda request: request.groups_names),
    relayed=True,
)
