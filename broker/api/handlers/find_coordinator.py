"""FindCoordinator: a group or transactional id is coordinated by the node that leads its partition.

The very first request creates `__consumer_offsets` or `__transaction_state`. Share groups are not served: a request for
their coordinator is refused with a code that clients do not retry.
"""

from collections.abc import Coroutine
from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import GROUP_DENIED, TRANSACTION_DENIED, Passed, Refused, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.leadership import leadership_of
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.s3stream.errors import StorageError

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
BATCH_VERSION = 4
"""First version in which a request has many keys."""


def handle(
    serving: Serving, request: FindCoordinatorRequest, exchange: Exchange
) -> FindCoordinatorResponse | Coroutine[None, None, FindCoordinatorResponse]:
    """Answer at once if the coordinator's topic exists; otherwise create it first."""
    coordinator = _coordinator_of(serving, request.key_type)
    if coordinator is not None and not coordinator.is_open:
        return _create_and_answer(serving, request, exchange)
    return _answer(serving, request, exchange)


def _coordinator_of(serving: Serving, key_type: int) -> GroupCoordinator | TransactionCoordinator | None:
    if key_type == GROUP_KEY_TYPE:
        return serving.groups
    return serving.transactions if key_type == TRANSACTION_KEY_TYPE else None


def _topic_of(key_type: int) -> str:
    return OFFSETS_TOPIC if key_type == GROUP_KEY_TYPE else TRANSACTION_TOPIC


async def _create_and_answer(
    serving: Serving, request: FindCoordinatorRequest, exchange: Exchange
) -> FindCoordinatorResponse:
    try:
        await serving.internal_topics.ensure(_topic_of(request.key_type))
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


def _find(serving: Serving, key_type: int, key: str) -> Member | None:
    """Return the node that coordinates a key: the leader of the key's partition, if it serves it or is about to."""
    coordinator = _coordinator_of(serving, key_type)
    topic = serving.topics.get(_topic_of(key_type))
    if coordinator is None or topic is None:
        return None
    index = partition_of(key, len(topic.partitions))
    leader = leadership_of(serving, topic, index).leader
    parks = serving.topics.is_opening(topic, index)
    if leader is serving.members.own and not parks and not coordinator.is_coordinator_of(key):
        return None  # the partition is open, its shard not yet
    return leader


def guard(caller: Caller, request: FindCoordinatorRequest) -> Verdict:
    """Check DESCRIBE on each group or transactional id."""
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
