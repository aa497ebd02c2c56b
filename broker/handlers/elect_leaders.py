"""ElectLeaders (KIP-460). A preferred election moves partitions back to their preferred leaders.

An unclean election is never needed: a partition has one replica, which leads whenever it can.
"""

from collections.abc import Sequence

from broker.handlers.leadership import leadership_of
from broker.net.exchange import Exchange
from broker.node import Node
from broker.topics.move_requests import Place
from broker.topics.topic import Topic
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from s3stream.catalog.values import MoveReason
from s3stream.errors import StorageError

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED_TEXT = "Leader election not needed for topic partition."


async def handle(node: Node, request: ElectLeadersRequest, _exchange: Exchange) -> ElectLeadersResponse:
    """Answer when the preferred leaders lead, or at the request's timeout.

    If all partitions are requested, those that need no election are not named.
    """
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return _refuse(request)
    wanted: Sequence[tuple[str, Sequence[int]]]
    if request.topic_partitions is None:
        wanted = [(topic.name, range(len(topic.info.partitions))) for topic in node.topics]
    else:
        wanted = [(each.topic, each.partitions) for each in request.topic_partitions]
    results = {
        Place(name, index): _judge(node, request.election_type, name, index)
        for name, indexes in wanted
        for index in indexes
    }
    needed = {place: node.move_requests.info(place).preferred for place, result in results.items() if result is None}
    elected = await _elect(node, needed, request.timeout_ms / 1000) if needed else {}
    return ElectLeadersResponse(
        replica_election_results=[
            ReplicaElectionResult(
                topic=name,
                partition_result=[
                    result
                    for index in indexes
                    if (result := results[Place(name, index)] or elected[Place(name, index)]).error_code
                    != ErrorCode.ELECTION_NOT_NEEDED
                    or request.topic_partitions is not None
                ],
            )
            for name, indexes in wanted
        ]
    )


def _judge(node: Node, election_type: int, name: str, index: int) -> PartitionResult | None:
    """Return the answer for a partition; None if the preferred leader is to be elected."""
    topic = node.topics.get(name)
    if topic is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < len(topic.partitions):
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if election_type == PREFERRED:
        return _judge_preferred(node, topic, index)
    if leadership_of(node, topic, index).leader is None:
        return _result(index, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    return _result(index, ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED_TEXT)


def _judge_preferred(node: Node, topic: Topic, index: int) -> PartitionResult | None:
    info = topic.info.partitions[index]
    leader = leadership_of(node, topic, index).leader
    if leader is None:
        return _result(index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    if info.preferred in {leader.node_id, -1}:
        return _result(index, ErrorCode.ELECTION_NOT_NEEDED, NOT_NEEDED_TEXT)
    if node.members.get(info.preferred) is None or info.preferred in node.members.draining:
        return _result(index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)
    return None


async def _elect(node: Node, wanted: dict[Place, int], timeout_s: float) -> dict[Place, PartitionResult]:
    """Move partitions to their preferred leaders."""
    try:
        await node.move_requests.request(wanted, MoveReason.ELECTION)
    except KafkaError as error:  # a topic was deleted meanwhile
        return {place: _result(place.partition, error.code, error.message) for place in wanted}
    except StorageError as error:
        return {place: _result(place.partition, ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) for place in wanted}
    progress = await node.move_requests.wait(wanted, timeout_s)
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
