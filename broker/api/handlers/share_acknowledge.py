"""ShareAcknowledge: acknowledge records that a member of a share group has acquired, without fetching more (KIP-932).

The request is answered when all of its acknowledgements are durable, without a task of its own.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from anabranch.broker.api.access.caller import Caller, caller_of
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.leadership import find_leadership
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.configs.features import SHARE_VERSION
from anabranch.broker.kafka.share.partition.machine import GAP, REJECT, RENEW, Acknowledgement
from anabranch.broker.kafka.share.sessions import FINAL_EPOCH, SessionKey, TopicPartition
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import Member
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

MEMBER_ID_MAX: Final = 36
RENEW_SINCE: Final = 2
"""First version of ShareFetch and ShareAcknowledge with acknowledgements that renew a lock (KIP-1222)."""
WITH_LEADER: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
"""Errors that name the leader."""


def handle(serving: Serving, request: ShareAcknowledgeRequest, exchange: Exchange) -> ShareAcknowledgeResponse | None:
    """Begin to acknowledge; respond when it is durable."""
    shares = serving.share_partitions
    try:
        key = session_key(serving, request, exchange)
        if request.share_session_epoch == FINAL_EPOCH:
            shares.sessions.require(key)
        else:
            shares.sessions.advance(key, request.share_session_epoch)
    except KafkaError as error:
        return ShareAcknowledgeResponse(error_code=error.code)

    def respond(errors: "Errors") -> None:
        def complete() -> None:
            exchange.complete(_response(serving, exchange, key.group_id, errors))

        if request.share_session_epoch == FINAL_EPOCH:
            shares.end_session(key, complete)
        else:
            complete()

    Acknowledging(serving, exchange, key, request, respond).begin()
    return None


def session_key(serving: Serving, request: Any, exchange: Exchange) -> SessionKey:
    """Return the member that sends a ShareFetch or ShareAcknowledge.

    Raises UNSUPPORTED_VERSION, INVALID_REQUEST, GROUP_AUTHORIZATION_FAILED.
    """
    if not serving.features.level(SHARE_VERSION):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if request.group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    caller = caller_of(serving, exchange)
    if caller is not None and not caller.may_group(AclOperation.READ, request.group_id):
        raise KafkaError(GROUP_DENIED)
    if not request.member_id or len(request.member_id) > MEMBER_ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return SessionKey(request.group_id, request.member_id)


def read_error(serving: Serving, caller: Caller | None, place: TopicPartition) -> ErrorCode:
    """Return why a client cannot read a partition, whichever node leads it; NONE if it can."""
    topic = serving.topics.get(place[0])
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if caller is not None and not caller.may_topic(AclOperation.READ, topic.name):
        return TOPIC_DENIED
    if not 0 <= place[1] < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


class Failure(NamedTuple):
    """An error, with the message that Apache Kafka has in the same place."""

    code: ErrorCode
    message: str | None = None


Errors = dict[TopicPartition, Failure | None]
"""Results of acknowledgements by partition; None: they are durable."""


class Acknowledging:
    """Acknowledgements of one request."""

    def __init__(
        self,
        serving: Serving,
        exchange: Exchange,
        key: SessionKey,
        request: Any,
        respond: Callable[[Errors], None],
    ) -> None:
        """`respond` gets the results, as soon as there are all of them."""
        self._serving = serving
        self._exchange = exchange
        self._key = key
        self._request = request
        self._respond = respond
        self._errors: Errors = {}
        self._pending = 0

    def begin(self) -> None:
        """Begin all acknowledgements. A request without any is not checked, as in Kafka."""
        shares = self._serving.share_partitions
        caller = caller_of(self._serving, self._exchange)
        wanted: dict[TopicPartition, Sequence[Acknowledgement]] = {}
        may_renew = self._exchange.api_version >= RENEW_SINCE
        for topic in self._request.topics:
            for each in topic.partitions:
                place = (topic.topic_id, each.partition_index)
                code = read_error(self._serving, caller, place)
                batches = each.acknowledgement_batches
                if code != ErrorCode.UNKNOWN_TOPIC_ID and not _are_valid(
                    batches, may_renew=may_renew, is_renew=self._request.is_renew_ack
                ):
                    code = ErrorCode.INVALID_REQUEST
                self._errors[place] = Failure(code) if code else None
                if batches and not code:
                    wanted[place] = [Acknowledgement(*_fields(batch)) for batch in batches]
        if not wanted:
            self._errors = {place: error for place, error in self._errors.items() if error is not None}
        self._pending = len(wanted)
        for place, acknowledgements in wanted.items():
            shares.acknowledge(self._key, place, acknowledgements, partial(self._done, place))
        if not wanted:
            self._respond(self._errors)

    def _done(self, place: TopicPartition, error: KafkaError | None) -> None:
        self._errors[place] = None if error is None else Failure(error.code, error.message)
        self._pending -= 1
        if not self._pending:
            self._respond(self._errors)


def _fields(batch: Any) -> tuple[int, int, Sequence[int]]:
    return batch.first_offset, batch.last_offset, batch.acknowledge_types


def _are_valid(batches: Iterable[Any], *, may_renew: bool, is_renew: bool) -> bool:
    """Return whether the batches are in order, and their types known."""
    end_offset = -1
    for batch in batches:
        first_offset, last_offset, types = _fields(batch)
        if not end_offset <= first_offset <= last_offset or not types:
            return False
        if len(types) > 1 and len(types) != last_offset - first_offset + 1:
            return False
        if min(types) < GAP or max(types) > (RENEW if may_renew else REJECT) or (RENEW in types and not is_renew):
            return False
        end_offset = last_offset
    return True


def _response(serving: Serving, exchange: Exchange, group_id: str, errors: Errors) -> ShareAcknowledgeResponse:
    leaders: dict[int, Member] = {}
    topics = [
        ShareAcknowledgeTopicResponse(
            topic_id=topic_id,
            partitions=[_partition(serving, place, errors[place], leaders) for place in places],
        )
        for topic_id, places in groupby(errors, key=lambda place: place[0])
    ]
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=serving.share_partitions.lock_ms(group_id),
        responses=topics,
        node_endpoints=endpoints(leaders, exchange, NodeEndpoint),
    )


def _partition(
    serving: Serving, place: TopicPartition, error: Failure | None, leaders: dict[int, Member]
) -> PartitionData:
    if error is None:
        return PartitionData(partition_index=place[1])
    leader_id, epoch = leader_of(serving, place, error.code, leaders)
    return PartitionData(
        partition_index=place[1],
        error_code=error.code,
        error_message=error.message,
        current_leader=LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
    )


def leader_of(serving: Serving, place: TopicPartition, code: ErrorCode, leaders: dict[int, Member]) -> tuple[int, int]:
    """Return id and epoch of the leader that an error names, and note it in `leaders`; zeros if it names none."""
    found = find_leadership(serving, *place) if code in WITH_LEADER else None
    if found is None or found.leader is None:
        return 0, 0
    leaders[found.leader.node_id] = found.leader
    return found.leader.node_id, found.leader_epoch


def endpoints(leaders: dict[int, Member], exchange: Exchange, make: Callable[..., Any]) -> Sequence[Any]:
    """Return the addresses of the leaders at the listener of the client."""
    return [
        make(node_id=leader.node_id, host=address.host, port=address.port, rack=leader.rack or None)
        for leader in leaders.values()
        if (address := leader.at(exchange.listener)) is not None
    ]


API = declare(ShareAcknowledgeRequest, handle, guard=open_to_all, reads=True)
