"""DescribeCluster: the nodes and the controller.

Living nodes are brokers, and for a moment those that died or stopped. With `include_fenced_brokers` (KIP-1073) other
registered nodes are named too, as fenced.
"""

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.guard import Passed, Verdict
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import CLUSTER_OPERATIONS, NOT_REQUESTED
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.peers.members import addresses, member_of
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from anabranch.s3stream.errors import StorageError

BROKERS = 1
CONTROLLERS = 2


def handle(
    serving: Serving, request: DescribeClusterRequest, exchange: Exchange
) -> DescribeClusterResponse | Coroutine[Any, Any, DescribeClusterResponse]:
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
    listener = exchange.listener
    return (
        _respond_with_fenced(serving, request, listener)
        if request.include_fenced_brokers
        else _respond(serving, request, listener)
    )


async def _respond_with_fenced(
    serving: Serving, request: DescribeClusterRequest, listener: str
) -> DescribeClusterResponse:
    try:
        registered = await serving.catalog.list_nodes()
    except StorageError as error:
        return DescribeClusterResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR, error_message=str(error))
    fenced = [
        DescribeClusterBroker(broker_id=member.node_id, host=address.host, port=address.port, is_fenced=True)
        for member, address in addresses(map(member_of, registered), listener)
        if not serving.members.is_listed(member.node_id)
    ]
    return _respond(serving, request, listener, fenced)


def _respond(
    serving: Serving, request: DescribeClusterRequest, listener: str, fenced: Sequence[DescribeClusterBroker] = ()
) -> DescribeClusterResponse:
    listed = [
        DescribeClusterBroker(broker_id=member.node_id, host=address.host, port=address.port, rack=member.rack or None)
        for member, address in addresses(serving.members.listed(), listener)
    ]
    return DescribeClusterResponse(
        cluster_id=serving.settings.node.cluster,
        controller_id=serving.members.controller_id,
        brokers=[*listed, *fenced],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_REQUESTED
        ),
    )


def guard(caller: Caller, request: DescribeClusterRequest) -> Verdict:
    """Pass all requests, and name the operations that the client may do."""
    if not request.include_cluster_authorized_operations:
        return Passed(request)

    def amend(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if response.error_code:
            return response
        return replace(response, cluster_authorized_operations=caller.cluster_operations())

    return Passed(request, amend)


API = declare(DescribeClusterRequest, handle, guard=guard)
