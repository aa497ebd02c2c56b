"""The way between nodes: requests over the simulated network, to the port that clients use."""

import asyncio
from typing import Any

from broker.cluster.peers import PeerUnavailable
from tests.simulation.loop import PROCESS
from tests.simulation.network import Network
from tests.support.raw_client import RawClient

CALL_S = 3.0


class SimPeers:
    """Stands for `Peers`. Each request has a connection of its own; one that is given up may still arrive."""

    def __init__(self, network: Network, port: int) -> None:
        process = PROCESS.get()
        assert process is not None
        self._network = network
        self._host = process.host
        self._port = port

    async def call(self, node_id: int, request: Any, version: int) -> Any:
        """Send a request to a node and return the response. Raises PeerUnavailable."""
        try:
            async with asyncio.timeout(CALL_S):
                reader, writer = await self._network.connect(self._host, (f"node-{node_id}", self._port))
                try:
                    return await RawClient(reader, writer, self._host).call(request, version)
                finally:
                    writer.close()  # what is on its way arrives
        except (OSError, EOFError, TimeoutError) as error:
            raise PeerUnavailable(f"node {node_id}: {error!r}") from error
