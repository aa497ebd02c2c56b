"""AlterPartitionReassignments (KIP-455): only the current assignment is accepted, since partitions are not moved yet.

Everything else is refused, with Kafka's messages where it has them.
"""

from broker.handlers.topic_checks import check_replicas
from broker.net.exchange import Exchange
from broker.node import Node
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


def handle(
    node: Node, request: AlterPartitionReassignmentsRequest, _exchange: Exchange
) -> AlterPartitionReassignmentsResponse:
    """Answer each partition by itself."""
    responses = [
        ReassignableTopicResponse(
            name=topic.name, partitions=[_answer(node, topic.name, requested) for requested in topic.partitions]
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        # As in Kafka: the message is empty only for an empty request.
        error_message=None if request.topics else "",
        responses=responses,
    )


def _answer(node: Node, topic: str, requested: ReassignablePartition) -> ReassignablePartitionResponse:
    code, message = ErrorCode.NONE, None
    try:
        _check(node, topic, requested)
    except KafkaError as error:
        code, message = error.code, error.message or None
    return ReassignablePartitionResponse(
        partition_index=requested.partition_index, error_code=code, error_message=message
    )


def _check(node: Node, name: str, requested: ReassignablePartition) -> None:
    topic = node.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= requested.partition_index < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{requested.partition_index}."
        )
    if requested.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    check_replicas(node, requested.replicas)
    leader = topic.info.partitions[requested.partition_index].leader
    if tuple(requested.replicas) != (leader,):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partitions are not moved yet: {name} stays on broker {leader}."
        )
