"""Authenticate: the second request on a connection between two nodes. Each side proves that it knows the secret."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_001


@message(versions="0", flexible=None)
class AuthenticateRequest:
    proof: bytes = wire.bytes_("0+")


@message(versions="0", flexible=None)
class AuthenticateResponse:
    """Response of the Authenticate API, from a node that has accepted the proof of the other one."""

    proof: bytes = wire.bytes_("0+")
