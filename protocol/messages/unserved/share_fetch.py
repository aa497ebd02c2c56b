"""ShareFetch: acquire records for a member of a share group (KIP-932).

Versions:
    v1  oldest version served
    v2  request adds share_acquire_mode, is_renew_ack
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import Records, message

KEY = 78


@message
class AcknowledgementBatch:
    """An element of `FetchPartition.acknowledgement_batches`."""

    first_offset: int = wire.int64("1+")
    last_offset: int = wire.int64("1+")
    acknowledge_types: Sequence[int] = wire.array(wire.Kind.INT8, "1+")


@message
class FetchPartition:
    """An element of `FetchTopic.partitions`."""

    partition_index: int = wire.int32("1+")
    acknowledgement_batches: Sequence[AcknowledgementBatch] = wire.array(AcknowledgementBatch, "1+")


@message
class FetchTopic:
    """An element of `ShareFetchRequest.topics`."""

    topic_id: bytes = wire.uuid("1+")
    partitions: Sequence[FetchPartition] = wire.array(FetchPartition, "1+")


@message
class ForgottenTopic:
    """An element of `ShareFetchRequest.forgotten_topics_data`."""

    topic_id: bytes = wire.uuid("1+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "1+")


@message(versions="1-2", flexible="0+")
class ShareFetchRequest:
    """Request of the ShareFetch API."""

    group_id: str | None = wire.string("1+", nullable="1+", default=None)
    member_id: str | None = wire.string("1+", nullable="1+")
    share_session_epoch: int = wire.int32("1+")
    max_wait_ms: int = wire.int32("1+")
    min_bytes: int = wire.int32("1+")
    max_bytes: int = wire.int32("1+", default=2**31 - 1)
    max_records: int = wire.int32("1+")
    batch_size: int = wire.int32("1+")
    share_acquire_mode: int = wire.int8("2+", ignorable=True)
    is_renew_ack: bool = wire.boolean("2+", ignorable=True)
    topics: Sequence[FetchTopic] = wire.array(FetchTopic, "1+")
    forgotten_topics_data: Sequence[ForgottenTopic] = wire.array(ForgottenTopic, "1+")


@message
class LeaderIdAndEpoch:
    """The value of `PartitionData.current_leader`."""

    leader_id: int = wire.int32("1+")
    leader_epoch: int = wire.int32("1+")


@message
class AcquiredRecords:
    """An element of `PartitionData.acquired_records`."""

    first_offset: int = wire.int64("1+")
    last_offset: int = wire.int64("1+")
    delivery_count: int = wire.int16("1+")


@message
class PartitionData:
    """An element of `ShareFetchableTopicResponse.partitions`."""

    partition_index: int = wire.int32("1+")
    error_code: int = wire.int16("1+")
    error_message: str | None = wire.string("1+", nullable="1+", default=None)
    acknowledge_error_code: int = wire.int16("1+")
    acknowledge_error_message: str | None = wire.string("1+", nullable="1+", default=None)
    current_leader: LeaderIdAndEpoch = wire.struct(LeaderIdAndEpoch, "1+")
    records: Records | None = wire.records("1+", nullable="1+")
    acquired_records: Sequence[AcquiredRecords] = wire.array(AcquiredRecords, "1+")


@message
class ShareFetchableTopicResponse:
    """An element of `ShareFetchResponse.responses`."""

    topic_id: bytes = wire.uuid("1+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "1+")


@message
class NodeEndpoint:
    """An element of `ShareFetchResponse.node_endpoints`."""

    node_id: int = wire.int32("1+")
    host: str = wire.string("1+")
    port: int = wire.int32("1+")
    rack: str | None = wire.string("1+", nullable="1+", default=None)


@message(versions="1-2", flexible="0+")
class ShareFetchResponse:
    """Response of the ShareFetch API."""

    throttle_time_ms: int = wire.int32("1+")
    error_code: int = wire.int16("1+")
    error_message: str | None = wire.string("1+", nullable="1+", default=None)
    acquisition_lock_timeout_ms: int = wire.int32("1+")
    responses: Sequence[ShareFetchableTopicResponse] = wire.array(ShareFetchableTopicResponse, "1+")
    node_endpoints: Sequence[NodeEndpoint] = wire.array(NodeEndpoint, "1+")
