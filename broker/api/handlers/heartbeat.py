"""Heartbeat: keep a member of a classic group alive. The answer announces a rebalance."""

from anabranch.broker.api.access.groups import reads_group
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.waits import group
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.groups.requests import ClassicHeartbeat
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handle(serving: Serving, request: HeartbeatRequest, _exchange: Exchange) -> HeartbeatResponse:
    """Answer at once."""
    group_id = request.group_id
    try:
        heartbeat = ClassicHeartbeat(request.member_id, request.group_instance_id, request.generation_id)
        error = serving.groups.shard_with_id(group_id).membership.handle(group_id, heartbeat)
    except KafkaError as refused:
        error = refused.code
    # While its group is being loaded, the member stays: it has missed nothing.
    if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error = ErrorCode.NONE
    return HeartbeatResponse(error_code=error)


API = declare(HeartbeatRequest, handle, guard=reads_group(HeartbeatResponse), waits_for=group)
