"""Produce: append record batches to partitions (KIP-98, KIP-467, KIP-516).

Versions:
    v3  oldest version served; 0-2 are advertised for librdkafka only and refused
    v4  KAFKA_STORAGE_ERROR may be returned
    v5  response adds responses.partition_responses.log_start_offset
    v6  as v5
    v7  zstd batches are allowed (KIP-110)
    v8  response adds responses.partition_responses.record_errors, responses.partition_responses.error_message
    v9  flexible
    v10 response adds responses.partition_responses.current_leader (tagged), node_endpoints (tagged)
    v11 TRANSACTION_ABORTABLE may be returned (KIP-890)
    v12 a transactional produce adds its partition to the transaction (KIP-890, part 2)
    v13 request adds topic_data.topic_id; drops topic_data.name. response adds responses.topic_id; drops responses.name
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import Buffer, message

KEY = 0
ADVERTISED_MIN_VERSION = 0


@message
class PartitionProduceData:
    index: int = wire.int32("0+")
    records: Buffer | None = wire.records("0+", nullable="0+")


@message
class TopicProduceData:
    name: str = wire.string("0-12", ignorable=True)
    topic_id: bytes = wire.uuid("13+", ignorable=True)
    partition_data: Sequence[PartitionProduceData] = wire.array(PartitionProduceData, "0+")


@message(versions="3-13", flexible="9+")
class ProduceRequest:
    transactional_id: str | None = wire.string("3+", nullable="3+", default=None)
    acks: int = wire.int16("0+")
    timeout_ms: int = wire.int32("0+")
    topic_data: Sequence[TopicProduceData] = wire.array(TopicProduceData, "0+")


@message
class BatchIndexAndErrorMessage:
    batch_index: int = wire.int32("8+")
    batch_index_error_message: str | None = wire.string("8+", nullable="8+", default=None)


@message
class LeaderIdAndEpoch:
    leader_id: int = wire.int32("10+", default=-1)
    leader_epoch: int = wire.int32("10+", default=-1)


@message
class PartitionProduceResponse:
    index: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    base_offset: int = wire.int64("0+")
    log_append_time_ms: int = wire.int64("2+", default=-1, ignorable=True)
    log_start_offset: int = wire.int64("5+", default=-1, ignorable=True)
    record_errors: Sequence[BatchIndexAndErrorMessage] = wire.array(BatchIndexAndErrorMessage, "8+", ignorable=True)
    error_message: str | None = wire.string("8+", nullable="8+", default=None, ignorable=True)
    current_leader: LeaderIdAndEpoch = wire.struct(LeaderIdAndEpoch, "10+", tag=0)


@message
class TopicProduceResponse:
    name: str = wire.string("0-12", ignorable=True)
    topic_id: bytes = wire.uuid("13+", ignorable=True)
    partition_responses: Sequence[PartitionProduceResponse] = wire.array(PartitionProduceResponse, "0+")


@message
class NodeEndpoint:
    node_id: int = wire.int32("10+")
    host: str = wire.string("10+")
    port: int = wire.int32("10+")
    rack: str | None = wire.string("10+", nullable="10+", default=None)


@message(versions="3-13", flexible="9+")
class ProduceResponse:
    responses: Sequence[TopicProduceResponse] = wire.array(TopicProduceResponse, "0+")
    throttle_time_ms: int = wire.int32("1+", ignorable=True)
    node_endpoints: Sequence[NodeEndpoint] = wire.array(NodeEndpoint, "10+", tag=0)
