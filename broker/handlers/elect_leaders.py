"""ElectLeaders (KIP-460): never needed, since a partition has one replica, which leads whenever it can."""

from broker.handlers.leadership import leadership_of
from broker.net.exchange import Exchange
from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
    TopicPartitions,
)

PREFERRED, UNCLEAN = 0, 1


def handle(node: Node, request: ElectLeadersRequest, _exchange: Exchange) -> ElectLeadersResponse:
    """Answer why each partition needs no election. If all are requested, only those without a leader are named."""
    if request.election_type not in {PREFERRED, UNCLEAN}:
        return _refuse(request)
    if request.topic_partitions is None:
        results = []
        for topic in node.topics:
            found = [_elect(node, request.election_type, topic.name, index) for index in range(len(topic.partitions))]
            unable = [result for result in found if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
            results.append(ReplicaElectionResult(topic=topic.name, partition_result=unable))
    else:
        results = [_elect_in(node, request.election_type, requested) for requested in request.topic_partitions]
    return ElectLeadersResponse(replica_election_results=results)


def _elect_in(node: Node, election_type: int, requested: TopicPartitions) -> ReplicaElectionResult:
    results = [_elect(node, election_type, requested.topic, index) for index in requested.partitions]
    return ReplicaElectionResult(topic=requested.topic, partition_result=results)


def _elect(node: Node, election_type: int, name: str, index: int) -> PartitionResult:
    topic = node.topics.get(name)
    code, message = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    if topic is None:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif not 0 <= index < len(topic.partitions):
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    elif leadership_of(node, topic, index).leader is None:
        code = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            if election_type == PREFERRED
            else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        message = code.message
    return PartitionResult(partition_id=index, error_code=code, error_message=message)


def _refuse(request: ElectLeadersRequest) -> ElectLeadersResponse:
    message = f"Unknown election type {request.election_type}"
    return ElectLeadersResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ReplicaElectionResult(
                topic=requested.topic,
                partition_result=[
                    PartitionResult(partition_id=index, error_code=ErrorCode.INVALID_REQUEST, error_message=message)
                    for index in requested.partitions
                ],
            )
            for requested in request.topic_partitions or ()
        ],
    )
