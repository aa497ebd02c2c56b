"""DeleteShareGroupState: removes the states of share partitions. Answered when that is durable."""

from collections.abc import Iterable, Sequence

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import Result, cluster_guard, results
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


async def handle(
    serving: Serving, request: DeleteShareGroupStateRequest, _exchange: Exchange
) -> DeleteShareGroupStateResponse:
    """Delete the states; those that do not exist are no errors."""

    def begin(key: ShareKey, _: PartitionData) -> tuple[None, Outcome]:
        return None, serving.share_states.delete(key)

    return _response(await results("delete share group state", request.group_id, request.topics, begin))


def _response(found: Iterable[tuple[bytes, Sequence[Result[None]]]]) -> DeleteShareGroupStateResponse:
    return DeleteShareGroupStateResponse(
        results=[
            DeleteStateResult(
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


API = declare(DeleteShareGroupStateRequest, handle, guard=cluster_guard(_response), metered=Metered.NOTHING)
