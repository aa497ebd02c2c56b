"""SaslAuthenticate: exchange SASL tokens (KIP-152, KIP-368).

Versions:
    v0  first version
    v1  response adds session_lifetime_ms
    v2  flexible
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 36


@message(versions="0-2", flexible="2+")
class SaslAuthenticateRequest:
    auth_bytes: bytes = wire.bytes_("0+")


@message(versions="0-2", flexible="2+")
class SaslAuthenticateResponse:
    error_code: int = wire.int16("0+")
    error_message: str | None = wire.string("0+", nullable="0+")
    auth_bytes: bytes = wire.bytes_("0+")
    session_lifetime_ms: int = wire.int64("1+", ignorable=True)
