"""DescribeCluster: the nodes and the controller."""

from broker.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from broker.net.exchange import Exchange
from broker.node import Node
from protocol.errors import ErrorCode
from protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

BROKERS = 1
CONTROLLERS = 2


def handle(node: Node, request: DescribeClusterRequest, _exchange: Exchange) -> DescribeClusterResponse:
    """Describe the brokers; controllers are not reached through this listener."""
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER"
            if known
            else f"Unsupported endpoint type {request.endpoint_type}",
        )
    brokers = [
        DescribeClusterBroker(broker_id=member.node_id, host=member.host, port=member.port, rack=member.rack or None)
        for member in node.members.living()
    ]
    return DescribeClusterResponse(
        cluster_id=node.cluster_id,
        controller_id=node.members.controller_id,
        brokers=brokers,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )
