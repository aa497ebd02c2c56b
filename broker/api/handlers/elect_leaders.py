"""ElectLeaders (KIP-460): a preferred election moves partitions back, an unclean one accepts the loss of a log.

A partition moves to its preferred leader if that lives. An unclean election is for partitions whose newest records are
in the log of a dead node that no node can open. These records are given up: other nodes open the partitions at their
committed ends, and the loss is logged with offsets. A partition that has a leader, or whose log can be recovered, is
left alone.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.leadership import find_leadership, leadership_of
from anabranch.broker.cluster.membership.failover import TakeoverRefused
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import StorageError

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED_TEXT = "Leader election not needed for topic partition."


async def handle(serving: Serving, request: ElectLeadersRequest, _exchange: Exchange) -> ElectLeadersResponse:
    """Answer when the new leaders lead, or at the request's timeout.

    If all partitions are requested, those that need no election are not named.
    """
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return _refuse(request)
    wanted: Sequence[tuple[str, Sequence[int]]]
    if request.topic_partitions is None:
        wanted = [(topic.name, range(len(topic.info.partitions))) for topic in serving.topics]
    else:
        wanted = [(each.topic, each.partitions) for each in request.topic_partitions]
    places = [Place(name, index) for name, indexes in wanted for index in indexes]
    judged = {place: _judge(serving, request.election_type, place) for place in places}
    needed = [place for place, result in judged.items() if result is None]
    answers: dict[Place, PartitionResult] = {place: result for place, result in judged.items() if result is not None}
    if needed:
        elect = _elect_preferred if request.election_type == PREFERRED else _elect_unclean
        answers |= await elect(serving, needed, max(0, request.timeout_ms) / 1000)
    every = request.topic_partitions is None
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=name,
                partition_result=[
                    result
                    for result in (answers[Place(name, index)] for index in indexes)
                    if not (every and result.error_code == ErrorCode.ELECTION_NOT_NEEDED)
                ],
            )
            for name, indexes in wanted
        ]
    )


def _judge(serving: Serving, election_type: int, place: Place) -> PartitionResult | None:
    """Return the answer for a partition; None if a leader must be elected."""
    name, index = place
    topic = serving.topics.get(name)
    if topic is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if election_type == PREFERRED:
        return _judge_preferred(serving, topic, index)
    if leadership_of(serving, topic, index).leader is None:
        return None
    return _result(index, ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED_TEXT)


def _judge_preferred(serving: Serving, topic: Topic, index: int) -> PartitionResult | None:
    info = topic.info.partitions[index]
    leader = leadership_of(serving, topic, index).leader
    if leader is None:
        return _result(index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    if info.preferred in {leader.node_id, -1}:
        return _result(index, ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED_TEXT)
    if info.order is not None and info.order.reason.is_lasting and not info.order.failure:
        text = f"The partition is being reassigned to broker {info.order.to_node}, which is its preferred leader then."
        return _result(index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, text)
    if serving.members.get(info.preferred) is None or info.preferred in serving.members.draining:
        return _result(index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return None


def preferred_moves(serving: Serving) -> Mapping[Place, int]:
    """Return the partitions that a preferred election of all would move, with the node that would lead each."""
    return {
        Place(topic.name, index): info.preferred
        for topic in serving.topics
        for index, info in enumerate(topic.info.partitions)
        if _judge_preferred(serving, topic, index) is None
    }


async def _elect_preferred(
    serving: Serving, places: Sequence[Place], timeout_s: float
) -> Mapping[Place, PartitionResult]:
    """Move partitions to their preferred leaders."""
    wanted = {place: serving.move_requests.info(place).preferred for place in places}
    try:
        await serving.move_requests.request(wanted, MoveReason.ELECTION)
    except KafkaError as error:  # a topic was deleted meanwhile
        return {place: _result(place.partition, error.code, error.message) for place in wanted}
    except StorageError as error:
        return {place: _result(place.partition, ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) for place in wanted}
    progress = await serving.move_requests.wait(wanted, timeout_s)
    return {
        **{place: _result(place.partition, ErrorCode.NONE) for place in progress.done},
        **{
            place: _result(place.partition, ErrorCode.REQUEST_TIMED_OUT, "The partition is still being moved.")
            for place in progress.moving
        },
        **{
            place: _result(place.partition, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, reason)
            for place, reason in progress.failed.items()
        },
    }


async def _elect_unclean(
    serving: Serving, places: Sequence[Place], timeout_s: float
) -> Mapping[Place, PartitionResult]:
    """Give up what only dead nodes' logs have of the partitions; return when others lead them."""
    owned: dict[int, dict[int, Place]] = defaultdict(dict)
    for place in places:
        info = serving.move_requests.info(place)
        owned[info.owner][info.stream_id] = place
    answers: dict[Place, PartitionResult] = {}
    for owner, partitions in owned.items():
        answers |= await _give_up(serving, owner, partitions)
    elected = [place for place, answer in answers.items() if answer.error_code == ErrorCode.NONE]
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while _any_without_leader(serving, elected):
                await serving.topics.changed()
    return answers


async def _give_up(serving: Serving, owner: int, partitions: dict[int, Place]) -> Mapping[Place, PartitionResult]:
    """Give up partitions, by stream id, of one owner; return the answer for each."""
    code, message = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ""
    given_up: Collection[int] = ()
    if owner < 0 or owner == serving.node_id:
        message = "no other node's log holds records of it" if owner < 0 else "this node has it open: see its log"
    else:
        try:
            given_up = await serving.operations.give_up_partitions(owner, partitions.keys())
        except TakeoverRefused as error:
            message = str(error)
        except StorageError as error:
            code, message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return {
        place: _result(place.partition, ErrorCode.NONE if stream_id in given_up else code, message)
        for stream_id, place in partitions.items()
    }


def _any_without_leader(serving: Serving, places: Sequence[Place]) -> bool:
    found = [find_leadership(serving, *place) for place in places]
    return any(each is not None and each.leader is None for each in found)


def _result(index: int, code: ErrorCode, message: str | None = None) -> PartitionResult:
    text = None if code == ErrorCode.NONE else message or code.message
    return PartitionResult(partition_id=index, error_code=code, error_message=text)


def _refuse(request: ElectLeadersRequest) -> ElectLeadersResponse:
    message = f"Unknown election type {request.election_type}"

    def refused(partitions: Sequence[int]) -> Sequence[PartitionResult]:
        return [_result(index, ErrorCode.INVALID_REQUEST, message) for index in partitions]

    return ElectLeadersResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ReplicaElectionResult(topic=requested.topic, partition_result=refused(requested.partitions))
            for requested in request.topic_partitions or ()
        ],
    )


def refusal(request: ElectLeadersRequest, _version: int) -> ElectLeadersResponse:
    """Return the answer to a client that is not authorized."""
    return ElectLeadersResponse(
        error_code=CLUSTER_DENIED,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=CLUSTER_DENIED, error_message=CLUSTER_DENIED.message)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _changes(_request: ElectLeadersRequest, response: ElectLeadersResponse) -> Iterable[Change]:
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            if each.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                yield Change("TOPIC", f"{topic.topic}-{each.partition_id}", each.error_code)


API = declare(ElectLeadersRequest, handle, guard=needs_cluster(AclOperation.ALTER, refusal), changes=_changes)
