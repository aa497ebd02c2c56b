"""An HTTP proxy between a client and a server that answers wrongly, late or not at all, as a test decides.

The proxy forwards requests to one server unchanged, so that signatures stay valid, and calls `decide` to choose the
fault for each. It handles one request at a time per connection, and keeps no state when it stops.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request, as passed to `decide`."""

    method: str
    target: str
    """Path and query."""
    number: int
    """Number of the request over all connections, from 1."""
    connection: int
    """Number of its connection, from 1."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by name in lower case."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Treatment of a request. Without any field set, the request passes."""

    status: int = 0
    """Answer with this status and `code`, without forwarding the request."""
    code: str = ""
    reset_before: bool = False
    """Close the connection; the server never sees the request."""
    lose_answer: bool = False
    """Let the server apply the request, then close the connection without an answer."""
    answer_bytes_max: int | None = None
    """Close the connection after this many bytes of the answer's body."""
    hang: bool = False
    """Never answer."""
    delay_ms: int = 0
    """Delay before the request is forwarded."""
    body_bytes_max: int | None = None
    """Forward this many bytes of the request's body, then reset both connections."""
    reset: bool = False
    """Close the connection with a reset, wherever another field closes it."""


PASS = Fault()


@contextlib.asynccontextmanager
async def fault_proxy(upstream: str, decide: Callable[[Request], Fault]) -> AsyncIterator[str]:
    """Run the proxy to the server with the URL `upstream` on a free loopback port; yields its own URL."""
    proxy = _Proxy(upstream, decide)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
    own_port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{own_port}"
    finally:
        proxy.stopped.set()
        server.close()
        await proxy.idle.wait()
        await server.wait_closed()


class _Proxy:
    def __init__(self, upstream: str, decide: Callable[[Request], Fault]) -> None:
        at = urlsplit(upstream)
        self._upstream = (at.hostname, at.port)
        self._decide = decide
        self._count = 0
        self._connections = 0
        self._accepted = 0
        self.stopped = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self._accepted += 1
        self.idle.clear()
        try:
            stopped = asyncio.ensure_future(self.stopped.wait())
            work = asyncio.ensure_future(self._work(reader, writer, self._accepted))
            await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
            for task in (stopped, work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError, EOFError):
                    await task
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._connections -= 1
            if not self._connections:
                self.idle.set()

    async def _work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ")
            kept = [line for line in lines if not line.lower().startswith("expect:")]
            self._count += 1
            fault = self._decide(Request(method, target, self._count, connection, _headers(lines)))
            if len(kept) != len(lines):
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = await reader.readexactly(_content_length(lines))
            if fault.reset_before:
                return self._close(writer, fault)
            await asyncio.sleep(fault.delay_ms / 1000)
            if fault.body_bytes_max is not None:
                await self._cut_off("\r\n".join(kept).encode("latin-1") + body[: fault.body_bytes_max])
                return reset_connection(writer)
            if fault.hang:
                await self.stopped.wait()
            if fault.status:
                text = f"<Error><Code>{fault.code}</Code><Message>injected</Message></Error>".encode()
                writer.write(f"HTTP/1.1 {fault.status} Injected\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
                await writer.drain()
                continue
            answer_head, answer_body = await self._forward("\r\n".join(kept).encode("latin-1") + body, method)
            if fault.lose_answer:
                return self._close(writer, fault)
            if fault.answer_bytes_max is not None:
                writer.write(answer_head + answer_body[: fault.answer_bytes_max])
                await writer.drain()
                return self._close(writer, fault)
            writer.write(answer_head + answer_body)
            await writer.drain()

    @staticmethod
    def _close(writer: asyncio.StreamWriter, fault: Fault) -> None:
        if fault.reset:
            reset_connection(writer)

    async def _cut_off(self, request: bytes) -> None:
        """Send the server the beginning of a request, and then a reset."""
        _, writer = await asyncio.open_connection(*self._upstream)
        writer.write(request)
        await writer.drain()
        reset_connection(writer)

    async def _forward(self, request: bytes, method: str) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(*self._upstream, limit=HEAD_BYTES_MAX)
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            bodiless = method == "HEAD" or " 204 " in lines[0] or " 304 " in lines[0]
            return head, b"" if bodiless else await reader.readexactly(_content_length(lines))
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def reset_connection(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a reset instead of an end."""
    bare: socket.socket = writer.get_extra_info("socket")
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@contextlib.contextmanager
def fault_proxy_thread(upstream: str, decide: Callable[[Request], Fault]) -> Iterator[str]:
    """Run the proxy on a separate thread, for tests that block; `decide` is called there."""
    ready = threading.Event()
    urls: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []
    stop = asyncio.Event()

    async def serve() -> None:
        async with fault_proxy(upstream, decide) as url:
            urls.append(url)
            loops.append(asyncio.get_running_loop())
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30), "the proxy did not start"
        yield urls[0]
    finally:
        for loop in loops:
            loop.call_soon_threadsafe(stop.set)
        thread.join(30)


def _headers(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines[1:] if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _content_length(lines: list[str]) -> int:
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            return int(value)
        assert name.lower() != "transfer-encoding", "the proxy does not support chunked bodies"
    return 0
