"""ListPartitionReassignments (KIP-455): the orders to move partitions that are not carried out yet.

A failed order is not listed, since it is not carried out.
"""

from collections.abc import Collection

from anabranch.broker.api.access.guard import CLUSTER_DENIED, needs_cluster
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from anabranch.s3stream.catalog.placement import led_by


def handle(
    serving: Serving, request: ListPartitionReassignmentsRequest, _exchange: Exchange
) -> ListPartitionReassignmentsResponse:
    """Answer from the orders that this node has seen."""
    if request.topics is None:
        found = [_ongoing(topic, None) for topic in serving.topics]
    else:
        named = [(serving.topics.get(each.name), each.partition_indexes) for each in request.topics]
        found = [_ongoing(topic, set(indexes)) for topic, indexes in named if topic is not None]
    return ListPartitionReassignmentsResponse(error_message=None, topics=[each for each in found if each.partitions])


def _ongoing(topic: Topic, indexes: Collection[int] | None) -> OngoingTopicReassignment:
    """Return the moves of a topic, or of some of its partitions."""
    partitions = []
    for info in topic.info.partitions:
        order = info.order
        if order is None or order.failure or (indexes is not None and info.index not in indexes):
            continue
        present = info.replicas_with(info.leader)
        target = order.replicas or led_by(info.replicas, order.to_node)
        partitions.append(
            OngoingPartitionReassignment(
                partition_index=info.index,
                replicas=[*target, *(each for each in present if each not in target)],
                adding_replicas=[each for each in target if each not in present],
                removing_replicas=[each for each in present if each not in target],
            )
        )
    return OngoingTopicReassignment(name=topic.name, partitions=partitions)


def refusal(request: ListPartitionReassignmentsRequest, _version: int) -> ListPartitionReassignmentsResponse:
    """Return the answer to a client that is not authorized."""
    return ListPartitionReassignmentsResponse(
        error_code=CLUSTER_DENIED,
        error_message=CLUSTER_DENIED.message,
        topics=[
            OngoingTopicReassignment(
                name=topic.name,
                partitions=[OngoingPartitionReassignment(partition_index=index) for index in topic.partition_indexes],
            )
            for topic in request.topics or ()
        ],
    )


API = declare(ListPartitionReassignmentsRequest, handle, guard=needs_cluster(AclOperation.DESCRIBE, refusal))
