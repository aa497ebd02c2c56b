"""Requests to other nodes."""

from typing import Any, Protocol

from broker.cluster.members import Member


class PeerUnavailable(Exception):
    """A node did not answer. The request may have taken effect."""


class Peers(Protocol):
    """The way to other nodes."""

    async def call(self, node_id: int, request: Any, version: int) -> Any:
        """Send a request message of the protocol in that version to a node; return its response message.

        Raises PeerUnavailable when the node is unknown, cannot be reached or does not answer in time.
        """
        ...

    async def reaches(self, member: Member) -> bool:
        """Return whether a node that is not known to live answers at its internal port."""
        ...


class NoPeers:
    """Peers of a node that is alone."""

    async def reaches(self, member: Member) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    async def call(self, node_id: int, request: Any, version: int) -> Any:  # noqa: ARG002
        """Raise PeerUnavailable."""
        raise PeerUnavailable(f"node {node_id} is not known")
