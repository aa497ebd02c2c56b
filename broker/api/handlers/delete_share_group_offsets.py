"""DeleteShareGroupOffsets (KIP-932): forget what an empty share group has consumed of topics. Answered when durable."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Refused, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_protocol import ask, check_share_protocol
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.share.requests import DeleteOffsets, StatesDeleted
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def handle(
    serving: Serving, request: DeleteShareGroupOffsetsRequest, _exchange: Exchange
) -> DeleteShareGroupOffsetsResponse:
    """Begin in the group, have the share coordinators delete states, and end in the group."""
    names = [topic.topic_name for topic in request.topics]
    ids = {name: topic.topic_id for name in names if (topic := serving.topics.get(name)) is not None}
    try:
        errors = await _delete(serving, request.group_id, ids)
    except KafkaError as error:
        return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message or None)
    return DeleteShareGroupOffsetsResponse(responses=[_answer(name, ids, errors) for name in names])


async def _delete(serving: Serving, group_id: str, ids: Mapping[str, bytes]) -> Mapping[bytes, ErrorCode]:
    """Delete what a group has consumed of topics: return a code for each that there was something of."""
    check_share_protocol(serving)
    shard = serving.groups.shard_with_id(group_id)
    found = await ask(shard, group_id, lambda ticket: DeleteOffsets(list(ids.values()), ticket))
    if not found:
        return {}
    codes = await serving.share_persister.delete([key for keys in found.values() for key in keys])
    errors = {
        topic_id: next((code for key in keys if (code := codes[key])), ErrorCode.NONE)
        for topic_id, keys in found.items()
    }
    deleted = [topic_id for topic_id, code in errors.items() if not code]
    if deleted:
        await ask(shard, group_id, lambda ticket: StatesDeleted(deleted, ticket))
    return errors


def _answer(
    name: str, ids: Mapping[str, bytes], errors: Mapping[bytes, ErrorCode]
) -> DeleteShareGroupOffsetsResponseTopic:
    topic_id = ids.get(name)
    if topic_id is None:
        return DeleteShareGroupOffsetsResponseTopic(topic_name=name, error_code=UNKNOWN, error_message=UNKNOWN.message)
    if topic_id not in errors:
        return DeleteShareGroupOffsetsResponseTopic(
            topic_name=name, error_code=UNKNOWN, error_message="There is no offset information to delete."
        )
    code = errors[topic_id]
    return DeleteShareGroupOffsetsResponseTopic(
        topic_name=name, topic_id=topic_id, error_code=code, error_message=code.message if code else None
    )


def guard(caller: Caller, request: DeleteShareGroupOffsetsRequest) -> Verdict:
    """Check DELETE on the group, and READ on each topic."""
    if not caller.may_group(AclOperation.DELETE, request.group_id):
        return Refused(DeleteShareGroupOffsetsResponse(error_code=GROUP_DENIED, error_message=GROUP_DENIED.message))
    allowed, denied = split(request.topics, lambda topic: caller.may_topic(AclOperation.READ, topic.topic_name))
    errors = [
        DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message
        )
        for topic in denied
    ]

    def amend(response: DeleteShareGroupOffsetsResponse) -> DeleteShareGroupOffsetsResponse:
        return response if response.error_code else replace(response, responses=[*response.responses, *errors])

    return Passed(replace(request, topics=allowed), amend if errors else None)


def _changes(request: DeleteShareGroupOffsetsRequest, response: DeleteShareGroupOffsetsResponse) -> Iterable[Change]:
    if response.error_code:
        yield Change("GROUP", request.group_id, response.error_code)
    for topic in response.responses:
        yield Change("GROUP", f"{request.group_id}: offsets of {topic.topic_name}", topic.error_code)


API = declare(DeleteShareGroupOffsetsRequest, handle, guard=guard, changes=_changes, waits_for=group, relayed=True)
