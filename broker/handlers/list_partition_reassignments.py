"""ListPartitionReassignments (KIP-455): always empty, since partitions are never reassigned."""

from broker.net.exchange import Exchange
from broker.node import Node
from protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    _node: Node, _request: ListPartitionReassignmentsRequest, _exchange: Exchange
) -> ListPartitionReassignmentsResponse:
    """Answer with an empty list."""
    return ListPartitionReassignmentsResponse(error_message=None)
