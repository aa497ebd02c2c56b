"""SaslHandshake: choose the SASL mechanism (KIP-43).

Versions:
    v0  the first
    v1  SaslAuthenticate follows instead of raw tokens (KIP-152)
"""

from collections.abc import Sequence

from protocol import wire
from protocol.wire import message

KEY = 17


@message(versions="0-1", flexible=None)
class SaslHandshakeRequest:
    """What a client asks of SaslHandshake."""

    mechanism: str = wire.string("0+")


@message(versions="0-1", flexible=None)
class SaslHandshakeResponse:
    """A node's answer to SaslHandshake."""

    error_code: int = wire.int16("0+")
    mechanisms: Sequence[str] = wire.array(wire.Kind.STRING, "0+")
