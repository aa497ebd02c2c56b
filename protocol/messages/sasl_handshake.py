"""SaslHandshake: choose the SASL mechanism (KIP-43).

Versions:
    v0  first version
    v1  SaslAuthenticate follows instead of raw tokens (KIP-152)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 17


@message(versions="0-1", flexible=None)
class SaslHandshakeRequest:
    mechanism: str = wire.string("0+")


@message(versions="0-1", flexible=None)
class SaslHandshakeResponse:
    error_code: int = wire.int16("0+")
    mechanisms: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
