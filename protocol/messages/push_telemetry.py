"""PushTelemetry: metrics of a client (KIP-714).

Versions:
    v0  first version. flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 72


@message(versions="0", flexible="0+")
class PushTelemetryRequest:
    client_instance_id: bytes = wire.uuid("0+")
    subscription_id: int = wire.int32("0+")
    terminating: bool = wire.boolean("0+")
    compression_type: int = wire.int8("0+")
    metrics: bytes = wire.bytes_("0+")


@message(versions="0", flexible="0+")
class PushTelemetryResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
