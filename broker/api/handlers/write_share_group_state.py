"""WriteShareGroupState: what leaders have changed of share partitions. Answered when it is durable."""

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import cluster_guard, responder, results
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.share.interface import ShareKey, StateBatch
from anabranch.broker.kafka.share.state.shard import Outcome
from anabranch.broker.kafka.share.state.stored import StateWrite
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.write_share_group_state import (
    PartitionData,
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)

_respond = responder(WriteShareGroupStateResponse, WriteStateResult, PartitionResult)


async def handle(
    serving: Serving, request: WriteShareGroupStateRequest, _exchange: Exchange
) -> WriteShareGroupStateResponse:
    """Write in the order of the request."""

    def begin(key: ShareKey, wanted: PartitionData) -> tuple[None, Outcome]:
        write = StateWrite(
            wanted.state_epoch,
            wanted.leader_epoch,
            wanted.start_offset,
            wanted.delivery_complete_count,
            [
                StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
                for each in wanted.state_batches
            ],
        )
        return None, serving.share_states.write(key, write)

    return _respond(await results("write share group state", request.group_id, request.topics, begin))


API = declare(WriteShareGroupStateRequest, handle, guard=cluster_guard(_respond), metered=Metered.NOTHING)
