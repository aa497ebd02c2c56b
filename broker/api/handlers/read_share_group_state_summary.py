"""ReadShareGroupStateSummary: start offsets and epochs of share partitions. Group coordinators ask."""

from collections.abc import Mapping
from typing import Any

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.share_states import cluster_guard, responder, results
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


def _fields(summary: ShareSummary) -> Mapping[str, Any]:
    return {
        "state_epoch": summary.state_epoch,
        "leader_epoch": summary.leader_epoch,
        "start_offset": summary.start_offset,
        "delivery_complete_count": summary.delivery_complete_count,
    }


_respond = responder(ReadShareGroupStateSummaryResponse, ReadStateSummaryResult, PartitionResult, _fields)


async def handle(
    serving: Serving, request: ReadShareGroupStateSummaryRequest, _exchange: Exchange
) -> ReadShareGroupStateSummaryResponse:
    """Answer at once."""

    def begin(key: ShareKey, _: PartitionData) -> tuple[ShareSummary, None]:
        return serving.share_states.summary(key), None

    return _respond(await results("read share group state summary", request.group_id, request.topics, begin))


API = declare(
    ReadShareGroupStateSummaryRequest, handle, guard=cluster_guard(_respond), metered=Metered.NOTHING, reads=True
)
