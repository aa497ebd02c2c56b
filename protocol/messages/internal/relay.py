"""Relay: a node passes a request of Kafka's protocol, its own or a user's, to the node that can answer it."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_004


@message(versions="0", flexible=None)
class RelayRequest:
    api_key: int = wire.int16("0+")
    api_version: int = wire.int16("0+")
    principal: str = wire.string("0+")
    """The user, for the audit log."""
    host: str = wire.string("0+")
    """Address of the user, likewise."""
    body: bytes = wire.bytes_("0+")
    """The request, without a header."""


@message(versions="0", flexible=None)
class RelayResponse:
    failure: str = wire.string("0+")
    """Reason why there is no response; empty: there is one."""
    body: bytes = wire.bytes_("0+")
    """The response, without a header."""
