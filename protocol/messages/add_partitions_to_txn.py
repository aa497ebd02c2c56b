"""AddPartitionsToTxn: name the partitions a transaction writes to (KIP-98, KIP-890).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  PRODUCER_FENCED may be returned (KIP-588)
    v3  flexible
    v4  request adds transactions; drops v3_and_below_transactional_id, v3_and_below_producer_id,
        v3_and_below_producer_epoch, v3_and_below_topics. response adds error_code, results_by_transaction; drops
        results_by_topic_v3_and_below. batched and verify-only, between nodes (KIP-890)
    v5  TRANSACTION_ABORTABLE may be returned
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 24


@message
class AddPartitionsToTxnTopic:
    name: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class AddPartitionsToTxnTransaction:
    transactional_id: str = wire.string("4+")
    producer_id: int = wire.int64("4+")
    producer_epoch: int = wire.int16("4+")
    verify_only: bool = wire.boolean("4+")
    topics: Sequence[AddPartitionsToTxnTopic] = wire.array(AddPartitionsToTxnTopic, "4+")


@message(versions="0-5", flexible="3+")
class AddPartitionsToTxnRequest:
    transactions: Sequence[AddPartitionsToTxnTransaction] = wire.array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = wire.string("0-3")
    v3_and_below_producer_id: int = wire.int64("0-3")
    v3_and_below_producer_epoch: int = wire.int16("0-3")
    v3_and_below_topics: Sequence[AddPartitionsToTxnTopic] = wire.array(AddPartitionsToTxnTopic, "0-3")


@message
class AddPartitionsToTxnPartitionResult:
    partition_index: int = wire.int32("0+")
    partition_error_code: int = wire.int16("0+")


@message
class AddPartitionsToTxnTopicResult:
    name: str = wire.string("0+")
    results_by_partition: Sequence[AddPartitionsToTxnPartitionResult] = wire.array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


@message
class AddPartitionsToTxnResult:
    transactional_id: str = wire.string("4+")
    topic_results: Sequence[AddPartitionsToTxnTopicResult] = wire.array(AddPartitionsToTxnTopicResult, "4+")


@message(versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("4+", ignorable=True)
    results_by_transaction: Sequence[AddPartitionsToTxnResult] = wire.array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnTopicResult] = wire.array(
        AddPartitionsToTxnTopicResult, "0-3"
    )
