"""Connections of clients: how a client of the simulation finds the node that a request is for."""

import asyncio
from typing import Any

from protocol.errors import ErrorCode
from tests.simulation.world import World
from tests.support.raw_client import RawClient

TIMEOUT_S = 15.0
RETRY_S = (0.02, 0.5)


class Lost(Exception):
    """The connection broke or nobody answered: the request may have taken effect."""


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: {ErrorCode(code).name}")
        self.code = ErrorCode(code)


def check(code: int, where: str) -> None:
    """Raise Refused for an error code."""
    if code:
        raise Refused(code, where)


class Client:
    """A connection to the node that is there at the moment; it is opened again after each failure."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random(name)
        self._raw: RawClient | None = None

    async def raw(self) -> RawClient:
        """Return an open connection. Raises Lost."""
        if self._raw is None:
            node = self.world.nodes[0]
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    reader, writer = await self.world.network.connect(f"client-{self.name}", node.address)
            except (OSError, TimeoutError) as error:
                raise Lost(str(error)) from error
            self._raw = RawClient(reader, writer, self.name)
        return self._raw

    async def call(self, message: object, version: int | None = None) -> Any:
        """Send a request and return the response. Raises Lost."""
        raw = await self.raw()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await raw.call(message, version)
        except (OSError, EOFError, TimeoutError) as error:
            await self.drop()
            raise Lost(repr(error)) from error

    async def drop(self) -> None:
        """Close the connection."""
        raw, self._raw = self._raw, None
        if raw is not None:
            await raw.abort()

    async def pause(self) -> None:
        """Wait before a retry."""
        await asyncio.sleep(self.random.uniform(*RETRY_S))
