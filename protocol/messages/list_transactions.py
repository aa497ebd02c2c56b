"""ListTransactions: the transactions a node coordinates (KIP-664, KIP-994, KIP-1152).

Versions:
    v0  first version. flexible
    v1  request adds duration_filter
    v2  request adds transactional_id_pattern
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 66


@message(versions="0-2", flexible="0+")
class ListTransactionsRequest:
    state_filters: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    producer_id_filters: Sequence[int] = wire.array(wire.Kind.INT64, "0+")
    duration_filter: int = wire.int64("1+", default=-1)
    transactional_id_pattern: str | None = wire.string("2+", nullable="2+", default=None)


@message
class TransactionState:
    transactional_id: str = wire.string("0+")
    producer_id: int = wire.int64("0+")
    transaction_state: str = wire.string("0+")


@message(versions="0-2", flexible="0+")
class ListTransactionsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    unknown_state_filters: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
    transaction_states: Sequence[TransactionState] = wire.array(TransactionState, "0+")
