"""InitializeShareGroupState: the states that share partitions begin with. Answered when they are durable."""

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import cluster_guard, responder, results
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.share.interface import InitialState, ShareKey
from anabranch.broker.kafka.share.state.shard import Outcome
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionData,
    PartitionResult,
)

_respond = responder(InitializeShareGroupStateResponse, InitializeStateResult, PartitionResult)


async def handle(
    serving: Serving, request: InitializeShareGroupStateRequest, _exchange: Exchange
) -> InitializeShareGroupStateResponse:
    """Begin the states in the order of the request."""

    def begin(key: ShareKey, wanted: PartitionData) -> tuple[None, Outcome]:
        return None, serving.share_states.initialize(key, InitialState(wanted.state_epoch, wanted.start_offset))

    return _respond(await results("initialize share group state", request.group_id, request.topics, begin))


API = declare(InitializeShareGroupStateRequest, handle, guard=cluster_guard(_respond), metered=Metered.NOTHING)
