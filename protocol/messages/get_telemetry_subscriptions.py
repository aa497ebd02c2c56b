"""GetTelemetrySubscriptions: the metrics that a client is to push (KIP-714).

Versions:
    v0  first version. flexible
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 71


@message(versions="0", flexible="0+")
class GetTelemetrySubscriptionsRequest:
    client_instance_id: bytes = wire.uuid("0+")


@message(versions="0", flexible="0+")
class GetTelemetrySubscriptionsResponse:
    throttle_time_ms: int = wire.int32("0+")
    error_code: int = wire.int16("0+")
    client_instance_id: bytes = wire.uuid("0+")
    subscription_id: int = wire.int32("0+")
    accepted_compression_types: Sequence[int] = wire.array(wire.Kind.INT8, "0+")
    push_interval_ms: int = wire.int32("0+")
    telemetry_max_bytes: int = wire.int32("0+")
    delta_temporality: bool = wire.boolean("0+")
    requested_metrics: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
