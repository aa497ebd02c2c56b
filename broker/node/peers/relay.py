"""A request of Kafka's protocol, passed to the node that can answer it."""

from typing import Any, Final

from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.protocol.api import api_of
from anabranch.protocol.codec import decode_exact, encode
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages.internal.relay import RelayRequest, RelayResponse

RELAY_VERSION: Final = 0


class RelayRefused(PeerUnavailable):
    """A node has answered, but not with a response: it does not know the request, or could not serve it."""


async def relay(peers: Peers, node_id: int, request: Any, version: int, *, principal: str = "", host: str = "") -> Any:
    """Return another node's response to a request message, for a user or, without one, for this node itself.

    Raises PeerUnavailable, and RelayRefused with the reason.
    """
    api = api_of(type(request))
    envelope = RelayRequest(
        api_key=api.key, api_version=version, principal=principal, host=host, body=encode(request, version)
    )
    relayed: RelayResponse = await peers.call(node_id, envelope, RELAY_VERSION)
    if relayed.failure:
        raise RelayRefused(f"node {node_id}: {relayed.failure}")
    try:
        return decode_exact(api.response, relayed.body, version)
    except MalformedMessage as error:  # of another version of this program, whose own messages differ
        raise RelayRefused(f"node {node_id}: {error}") from None
