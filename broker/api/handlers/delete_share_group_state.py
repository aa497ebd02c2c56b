"""DeleteShareGroupState: removes the states of share partitions. Answered when that is durable."""

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import cluster_guard, responder, results
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.share.interface import ShareKey
from anabranch.broker.kafka.share.state.shard import Outcome
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionData,
    PartitionResult,
)

_respond = responder(DeleteShareGroupStateResponse, DeleteStateResult, PartitionResult)


async def handle(
    serving: Serving, request: DeleteShareGroupStateRequest, _exchange: Exchange
) -> DeleteShareGroupStateResponse:
    """Delete the states; those that do not exist are no errors."""

    def begin(key: ShareKey, _: PartitionData) -> tuple[None, Outcome]:
        return None, serving.share_states.delete(key)

    return _respond(await results("delete share group state", request.group_id, request.topics, begin))


API = declare(DeleteShareGroupStateRequest, handle, guard=cluster_guard(_respond), metered=Metered.NOTHING)
