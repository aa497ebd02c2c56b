"""ReadShareGroupState: the states of share partitions. Their leaders ask, and shut out earlier ones."""

from collections.abc import Iterable, Sequence

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import Result, cluster_guard, results
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


async def handle(
    serving: Serving, request: ReadShareGroupStateRequest, _exchange: Exchange
) -> ReadShareGroupStateResponse:
    """Answer when the states and the leader epochs are durable."""

    def begin(key: ShareKey, wanted: PartitionData) -> StateRead:
        return serving.share_states.read(key, wanted.leader_epoch)

    return _response(await results("read share group state", request.group_id, request.topics, begin))


def _response(found: Iterable[tuple[bytes, Sequence[Result[ShareState]]]]) -> ReadShareGroupStateResponse:
    return ReadShareGroupStateResponse(
        results=[
            ReadStateResult(topic_id=topic_id, partitions=[_result(each) for each in partitions])
            for topic_id, partitions in found
        ]
    )


def _result(result: Result[ShareState]) -> PartitionResult:
    if result.value is None:
        return PartitionResult(
            partition=result.partition, error_code=result.error_code, error_message=result.error_message
        )
    return PartitionResult(
        partition=result.partition,
        error_code=result.error_code,
        state_epoch=result.value.state_epoch,
        start_offset=result.value.start_offset,
        state_batches=[
            StateBatch(
                first_offset=each.first_offset,
                last_offset=each.last_offset,
                delivery_state=each.delivery_state,
                delivery_count=each.delivery_count,
            )
            for each in result.value.batches
        ],
    )


API = declare(ReadShareGroupStateRequest, handle, guard=cluster_guard(_response), metered=Metered.NOTHING, reads=True)
