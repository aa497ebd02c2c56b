"""UnregisterBroker: remove a node from the cluster (KIP-500).

Versions:
    v0  first version. flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 64


@message(versions="0", flexible="0+")
class UnregisterBrokerRequest:
    broker_id: int = wire.int32("0+")


@message(versions="0", flexible="0+")
class UnregisterBrokerResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
