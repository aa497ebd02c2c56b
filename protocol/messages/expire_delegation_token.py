"""ExpireDelegationToken: change the expiry time of a token (KIP-48).

Versions:
    v1  oldest version served
    v2  flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 40


@message(versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest:
    hmac: bytes = wire.bytes_("0+")
    expiry_time_period_ms: int = wire.int64("0+")


@message(versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse:
    error_code: int = wire.int16("0+")
    expiry_timestamp_ms: int = wire.int64("0+")
    throttle_time_ms: int = wire.int32("0+")
