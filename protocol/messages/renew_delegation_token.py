"""RenewDelegationToken: extend the expiry time of a token (KIP-48).

Versions:
    v1  oldest version served
    v2  flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 39


@message(versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    hmac: bytes = wire.bytes_("0+")
    renew_period_ms: int = wire.int64("0+")


@message(versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    error_code: int = wire.int16("0+")
    expiry_timestamp_ms: int = wire.int64("0+")
    throttle_time_ms: int = wire.int32("0+")
