"""Requests to other nodes."""

from typing import Any, Protocol


class PeerUnavailable(Exception):
    """A node did not answer. The request may have taken effect."""


class Peers(Protocol):
    """The way to other nodes."""

    async def call(self, node_id: int, request: Any, version: int) -> Any:
        """Send a request message of the protocol in that version to a node; return its response message.

        Raises PeerUnavailable when the node is unknown, cannot be reached or does not answer in time.
        """
        ...
