"""ListPartitionReassignments: none is ever under way: a partition is where it shall be (KIP-455)."""

from broker.net.exchange import Exchange
from broker.node import Node
from protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    _node: Node, _request: ListPartitionReassignmentsRequest, _exchange: Exchange
) -> ListPartitionReassignmentsResponse:
    """Nothing, whatever is asked for."""
    return ListPartitionReassignmentsResponse(error_message=None)
