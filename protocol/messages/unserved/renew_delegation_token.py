"""RenewDelegationToken: prolong a token (KIP-48).

Versions:
    v1  the oldest served
    v2  flexible
"""

from protocol import wire
from protocol.wire import message

KEY = 39


@message(versions="1-2", flexible="2+")
class RenewDelegationTokenRequest:
    """What a client asks of RenewDelegationToken."""

    hmac: bytes = wire.bytes_("0+")
    renew_period_ms: int = wire.int64("0+")


@message(versions="1-2", flexible="2+")
class RenewDelegationTokenResponse:
    """A node's answer to RenewDelegationToken."""

    error_code: int = wire.int16("0+")
    expiry_timestamp_ms: int = wire.int64("0+")
    throttle_time_ms: int = wire.int32("0+")
