"""RegistryCall: a node passes a request to its schema registry to the node that leads the registry's log."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_006


@message(versions="0", flexible=None)
class RegistryCallRequest:
    method: str = wire.string("0+")
    """Method of HTTP."""
    target: bytes = wire.bytes_("0+")
    """Path below the registry's prefix with its query, as sent: ASCII."""
    body: bytes = wire.bytes_("0+")


@message(versions="0", flexible=None)
class RegistryCallResponse:
    status: int = wire.int16("0+")
    """Status of HTTP."""
    body: bytes = wire.bytes_("0+")
