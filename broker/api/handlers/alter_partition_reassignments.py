"""AlterPartitionReassignments (KIP-455): orders partitions to other nodes, and cancels such orders.

A leader that is among the new replicas stays, and the others change at once, since there is nothing to copy. Otherwise
the first of them that lives is to lead, and the replicas change when it does. Kafka's refusals are made with Kafka's
messages. Partitions are refused one by one; the others are ordered together.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from anabranch.broker.api.access.changes import Change
from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.leadership import NO_LEADER
from anabranch.broker.api.handlers.topic_checks import check_replicas, first_living, registered_ids
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from anabranch.s3stream.catalog.schema import REPLICAS_SINCE
from anabranch.s3stream.catalog.values import MoveReason
from anabranch.s3stream.errors import NodeUnavailable, StorageError


async def handle(
    serving: Serving, request: AlterPartitionReassignmentsRequest, _exchange: Exchange
) -> AlterPartitionReassignmentsResponse:
    """Answer each partition by itself, when the orders are given. They are carried out afterwards."""
    wanted: dict[Place, int] = {}
    replicas: dict[Place, Sequence[int]] = {}
    cancelled: list[Place] = []
    registered: Collection[int] = ()
    with suppress(StorageError):  # then the orders fail as well
        registered = await registered_ids(serving)
    responses = []
    for topic in request.topics:
        partitions = []
        for requested in topic.partitions:
            place = Place(topic.name, requested.partition_index)
            code, message = ErrorCode.NONE, None
            try:
                target = _target(
                    serving, place, requested, registered, may_change_factor=request.allow_replication_factor_change
                )
            except KafkaError as error:
                code, message = error.code, error.message or None
            else:
                if requested.replicas is None:
                    cancelled.append(place)
                else:
                    wanted[place] = target
                    if len(requested.replicas) > 1 or serving.move_requests.info(place).replicas:
                        replicas[place] = requested.replicas
            partitions.append(
                ReassignablePartitionResponse(partition_index=place.partition, error_code=code, error_message=message)
            )
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=partitions))
    code, message = await _order(serving, wanted, replicas, cancelled)
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=code,
        # As in Kafka: the message is empty only for an empty request.
        error_message=message if request.topics else "",
        responses=responses,
    )


async def _order(
    serving: Serving, wanted: dict[Place, int], replicas: dict[Place, Sequence[int]], cancelled: list[Place]
) -> tuple[ErrorCode, str | None]:
    """Give and cancel orders. Returns the error of the whole request."""
    try:
        if wanted:
            await serving.move_requests.request(wanted, MoveReason.REASSIGNMENT, replicas)
        if cancelled:
            await serving.move_requests.cancel(cancelled)
    except KafkaError as error:  # a topic was deleted meanwhile
        return error.code, error.message
    except NodeUnavailable as error:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, str(error)
    except StorageError as error:
        return ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
    return ErrorCode.NONE, None


def _target(
    serving: Serving,
    place: Place,
    requested: ReassignablePartition,
    registered: Collection[int],
    *,
    may_change_factor: bool,
) -> int:
    """Return the node that is to lead a partition; NO_LEADER to cancel its order. Raises KafkaError."""
    topic = serving.topics.get(place.topic)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {place.topic}.")
    if not 0 <= place.partition < len(topic.info.partitions):
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {place.topic}:{place.partition}."
        )
    info = topic.info.partitions[place.partition]
    if requested.replicas is None:
        if info.order is None or info.order.failure:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
        return NO_LEADER
    present = info.replicas_with(info.leader)
    stays = tuple(requested.replicas) == present == (info.leader,)
    if stays and info.leader not in serving.members.draining:  # where it is, dead or alive
        return info.leader
    check_replicas(serving, requested.replicas, registered=registered)
    level = serving.catalog.level
    if len(requested.replicas) > 1 and level < REPLICAS_SINCE:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Partition {place} gets no further replicas below level {REPLICAS_SINCE} of the cluster, which has "
            f"{level}: `anabranch cluster upgrade` raises it.",
        )
    if len(requested.replicas) != len(present) and not may_change_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(present)} to {len(requested.replicas)}",
        )
    if info.leader in requested.replicas and serving.members.get(info.leader) is not None:
        return info.leader
    return first_living(serving, requested.replicas, place.partition)


def refusal(request: AlterPartitionReassignmentsRequest, _version: int) -> AlterPartitionReassignmentsResponse:
    """Return the answer to a client that is not authorized."""
    return AlterPartitionReassignmentsResponse(
        error_code=CLUSTER_DENIED,
        error_message=CLUSTER_DENIED.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index,
                        error_code=CLUSTER_DENIED,
                        error_message=CLUSTER_DENIED.message,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _changes(
    _request: AlterPartitionReassignmentsRequest, response: AlterPartitionReassignmentsResponse
) -> Iterable[Change]:
    for topic in response.responses:
        for each in topic.partitions:
            yield Change("TOPIC", f"{topic.name}-{each.partition_index}", each.error_code)


API = declare(
    AlterPartitionReassignmentsRequest,
    handle,
    guard=needs_cluster(AclOperation.ALTER, refusal),
    changes=_changes,
)
