"""DescribeTransactions: the state of transactional ids (KIP-664).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 65


@message(versions="0", flexible="0+")
class DescribeTransactionsRequest:
    transactional_ids: Sequence[str] = wire.array(wire.Kind.STRING, "0+")


@message
class TopicData:
    topic: str = wire.string("0+")
    partitions: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message
class TransactionState:
    error_code: int = wire.int16("0+")
    transactional_id: str = wire.string("0+")
    transaction_state: str = wire.string("0+")
    transaction_timeout_ms: int = wire.int32("0+")
    transaction_start_time_ms: int = wire.int64("0+")
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int16("0+")
    topics: Sequence[TopicData] = wire.array(TopicData, "0+")


@message(versions="0", flexible="0+")
class DescribeTransactionsResponse:
    throttle_time_ms: int = wire.int32("0+")
    transaction_states: Sequence[TransactionState] = wire.array(TransactionState, "0+")
