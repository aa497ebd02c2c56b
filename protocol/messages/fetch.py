"""Fetch: read record batches from partitions, by long poll and in sessions (KIP-227, KIP-320, KIP-516).

Versions:
    v4  oldest version served; isolation levels and v2 batches
    v5  request adds topics.partitions.log_start_offset. response adds responses.partitions.log_start_offset
    v6  as v5
    v7  request adds session_id, session_epoch, forgotten_topics_data. response adds error_code, session_id
    v8  as v7
    v9  request adds topics.partitions.current_leader_epoch
    v10 zstd batches may be returned (KIP-110)
    v11 request adds rack_id. response adds responses.partitions.preferred_read_replica
    v12 flexible. request adds cluster_id (tagged), topics.partitions.last_fetched_epoch. response adds
        responses.partitions.diverging_epoch (tagged), responses.partitions.current_leader (tagged),
        responses.partitions.snapshot_id (tagged)
    v13 request adds topics.topic_id, forgotten_topics_data.topic_id; drops topics.topic, forgotten_topics_data.topic.
        response adds responses.topic_id; drops responses.topic. UNKNOWN_TOPIC_ID may be returned
    v14 OFFSET_MOVED_TO_TIERED_STORAGE may be returned (KIP-405)
    v15 request adds replica_state (tagged); drops replica_id
    v16 response adds node_endpoints (tagged). the response names endpoints of new leaders (KIP-951)
    v17 request adds topics.partitions.replica_directory_id (tagged)
    v18 request adds topics.partitions.high_watermark (tagged)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import Records, message

KEY = 1


@message
class ReplicaState:
    replica_id: int = wire.int32("15+", default=-1)
    replica_epoch: int = wire.int64("15+", default=-1)


@message
class FetchPartition:
    partition: int = wire.int32("0+")
    current_leader_epoch: int = wire.int32("9+", default=-1, ignorable=True)
    fetch_offset: int = wire.int64("0+")
    last_fetched_epoch: int = wire.int32("12+", default=-1)
    log_start_offset: int = wire.int64("5+", default=-1, ignorable=True)
    partition_max_bytes: int = wire.int32("0+")
    replica_directory_id: bytes = wire.uuid("17+", tag=0, ignorable=True)
    high_watermark: int = wire.int64("18+", tag=1, default=2**63 - 1, ignorable=True)


@message
class FetchTopic:
    topic: str = wire.string("0-12", ignorable=True)
    topic_id: bytes = wire.uuid("13+", ignorable=True)
    partitions: Sequence[FetchPartition] = wire.array(FetchPartition, "0+")


@message
class ForgottenTopic:
    topic: str = wire.string("7-12", ignorable=True)
    topic_id: bytes = wire.uuid("13+", ignorable=True)
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "7+")


@message(versions="4-18", flexible="12+")
class FetchRequest:
    cluster_id: str | None = wire.string("12+", nullable="12+", tag=0, default=None, ignorable=True)
    replica_id: int = wire.int32("0-14", default=-1)
    replica_state: ReplicaState = wire.struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = wire.int32("0+")
    min_bytes: int = wire.int32("0+")
    max_bytes: int = wire.int32("3+", default=2**31 - 1, ignorable=True)
    isolation_level: int = wire.int8("4+", ignorable=True)
    session_id: int = wire.int32("7+", ignorable=True)
    session_epoch: int = wire.int32("7+", default=-1, ignorable=True)
    topics: Sequence[FetchTopic] = wire.array(FetchTopic, "0+")
    forgotten_topics_data: Sequence[ForgottenTopic] = wire.array(ForgottenTopic, "7+")
    rack_id: str = wire.string("11+", ignorable=True)


@message
class EpochEndOffset:
    epoch: int = wire.int32("12+", default=-1)
    end_offset: int = wire.int64("12+", default=-1)


@message
class LeaderIdAndEpoch:
    leader_id: int = wire.int32("12+", default=-1)
    leader_epoch: int = wire.int32("12+", default=-1)


@message
class SnapshotId:
    end_offset: int = wire.int64("0+", default=-1)
    epoch: int = wire.int32("0+", default=-1)


@message
class AbortedTransaction:
    producer_id: int = wire.int64("4+")
    first_offset: int = wire.int64("4+")


@message
class PartitionData:
    partition_index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    high_watermark: int = wire.int64("0+")
    last_stable_offset: int = wire.int64("4+", default=-1, ignorable=True)
    log_start_offset: int = wire.int64("5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = wire.struct(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = wire.struct(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = wire.struct(SnapshotId, "12+", tag=2)
    aborted_transactions: Sequence[AbortedTransaction] | None = wire.array(
        AbortedTransaction, "4+", nullable="4+", ignorable=True
    )
    preferred_read_replica: int = wire.int32("11+", default=-1)
    records: Records | None = wire.records("0+", nullable="0+")


@message
class FetchableTopicResponse:
    topic: str = wire.string("0-12", ignorable=True)
    topic_id: bytes = wire.uuid("13+", ignorable=True)
    partitions: Sequence[PartitionData] = wire.array(PartitionData, "0+")


@message
class NodeEndpoint:
    node_id: int = wire.int32("16+")
    host: str = wire.string("16+")
    port: int = wire.int32("16+")
    rack: str | None = wire.string("16+", nullable="16+", default=None)


@message(versions="4-18", flexible="12+")
class FetchResponse:
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    error_code: int = wire.int16("7+", ignorable=True)
    session_id: int = wire.int32("7+")
    responses: Sequence[FetchableTopicResponse] = wire.array(FetchableTopicResponse, "0+")
    node_endpoints: Sequence[NodeEndpoint] = wire.array(NodeEndpoint, "16+", tag=0)
