"""ShareFetch: acquire records as a member of a share group, and acknowledge others (KIP-932).

Versions:
    v1  oldest version; share sessions, limits in records
    v2  request adds share_acquire_mode (KIP-1206), is_renew_ack, and acknowledgements of type 4, renew (KIP-1222)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import Records, message

KEY = 78


@message
class AcknowledgementBatch:
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    acknowledge_types: Sequence[int] = wire.array(wire.Kind.INT8, "0+")


@message
class FetchPartition:
    partition_index: int = wire.int32("0+")
    partition_max_bytes: int = wire.int32("0")
    acknowledgement_batches: Sequence[AcknowledgementBatch] = wire.array(AcknowledgementBatch, "0+")


@message
class FetchTopic:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[FetchPartition] = wire.array(FetchPartition, "0+")


@message
class ForgottenTopic:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="1-2", flexible="0+")
class ShareFetchRequest:
    group_id: str | None = wire.string("0+", nullable="0+", default=None)
    member_id: str | None = wire.string("0+", nullable="0+")
    share_session_epoch: int = wire.int32("0+")
    max_wait_ms: int = wire.int32("0+")
    min_bytes: int = wire.int32("0+")
    max_bytes: int = wire.int32("0+", default=2**31 - 1)
    max_records: int = wire.int32("1+")
    batch_size: int = wire.int32("1+")
    share_acquire_mode: int = wire.int8("2+", default=0, ignorable=True)
    is_renew_ack: bool = wire.boolean("2+", default=False)
    topics: Sequence[FetchTopic] = wire.array(FetchTopic, "0+")
    forgotten_topics_data: Sequence[ForgottenTopic] = wire.array(ForgottenTopic, "0+")


@message
class LeaderIdAndEpoch:
    leader_id: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")


@message
class AcquiredRecords:
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    delivery_count: int = wire.int16("0+")


@message
class PartitionData:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    acknowledge_error_code: int = wire.int16("0+")
    acknowledge_error_message: str | None = wire.string("0+", nullable="0+", default=None)
    current_leader: LeaderIdAndEpoch = wire.struct(LeaderIdAndEpoch, "0+")
    records: Records | None = wire.records("0+", nullable="0")
    acquired_records: Sequence[AcquiredRecords] = wire.array(AcquiredRecords, "0+")


@message
class ShareFetchableTopicResponse:
    topic_id: bytes = wire.uuid("0+")
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message
class NodeEndpoint:
    node_id: int = wire.int32("0+")
    host: str = wire.string("0+")
    port: int = wire.int32("0+")
    rack: str | None = wire.string("0+", nullable="0+", default=None)


@message(versions="1-2", flexible="0+")
class ShareFetchResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = wire.int32("1+")
    responses: Sequence[ShareFetchableTopicResponse] = wire.array(ShareFetchableTopicResponse, "0+")
    node_endpoints: Sequence[NodeEndpoint] = wire.array(NodeEndpoint, "0+")
