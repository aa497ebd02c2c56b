"""StopNode: end the process of a drained node, which is to be removed from the cluster. It is relayed (`relay`)."""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_014


@message(versions="0", flexible=None)
class StopNodeRequest:
    """Request of the StopNode API, without fields."""


@message(versions="0", flexible=None)
class StopNodeResponse:
    failure: str = wire.string("0+")
    """Reason for which the node continues; empty: it stops."""
