"""ShareAcknowledge: acknowledge records that a member of a share group has acquired (KIP-932).

Versions:
    v1  oldest version; share sessions
    v2  request adds is_renew_ack, and acknowledgements of type 4, renew (KIP-1222). response adds
        acquisition_lock_timeout_ms
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 79


@message
class AcknowledgementBatch:
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    acknowledge_types: Sequence[int] = wire.array(wire.Kind.INT8, "0+")


@message
class AcknowledgePartition:
    partition_index: int = wire.int32("0+")
    acknowledgement_batches: Sequence[AcknowledgementBatch] = wire.array(AcknowledgementBatch, "0+")


@message
class AcknowledgeTopic:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[AcknowledgePartition] = wire.array(AcknowledgePartition, "0+")


@message(versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    group_id: str | None = wire.string("0+", nullable="0+", default=None)
    member_id: str | None = wire.string("0+", nullable="0+")
    share_session_epoch: int = wire.int32("0+")
    is_renew_ack: bool = wire.boolean("2+", default=False)
    topics: Sequence[AcknowledgeTopic] = wire.array(AcknowledgeTopic, "0+")


@message
class LeaderIdAndEpoch:
    leader_id: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")


@message
class PartitionData:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = wire.struct(LeaderIdAndEpoch, "0+")


@message
class ShareAcknowledgeTopicResponse:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message
class NodeEndpoint:
    node_id: int = wire.int32("0+")
    host: str = wire.string("0+")
    port: int = wire.int32("0+")
    rack: str | None = wire.string("0+", nullable="0+", default=None)


@message(versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = wire.int32("2+", ignorable=True)
    responses: Sequence[ShareAcknowledgeTopicResponse] = wire.array(ShareAcknowledgeTopicResponse, "0+")
    node_endpoints: Sequence[NodeEndpoint] = wire.array(NodeEndpoint, "0+")
