"""InitProducerId: a producer id and epoch for idempotence and transactions (KIP-98, KIP-360).

Versions:
    v0  first version
    v1  throttling is applied after the response
    v2  flexible
    v3  request adds producer_id, producer_epoch
    v4  PRODUCER_FENCED may be returned (KIP-588)
    v5  TRANSACTION_ABORTABLE may be returned (KIP-890)
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 22


@message(versions="0-5", flexible="2+")
class InitProducerIdRequest:
    transactional_id: str | None = wire.string("0+", nullable="0+")
    transaction_timeout_ms: int = wire.int32("0+")
    producer_id: int = wire.int64("3+", default=-1)
    producer_epoch: int = wire.int16("3+", default=-1)


@message(versions="0-5", flexible="2+")
class InitProducerIdResponse:
    throttle_time_ms: int = wire.int32("0+", ignorable=True)
    error_code: int = wire.int16("0+")
    producer_id: int = wire.int64("0+", default=-1)
    producer_epoch: int = wire.int16("0+")
