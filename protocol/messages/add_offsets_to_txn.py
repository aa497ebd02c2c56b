"""AddOffsetsToTxn: name the group whose offsets a transaction commits (KIP-98).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  PRODUCER_FENCED may be returned (KIP-588)
    v3  flexible
    v4  TRANSACTION_ABORTABLE may be returned (KIP-890)
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 25


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnRequest:
    transactional_id: str = wire.string("0+")
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int16("0+")
    group_id: str = wire.string("0+")


@message(versions="0-4", flexible="3+")
class AddOffsetsToTxnResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
