"""Checks of topics and assignments that several APIs share. The messages are Kafka's."""

from collections import Counter
from collections.abc import Sequence

from broker.node import Node
from protocol.errors import ErrorCode, KafkaError


def check_unique(names: Counter[str], name: str) -> None:
    """Raise INVALID_REQUEST when a request names a topic more than once. `names` counts its names."""
    if names[name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def check_replicas(node: Node, broker_ids: Sequence[int], previous: int | None = None) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless the replicas are on distinct living nodes.

    `previous` is the number of replicas of the partitions before, which it must equal.
    """
    what = "The manual partition assignment includes"
    if not broker_ids:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} an empty replica list.")
    for broker_id, count in sorted(Counter(broker_ids).items()):
        if node.members.get(broker_id) is None:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{what} broker {broker_id}, but no such broker is registered.",
            )
        if broker_id in node.members.draining:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{what} broker {broker_id}, which is being drained and takes no partitions.",
            )
        if count > 1:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} the broker {broker_id} more than once.")
    if previous is not None and len(broker_ids) != previous:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{what} a partition with {len(broker_ids)} replica(s), but this is not consistent with previous "
            f"partitions, which have {previous} replica(s).",
        )
