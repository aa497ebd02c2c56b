"""A TCP proxy that puts PostgreSQL far away: each direction takes half of a round trip, and round trips are counted.

A round trip is counted where the driver asks for answers: at a simple query, and at the synchronisation that ends one
or, in a pipeline, many statements; not where it only prepares a statement, which it does once on each connection. Bytes
are delayed, not throttled: what is sent together arrives together.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Final
from urllib.parse import urlsplit, urlunsplit

CHUNK_BYTES: Final = 64 * 1024
_STARTUP: Final = 0x0003_0000
"""Version in the message after which messages have types. Requests for encryption come before it."""
_QUERY, _EXECUTE, _SYNC = b"QES"
"""Types of messages: a statement whose answer is awaited, a statement, and the wait for the answers."""


class FarServer:
    """A PostgreSQL server behind the proxy; `url` is the proxy's."""

    def __init__(self, upstream: str, round_trip_s: float) -> None:
        self._upstream = urlsplit(upstream)
        self.round_trip_s = round_trip_s
        """Time that is added to each round trip; may be changed at any time."""
        self.url = upstream
        self.round_trips = 0
        """Round trips of all connections so far, without those that open a connection."""

    def listen_on(self, port: int) -> None:
        """Set `url` to the proxy's own port."""
        self.url = urlunsplit(self._upstream._replace(netloc=f"{self._upstream.username}@127.0.0.1:{port}"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side ends it."""
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
            try:
                ways = (self._carry(reader, back, _Messages(self)), self._carry(there, writer, None))
                tasks = [asyncio.create_task(way) for way in ways]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            finally:
                for each in (back, writer):
                    each.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, messages: "_Messages | None"
    ) -> None:
        loop = asyncio.get_running_loop()
        waiting: deque[tuple[float, bytes]] = deque()
        arrived = asyncio.Event()

        async def deliver() -> None:
            with contextlib.suppress(OSError):
                while True:
                    await arrived.wait()
                    due_s, data = waiting.popleft()
                    if not waiting:
                        arrived.clear()
                    await asyncio.sleep(due_s - loop.time())
                    if not data:
                        return
                    writer.write(data)
                    await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    if messages is not None:
                        messages.feed(data)
                    waiting.append((loop.time() + self.round_trip_s / 2, data))
                    arrived.set()
            waiting.append((loop.time() + self.round_trip_s / 2, b""))
            arrived.set()


class _Messages:
    """Counts messages in the bytes that a client sends."""

    def __init__(self, server: FarServer) -> None:
        self._server = server
        self._held = bytearray()
        self._typed = 0
        """1: messages begin with a byte that is their type."""
        self._executed = False

    def feed(self, data: bytes) -> None:
        held = self._held
        held += data
        while len(held) >= self._typed + 4:
            size = self._typed + int.from_bytes(held[self._typed : self._typed + 4])
            if len(held) < size:
                return
            if not self._typed:
                self._typed = int(int.from_bytes(held[4:8]) == _STARTUP)
            else:
                self._executed |= held[0] == _EXECUTE
                if held[0] == _QUERY or (held[0] == _SYNC and self._executed):
                    self._server.round_trips += 1
                    self._executed = False
            del held[:size]


@contextlib.asynccontextmanager
async def far_server(upstream: str, round_trip_s: float = 0.0) -> AsyncIterator[FarServer]:
    """Put the proxy in front of a database, on a free loopback port."""
    far = FarServer(upstream, round_trip_s)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await far.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the proxy
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    far.listen_on(server.sockets[0].getsockname()[1])
    try:
        yield far
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(set(tasks))
        await server.wait_closed()


@contextlib.contextmanager
def far_server_thread(upstream: str, round_trip_s: float) -> Iterator[FarServer]:
    """Run the proxy on a separate thread, for callers that block."""
    ready = threading.Event()
    found: list[tuple[FarServer, asyncio.AbstractEventLoop]] = []
    stop = asyncio.Event()

    async def run() -> None:
        async with far_server(upstream, round_trip_s) as far:
            found.append((far, asyncio.get_running_loop()))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(30), "the proxy did not start"
        yield found[0][0]
    finally:
        for _, loop in found:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)
