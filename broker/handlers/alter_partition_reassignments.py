"""AlterPartitionReassignments (KIP-455): only the current assignment is accepted, since a partition has one replica.

Everything else is refused with Kafka's messages.
"""

from collections.abc import Sequence

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
    _check_replicas(node, requested.replicas)


def _check_replicas(node: Node, replicas: Sequence[int]) -> None:
    problem = ""
    unknown = [replica for replica in replicas if replica != node.node_id]
    if not replicas:
        problem = "an empty replica list."
    elif unknown:
        problem = f"broker {unknown[0]}, but no such broker is registered."
    elif len(replicas) > 1:
        problem = f"the broker {node.node_id} more than once."
    if problem:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {problem}")
