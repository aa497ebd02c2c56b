"""DeleteTopics: delete topics by name; from version 6 on by name or id."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import TOPIC_DENIED, Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from anabranch.protocol.wire import ZERO_UUID
from anabranch.s3stream.errors import StorageError

STATES_SINCE = 6
QUOTA_STRICT_SINCE = 5
"""First version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599)."""


async def handle(serving: Serving, request: DeleteTopicsRequest, exchange: Exchange) -> DeleteTopicsResponse:
    """Delete the valid ones of the topics together."""
    requested: list[tuple[str | None, bytes]]
    if exchange.api_version >= STATES_SINCE:
        requested = [(state.name, state.topic_id) for state in request.topics]
    else:
        requested = [(name, ZERO_UUID) for name in request.topic_names]
    request_counts = Counter(requested)
    before = {name: serving.topics.known_id(name) for name, _ in requested if name is not None}
    try:
        # A topic is unknown only when it is gone for good, and no node has created it.
        await serving.membership.catch_up()
    except StorageError as error:
        failure = partial(_failure, code=ErrorCode.UNKNOWN_SERVER_ERROR, message=str(error))
        return DeleteTopicsResponse(responses=[failure(name, topic_id) for name, topic_id in request_counts])
    quota = exchange.mutation_quota(strict_since=QUOTA_STRICT_SINCE)
    named = {topic.topic_id for name, _ in requested if name is not None and (topic := serving.topics.get(name))}
    named_twice = named & {topic_id for name, topic_id in requested if name is None}
    responses: list[DeletableTopicResult] = []
    found: dict[str, tuple[int, str | None, bytes]] = {}
    for name, topic_id in request_counts:
        if name is None and topic_id in named_twice:
            continue  # answered under the topic's name
        try:
            found_name, found_id = _find(serving, name, topic_id, is_duplicate=request_counts[name, topic_id] > 1)
            _check_not_in(named_twice, found_id)
            _check_meant(name, found_id, before)
            if quota is not None and (topic := serving.topics.get(found_name)) is not None:
                quota.record(len(topic.partitions))
        except KafkaError as error:
            known = serving.topics.get(name) if name is not None and topic_id == ZERO_UUID else None
            responses.append(_failure(name, topic_id if known is None else known.topic_id, error.code, error.message))
        else:
            found[found_name] = (len(responses), name, topic_id)
            responses.append(DeletableTopicResult(name=found_name, topic_id=found_id))
    try:
        meant = {found_name: responses[place].topic_id for found_name, (place, _, _) in found.items()}
        deleted = await serving.topic_commands.delete(*meant, ids=meant)
    except StorageError as error:
        for place, requested_name, requested_id in found.values():
            responses[place] = _failure(requested_name, requested_id, ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return DeleteTopicsResponse(responses=responses)
    for gone in found.keys() - set(deleted):  # deleted by another request meanwhile, and perhaps created again
        place, requested_name, requested_id = found[gone]
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if requested_name is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        responses[place] = _failure(requested_name, requested_id, unknown, unknown.message)
    if deleted and (outcomes := serving.groups.forget_topics(deleted)):
        # So that a topic that is created after the answer has no committed offsets, unless this takes too long.
        await asyncio.wait(outcomes, timeout=max(0, request.timeout_ms) / 1000)
    return DeleteTopicsResponse(responses=responses)


def _failure(name: str | None, topic_id: bytes, code: ErrorCode, message: str) -> DeletableTopicResult:
    said = None if code == ErrorCode.THROTTLING_QUOTA_EXCEEDED else message  # as in Kafka
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=code, error_message=said)


def _check_not_in(named_twice: set[bytes], topic_id: bytes) -> None:
    """Raise INVALID_REQUEST for a topic that the request names both by name and by id."""
    if topic_id in named_twice:
        message = "The provided topic name maps to an ID that was already supplied."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _check_meant(name: str | None, topic_id: bytes, before: Mapping[str, bytes | None]) -> None:
    """Raise REQUEST_TIMED_OUT if the name stood for another topic when the request came.

    A client may have given the request up while it waited, and have created the new topic since.
    """
    if name is not None and before[name] not in {None, topic_id}:
        message = f"Topic '{name}' was created again, perhaps after this request: send it again to delete the new one."
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message)


def _find(serving: Serving, name: str | None, topic_id: bytes, *, is_duplicate: bool) -> tuple[str, bytes]:
    if is_duplicate:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate topic {'id' if name is None else 'name'}.")
    if name is not None:
        if topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
    elif topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    topic = serving.topics.require(topic_id if name is None else name)
    return topic.name, topic.topic_id


def guard(caller: Caller, request: DeleteTopicsRequest) -> Verdict | Coroutine[Any, Any, Verdict]:
    """Check DELETE on the cluster, or DESCRIBE and DELETE on each topic.

    Nothing is said of the name and the existence of a topic that the client may not describe.
    """
    if caller.may_cluster(AclOperation.DELETE, audited=False):
        return Passed(request)
    if any(caller.name_of("", state.topic_id) is None for state in request.topics):
        return _deletions_when_known(caller, request)
    return _deletions(caller, request)


async def _deletions_when_known(caller: Caller, request: DeleteTopicsRequest) -> Verdict:
    """Wait until the ids of topics that other nodes have created are known."""
    with suppress(StorageError):  # the handler reports it
        await caller.serving.membership.catch_up()
    return _deletions(caller, request)


def _deletions(caller: Caller, request: DeleteTopicsRequest) -> Verdict:
    by_state = caller.version >= STATES_SINCE
    states = request.topics if by_state else [DeleteTopicState(name=name) for name in request.topic_names]
    counts = Counter(states)
    allowed: list[DeleteTopicState] = []
    errors: list[DeletableTopicResult] = []
    for state in states:
        error = _undeletable(caller, state) if counts[state] == 1 else None
        if error is None:
            allowed.append(state)
        else:
            errors.append(error)

    def amend(response: DeleteTopicsResponse) -> DeleteTopicsResponse:
        return replace(response, responses=[*response.responses, *errors])

    if by_state:
        passed = replace(request, topics=allowed)
    else:
        passed = replace(request, topic_names=[state.name or "" for state in allowed])
    return Passed(passed, amend if errors else None)


def _undeletable(caller: Caller, state: DeleteTopicState) -> DeletableTopicResult | None:
    """Return the error for a topic that the client may not delete; None: it may, or the request is invalid."""
    name, topic_id = state.name, state.topic_id
    if (name is None) == (topic_id == ZERO_UUID):
        return None  # neither or both: it is refused
    found = caller.name_of(name or "", topic_id)
    if found is None:
        code = ErrorCode.UNKNOWN_TOPIC_ID
        return DeletableTopicResult(name=None, topic_id=topic_id, error_code=code, error_message=code.message)
    may_describe = caller.may_topic(AclOperation.DESCRIBE, found)
    if may_describe and caller.may_topic(AclOperation.DELETE, found):
        return None
    if may_describe and caller.serving.topics.get(found) is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return DeletableTopicResult(name=found, topic_id=topic_id, error_code=code, error_message=code.message)
    told = found if name is not None or may_describe else None
    return DeletableTopicResult(
        name=told, topic_id=topic_id, error_code=TOPIC_DENIED, error_message=TOPIC_DENIED.message
    )


def _changes(_request: DeleteTopicsRequest, response: DeleteTopicsResponse) -> Iterable[Change]:
    return (Change("TOPIC", each.name or uuid_text(each.topic_id), each.error_code) for each in response.responses)


API = declare(DeleteTopicsRequest, handle, guard=guard, changes=_changes)
