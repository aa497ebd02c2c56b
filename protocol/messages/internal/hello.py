"""Hello: the first request on a connection between two nodes of a cluster. The response is a challenge.

Both sides choose a nonce. Each proves afterwards, with Authenticate, that it knows the cluster's secret.
"""

from anabranch.protocol import wire
from anabranch.protocol.wire import message

KEY = 32_000


@message(versions="0", flexible=None)
class HelloRequest:
    """Request of the Hello API: who connects, and whom it expects to reach."""

    cluster: str = wire.string("0+")
    node_id: int = wire.int32("0+")
    node_epoch: int = wire.int64("0+")
    target_id: int = wire.int32("0+")
    target_epoch: int = wire.int64("0+")
    nonce: bytes = wire.bytes_("0+")


@message(versions="0", flexible=None)
class HelloResponse:
    """Response of the Hello API. Whoever is refused gets no response: the connection is closed."""

    nonce: bytes = wire.bytes_("0+")
