"""A TCP proxy between a catalog and PostgreSQL that loses the answers to commits, stalls or resets connections.

To lose an answer, the proxy forwards the commit, which takes effect, discards the answer, and resets the client's
connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from tests.support.fault_proxy import reset_connection

COMMIT: Final = b"Q\x00\x00\x00\x0bCOMMIT\x00"
"""The message that ends a transaction, as the driver sends it."""
CHUNK_BYTES: Final = 64 * 1024


async def nothing() -> None:
    """Do nothing: the default of `LossyServer.after_loss`."""


class LossyServer:
    """A PostgreSQL server behind the proxy; `url` is the proxy's."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self.url = upstream
        self.losses = 0
        """Number of answers to commits that are still to be lost."""
        self.lost = 0
        """Number of answers lost so far."""
        self.after_loss: Callable[[], Awaitable[None]] = nothing
        """Awaited after a commit has taken effect and before the client's connection is reset."""
        self.passing = asyncio.Event()
        """Cleared: the proxy accepts connections and requests, and forwards nothing until it is set again."""
        self.passing.set()
        self.refusing = False
        """True: the proxy resets each new connection."""
        self._clients: set[asyncio.StreamWriter] = set()

    def reset_all(self) -> None:
        """Reset all connections there are."""
        for writer in self._clients:
            reset_connection(writer)

    def listen_on(self, port: int) -> None:
        """Set `url` to the proxy's own port."""
        at = self._upstream
        self.url = urlunsplit(at._replace(netloc=f"{at.username}@127.0.0.1:{port}"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side ends it, or a commit's answer is lost."""
        if self.refusing:
            reset_connection(writer)
            return
        self._clients.add(writer)
        try:
            await self._relay(reader, writer)
        finally:
            self._clients.discard(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        except OSError:  # the server is down
            reset_connection(writer)
            return
        answers = asyncio.create_task(_carry(there, writer))
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self.passing.wait()
                losing = self.losses > 0 and COMMIT in data
                if losing:
                    self.losses -= 1
                    answers.cancel()
                    await asyncio.wait({answers})
                back.write(data)
                await back.drain()
                if losing:
                    await there.read(CHUNK_BYTES)
                    self.lost += 1
                    await self.after_loss()
                    reset_connection(writer)
                    return
        except OSError:
            return
        finally:
            answers.cancel()
            await asyncio.wait({answers})
            for each in (back, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()  # not if it is cancelled: the answer to come is lost then


@contextlib.asynccontextmanager
async def lossy_server(upstream: str) -> AsyncIterator[LossyServer]:
    """Put the proxy in front of a database, on a free loopback port."""
    lossy = LossyServer(upstream)
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        try:
            await lossy.serve(reader, writer)
        finally:
            del connections[task]

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    lossy.listen_on(server.sockets[0].getsockname()[1])
    try:
        yield lossy
    finally:
        server.close()
        for writer in connections.values():
            writer.transport.abort()
        if connections:
            await asyncio.wait(set(connections))
        await server.wait_closed()
