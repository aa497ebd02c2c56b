"""AddOffsetsToTxn: name the group whose offsets a transaction commits (KIP-98).

Versions:
    v0  the first
    v1  throttling moves to after the answer
    v2  PRODUCER_FENCED may come (KIP-588)
    v3  flexible
    v4  TRANSACTION_ABORTABLE may come (KIP-890)
"""

from protocol import wire
from protocol.wire import message

KEY = 25


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    """What a client asks of AddOffsetsToTxn."""

    transactional_id: str = wire.string("0+")
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int16("0+")
    group_id: str = wire.string("0+")


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    """A node's answer to AddOffsetsToTxn."""

    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
