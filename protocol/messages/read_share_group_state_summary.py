"""ReadShareGroupStateSummary: start offsets and epochs of share partitions, asked for by group coordinators (KIP-932).

Versions:
    v0  first version. flexible
    v1  response adds results.partitions.delivery_complete_count (KIP-1226)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 87


@message
class PartitionData:
    partition: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")


@message
class ReadStateSummaryData:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message(versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest:
    group_id: str = wire.string("0+")
    topics: Sequence[ReadStateSummaryData] = wire.array(ReadStateSummaryData, "0+")


@message
class PartitionResult:
    partition: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    state_epoch: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    delivery_complete_count: int = wire.int32("1+", default=-1, ignorable=True)


@message
class ReadStateSummaryResult:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionResult] = wire.array(PartitionResult, "0+")


@message(versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse:
    results: Sequence[ReadStateSummaryResult] = wire.array(ReadStateSummaryResult, "0+")
