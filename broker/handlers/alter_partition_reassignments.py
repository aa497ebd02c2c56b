"""AlterPartitionReassignments (KIP-455): only the current assignment is accepted, since partitions are not moved.

What Kafka refuses is refused with Kafka's messages.
"""

from broker.handlers.leadership import leadership_of
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
            name=topic.name,
            partitions=[_answer(node, request, topic.name, requested) for requested in topic.partitions],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        # As in Kafka: the message is empty only for an empty request.
        error_message=None if request.topics else "",
        responses=responses,
    )


def _answer(
    node: Node, request: AlterPartitionReassignmentsRequest, topic: str, requested: ReassignablePartition
) -> ReassignablePartitionResponse:
    code, message = ErrorCode.NONE, None
    try:
        _check(node, topic, requested, may_change_factor=request.allow_replication_factor_change)
    except KafkaError as error:
        code, message = error.code, error.message or None
    return ReassignablePartitionResponse(
        partition_index=requested.partition_index, error_code=code, error_message=message
    )


def _check(node: Node, name: str, requested: ReassignablePartition, *, may_change_factor: bool) -> None:
    topic = node.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    if not 0 <= requested.partition_index < len(topic.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{requested.partition_index}."
        )
    if requested.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    current = leadership_of(node, topic, requested.partition_index).replicas
    if requested.replicas and list(requested.replicas) == list(current):
        return
    check_replicas(node, requested.replicas)
    if len(requested.replicas) != len(current) and not may_change_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(current)} to {len(requested.replicas)}",
        )
    raise KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"Partitions are not moved between brokers: only the current replicas {list(current)} are accepted.",
    )
