"""ShareAcknowledge: accept, release or reject acquired records (KIP-932).

Versions:
    v1  oldest version served
    v2  request adds is_renew_ack. response adds acquisition_lock_timeout_ms
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 79


@message
class AcknowledgementBatch:
    """An element of `AcknowledgePartition.acknowledgement_batches`."""

    first_offset: int = wire.int64("1+")
    last_offset: int = wire.int64("1+")
    acknowledge_types: Sequence[int] = wire.array(wire.Kind.INT8, "1+")


@message
class AcknowledgePartition:
    """An element of `AcknowledgeTopic.partitions`."""

    partition_index: int = wire.int32("1+")
    acknowledgement_batches: Sequence[AcknowledgementBatch] = wire.array(AcknowledgementBatch, "1+")


@message
class AcknowledgeTopic:
    """An element of `ShareAcknowledgeRequest.topics`."""

    topic_id: bytes = wire.uuid("1+")
    partitions: Sequence[AcknowledgePartition] = wire.array(AcknowledgePartition, "1+")


@message(versions="1-2", flexible="0+")
class ShareAcknowledgeRequest:
    """Request of the ShareAcknowledge API."""

    group_id: str | None = wire.string("1+", nullable="1+", default=None)
    member_id: str | None = wire.string("1+", nullable="1+")
    share_session_epoch: int = wire.int32("1+")
    is_renew_ack: bool = wire.boolean("2+", ignorable=True)
    topics: Sequence[AcknowledgeTopic] = wire.array(AcknowledgeTopic, "1+")


@message
class LeaderIdAndEpoch:
    """The value of `PartitionData.current_leader`."""

    leader_id: int = wire.int32("1+")
    leader_epoch: int = wire.int32("1+")


@message
class PartitionData:
    """An element of `ShareAcknowledgeTopicResponse.partitions`."""

    partition_index: int = wire.int32("1+")
    error_code: int = wire.int16("1+")
    error_message: str | None = wire.string("1+", nullable="1+", default=None)
    current_leader: LeaderIdAndEpoch = wire.struct(LeaderIdAndEpoch, "1+")


@message
class ShareAcknowledgeTopicResponse:
    """An element of `ShareAcknowledgeResponse.responses`."""

    topic_id: bytes = wire.uuid("1+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "1+")


@message
class NodeEndpoint:
    """An element of `ShareAcknowledgeResponse.node_endpoints`."""

    node_id: int = wire.int32("1+")
    host: str = wire.string("1+")
    port: int = wire.int32("1+")
    rack: str | None = wire.string("1+", nullable="1+", default=None)


@message(versions="1-2", flexible="0+")
class ShareAcknowledgeResponse:
    """Response of the ShareAcknowledge API."""

    throttle_time_ms: int = wire.int32("1+")
    error_code: int = wire.int16("1+")
    error_message: str | None = wire.string("1+", nullable="1+", default=None)
    acquisition_lock_timeout_ms: int = wire.int32("2+", ignorable=True)
    responses: Sequence[ShareAcknowledgeTopicResponse] = wire.array(ShareAcknowledgeTopicResponse, "1+")
    node_endpoints: Sequence[NodeEndpoint] = wire.array(NodeEndpoint, "1+")
