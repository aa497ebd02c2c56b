"""ReadShareGroupStateSummary: start offsets and epochs of share partitions. Group coordinators ask."""

from collections.abc import Iterable, Sequence

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import Result, cluster_guard, results
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.quotas.metering import Metered
from anabranch.broker.kafka.share.interface import ShareKey, ShareSummary
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.messages.read_share_group_state_summary import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)


async def handle(
    serving: Serving, request: ReadShareGroupStateSummaryRequest, _exchange: Exchange
) -> ReadShareGroupStateSummaryResponse:
    """Answer at once."""

    def begin(key: ShareKey, _: PartitionData) -> tuple[ShareSummary, None]:
        return serving.share_states.summary(key), None

    return _response(await results("read share group state summary", request.group_id, request.topics, begin))


def _response(found: Iterable[tuple[bytes, Sequence[Result[ShareSummary]]]]) -> ReadShareGroupStateSummaryResponse:
    return ReadShareGroupStateSummaryResponse(
        results=[
            ReadStateSummaryResult(topic_id=topic_id, partitions=[_result(each) for each in partitions])
            for topic_id, partitions in found
        ]
    )


def _result(result: Result[ShareSummary]) -> PartitionResult:
    if result.value is None:
        return PartitionResult(
            partition=result.partition, error_code=result.error_code, error_message=result.error_message
        )
    return PartitionResult(
        partition=result.partition,
        error_code=result.error_code,
        state_epoch=result.value.state_epoch,
        leader_epoch=result.value.leader_epoch,
        start_offset=result.value.start_offset,
        delivery_complete_count=result.value.delivery_complete_count,
    )


API = declare(
    ReadShareGroupStateSummaryRequest, handle, guard=cluster_guard(_response), metered=Metered.NOTHING, reads=True
)
