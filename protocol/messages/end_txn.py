"""EndTxn: commit or abort a transaction (KIP-98, KIP-890).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  PRODUCER_FENCED may be returned (KIP-588)
    v3  flexible
    v4  TRANSACTION_ABORTABLE may be returned
    v5  response adds producer_id, producer_epoch. the epoch is bumped with each transaction (KIP-890, part 2)
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 26


@message(versions="0-5", flexible="3+")
class EndTxnRequest:
    transactional_id: str = wire.string("0+")
    producer_id: int = wire.int64("0+")
    producer_epoch: int = wire.int16("0+")
    committed: bool = wire.boolean("0+")


@message(versions="0-5", flexible="3+")
class EndTxnResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    producer_id: int = wire.int64("5+", default=-1, ignorable=True)
    producer_epoch: int = wire.int16("5+", default=-1, ignorable=True)
