"""Checks of topics and assignments that several APIs share. The messages are Kafka's."""

from collections import Counter
from collections.abc import Collection, Sequence

from anabranch.broker.cluster.serving import Serving
from anabranch.protocol.errors import ErrorCode, KafkaError


def check_unique(names: Counter[str], name: str) -> None:
    """Raise INVALID_REQUEST when a request names a topic more than once. `names` counts its names."""
    if names[name] > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def registered_ids(serving: Serving) -> Collection[int]:
    """Return the ids of all nodes that are registered, living or not. Raises StorageError."""
    return {each.node_id for each in await serving.catalog.list_nodes()}


def first_living(serving: Serving, broker_ids: Sequence[int], index: int) -> int:
    """Return the first of a partition's replicas that lives. Raises INVALID_REPLICA_ASSIGNMENT."""
    for broker_id in broker_ids:
        if serving.members.get(broker_id) is not None:
            return broker_id
    raise KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"All brokers specified in the manual partition assignment for partition {index} are fenced or in controlled "
        "shutdown.",
    )


def check_replicas(
    serving: Serving, broker_ids: Sequence[int], previous: int | None = None, registered: Collection[int] | None = None
) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT unless the replicas are on distinct nodes that live or are `registered`.

    `previous` is the number of replicas of the partitions before, which it must equal.
    """
    what = "The manual partition assignment includes"
    if not broker_ids:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{what} an empty replica list.")
    for broker_id, count in sorted(Counter(broker_ids).items()):
        if serving.members.get(broker_id) is None and broker_id not in (registered or ()):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{what} broker {broker_id}, but no such broker is registered.",
            )
        if broker_id in serving.members.draining:
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
