"""ReadShareGroupState: the states of share partitions. Their leaders ask, and shut out earlier ones."""

from collections.abc import Mapping
from typing import Any

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import cluster_guard, responder, results
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.share.interface import ShareKey, ShareState
from anabranch.broker.kafka.share.state.shard import StateRead
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)


def _fields(state: ShareState) -> Mapping[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [
            StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in state.batches
        ],
    }


_respond = responder(ReadShareGroupStateResponse, ReadStateResult, PartitionResult, _fields)


async def handle(
    serving: Serving, request: ReadShareGroupStateRequest, _exchange: Exchange
) -> ReadShareGroupStateResponse:
    """Answer when the states and the leader epochs are durable."""

    def begin(key: ShareKey, wanted: PartitionData) -> StateRead:
        return serving.share_states.read(key, wanted.leader_epoch)

    return _respond(await results("read share group state", request.group_id, request.topics, begin))


API = declare(ReadShareGroupStateRequest, handle, guard=cluster_guard(_respond), metered=Metered.NOTHING, reads=True)
