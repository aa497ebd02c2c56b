"""FindCoordinator: a group, transactional id or share partition is coordinated by the node that leads its partition.

The very first request of a kind creates the internal topic of its coordinators. Only nodes look for the coordinators of
share partitions (KIP-932), whose keys are texts such as `group:topic id:partition`.
"""

import re
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Final

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    TRANSACTION_DENIED,
    Passed,
    Refused,
    Verdict,
    split,
)
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.leadership import leadership_of
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.share.state.coordinator import ShareCoordinator
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.s3stream.errors import StorageError

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
SHARE_KEY_TYPE = 2
SHARE_VERSION = 6
"""First version with SHARE_KEY_TYPE."""
_TOPIC_ID: Final = re.compile(r"[A-Za-z0-9_-]{22}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")
BATCH_VERSION = 4
"""First version in which a request has many keys."""


def handle(
    serving: Serving, request: FindCoordinatorRequest, exchange: Exchange
) -> FindCoordinatorResponse | Coroutine[None, None, FindCoordinatorResponse]:
    """Answer at once if the coordinator's topic exists; otherwise create it first."""
    if request.key_type == SHARE_KEY_TYPE and exchange.api_version < SHARE_VERSION:
        return _refuse_all(request, exchange.api_version, ErrorCode.INVALID_REQUEST)
    coordinator = _coordinator_of(serving, request.key_type)
    if coordinator is not None and not coordinator.is_open:
        return _create_and_answer(serving, request, exchange)
    return _answer(serving, request, exchange)


def _coordinator_of(
    serving: Serving, key_type: int
) -> GroupCoordinator | TransactionCoordinator | ShareCoordinator | None:
    match key_type:
        case 0:
            return serving.groups
        case 1:
            return serving.transactions
        case 2:
            return serving.share_states
    return None


_TOPICS: Mapping[int, str] = {
    GROUP_KEY_TYPE: OFFSETS_TOPIC,
    TRANSACTION_KEY_TYPE: TRANSACTION_TOPIC,
    SHARE_KEY_TYPE: SHARE_STATE_TOPIC,
}


async def _create_and_answer(
    serving: Serving, request: FindCoordinatorRequest, exchange: Exchange
) -> FindCoordinatorResponse:
    try:
        await serving.internal_topics.ensure(_TOPICS[request.key_type])
    except (KafkaError, StorageError) as error:
        return _answer(serving, request, exchange, str(error))
    return _answer(serving, request, exchange)


def _answer(
    serving: Serving, request: FindCoordinatorRequest, exchange: Exchange, problem: str | None = None
) -> FindCoordinatorResponse:
    kind, listener = request.key_type, exchange.listener
    if exchange.api_version >= BATCH_VERSION:
        coordinators = [_coordinator(serving, listener, kind, key, problem) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=coordinators)
    found = _coordinator(serving, listener, kind, request.key, problem)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message or "NONE",
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(serving: Serving, listener: str, key_type: int, key: str, problem: str | None) -> Coordinator:
    error = ErrorCode.NONE
    if key_type == SHARE_KEY_TYPE and not _is_share_key(key):
        return _failure(key, ErrorCode.INVALID_REQUEST)
    found = None if problem is not None else _find(serving, key_type, key)
    address = None if found is None else found.at(listener)
    if _coordinator_of(serving, key_type) is None:
        error, problem = ErrorCode.INVALID_REQUEST, f"this node coordinates no keys of type {key_type}"
    elif address is None:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if found is None or address is None:
        message = problem or error.message
        return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message)
    return Coordinator(key=key, node_id=found.node_id, host=address.host, port=address.port)


def _is_share_key(key: str) -> bool:
    """Return whether a key has a group, a topic id and a partition."""
    group_id, topic_id, partition = (*["", ""], *key.rsplit(":", 2))[-3:]
    return bool(group_id) and _TOPIC_ID.fullmatch(topic_id) is not None and _NUMBER.fullmatch(partition) is not None


def _failure(key: str, code: ErrorCode, message: str = "") -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=message)


def _refuse_all(request: FindCoordinatorRequest, version: int, code: ErrorCode) -> FindCoordinatorResponse:
    if version >= BATCH_VERSION:
        return FindCoordinatorResponse(coordinators=[_failure(key, code) for key in request.coordinator_keys])
    return FindCoordinatorResponse(error_code=code, error_message=code.message, node_id=-1, host="", port=-1)


def _find(serving: Serving, key_type: int, key: str) -> Member | None:
    """Return the node that coordinates a key: the leader of the key's partition, if it serves it or is about to."""
    coordinator = _coordinator_of(serving, key_type)
    topic = None if coordinator is None else serving.topics.get(_TOPICS[key_type])
    if coordinator is None or topic is None:
        return None
    index = partition_of(key, len(topic.partitions))
    leader = leadership_of(serving, topic, index).leader
    parks = serving.topics.is_opening(topic, index)
    if leader is serving.members.own and not parks and not coordinator.is_coordinator_of(key):
        return None  # the partition is open, its shard not yet
    return leader


def guard(caller: Caller, request: FindCoordinatorRequest) -> Verdict:
    """Check DESCRIBE on each group or transactional id, and CLUSTER_ACTION for share partitions."""
    if request.key_type == SHARE_KEY_TYPE and caller.version >= SHARE_VERSION:
        if caller.may_cluster(AclOperation.CLUSTER_ACTION):
            return Passed(request)
        return Refused(_refuse_all(request, caller.version, CLUSTER_DENIED))
    if request.key_type == GROUP_KEY_TYPE:
        code = GROUP_DENIED
    elif request.key_type == TRANSACTION_KEY_TYPE:
        code = TRANSACTION_DENIED
    else:
        return Passed(request)

    def is_allowed(key: str) -> bool:
        if code is GROUP_DENIED:
            return caller.may_group(AclOperation.DESCRIBE, key)
        return caller.may_transaction(AclOperation.DESCRIBE, key)

    if caller.version < BATCH_VERSION:
        if is_allowed(request.key):
            return Passed(request)
        return Refused(
            FindCoordinatorResponse(error_code=code, error_message=code.message, node_id=-1, host="", port=-1)
        )
    allowed, denied = split(request.coordinator_keys, is_allowed)
    errors = [Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code) for key in denied]
    if errors and not allowed:
        return Refused(FindCoordinatorResponse(coordinators=errors))

    def amend(response: FindCoordinatorResponse) -> FindCoordinatorResponse:
        found = {each.key: each for each in (*response.coordinators, *errors)}
        return replace(response, coordinators=[found[key] for key in request.coordinator_keys])

    return Passed(replace(request, coordinator_keys=allowed), amend if errors else None)


API = declare(FindCoordinatorRequest, handle, guard=guard)
