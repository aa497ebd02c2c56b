"""WriteShareGroupState: what leaders have changed of share partitions. Answered when it is durable."""

from collections.abc import Iterable, Sequence

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import Result, cluster_guard, results
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

    return _response(await results("write share group state", request.group_id, request.topics, begin))


def _response(found: Iterable[tuple[bytes, Sequence[Result[None]]]]) -> WriteShareGroupStateResponse:
    return WriteShareGroupStateResponse(
        results=[
            WriteStateResult(
                topic_id=topic_id,
                partitions=[
                    PartitionResult(
                        partition=each.partition, error_code=each.error_code, error_message=each.error_message
                    )
                    for each in partitions
                ],
            )
            for topic_id, partitions in found
        ]
    )


API = declare(WriteShareGroupStateRequest, handle, guard=cluster_guard(_response), metered=Metered.NOTHING)
