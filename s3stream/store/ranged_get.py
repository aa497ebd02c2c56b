"""Ranged GETs over HTTP/1.1 whose bodies are received directly into their final memory.

A general client returns a body as many small objects, each created and copied twice. For megabytes of cold data that
is most of a GET's CPU. This client does one thing: it sends a GET with a signed URL, and receives a response of known
length into memory that the caller allocates. Any other response is returned with its status, for the general client to
handle.

Connections are kept alive and reused. If the service has closed one, the request is sent once more on a new
connection, as HTTP allows for GET.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from urllib.parse import urlsplit

HEAD_BYTES_MAX = 32 * 1024
ERROR_BYTES_MAX = 64 * 1024
TURN_BYTES = 256 * 1024
"""Limit of bytes received per turn of the event loop, so that appends of the same node do not wait longer."""
IDLE_SECONDS_MAX = 10
"""A connection that was idle for longer may have been dropped silently."""


class RangedResponse(NamedTuple):
    """A response. The body of an error may be truncated or omitted."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: memoryview


class _ConnectionLost(ConnectionError):
    """A kept connection was closed before any byte of a response."""


@dataclass(slots=True)
class _PendingGet:
    """The request in progress on a connection."""

    done: "asyncio.Future[RangedResponse]"
    allocate: Callable[[int], memoryview]
    head: bytearray = field(default_factory=lambda: bytearray(HEAD_BYTES_MAX))
    head_bytes: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: memoryview | None = None
    body_bytes: int = 0
    moved: bool = False
    """True if bytes arrived since the last check."""


class _GetConnection(asyncio.BufferedProtocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._call: _PendingGet | None = None
        self.usable = True
        """True if another request may be sent on it."""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # by behaviour: not every event loop derives from it

    def start(self, request: bytes, call: _PendingGet) -> None:
        """Send a request. Raises _ConnectionLost if the connection is closed."""
        assert self._transport is not None
        if not self.usable:
            raise _ConnectionLost("closed")
        assert self._call is None
        self._call = call
        self._transport.write(request)

    def close(self) -> None:
        """Close at once."""
        self.usable = False
        self._call = None
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, _sizehint: int) -> memoryview:
        call = self._call
        if call is None:
            return memoryview(bytearray(1))  # no request is in progress: a byte here ends the connection
        if call.body is None:
            return memoryview(call.head)[call.head_bytes :]
        return call.body[call.body_bytes : call.body_bytes + TURN_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        call = self._call
        if call is None:
            self.close()
            return
        call.moved = True
        if call.body is None:
            call.head_bytes += nbytes
            try:
                self._read_head(call)
            except ValueError as error:
                self.fail(ConnectionError(f"bad answer: {error}"))
                return
        else:
            call.body_bytes += nbytes
        if call.body is not None and call.body_bytes == len(call.body):
            self._finish(call)

    def eof_received(self) -> bool:
        return False  # close

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        call = self._call
        if call is None:
            return
        if call.body is not None:
            error: Exception = EOFError(f"{call.body_bytes} bytes of a body of {len(call.body)}")
        elif call.head_bytes == 0:
            error = _ConnectionLost(str(exc or "closed without an answer"))
        else:
            error = EOFError(f"{call.head_bytes} bytes of an answer's head")
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Close, and fail the request in progress."""
        call = self._call
        self.close()
        if call is not None and not call.done.done():
            call.done.set_exception(error)

    def _finish(self, call: _PendingGet) -> None:
        self._call = None
        assert call.body is not None
        if not call.done.done():
            call.done.set_result(RangedResponse(call.status, call.headers, call.body))

    def _read_head(self, call: _PendingGet) -> None:
        """Parse the head once it is complete, and allocate the body. Raises ValueError."""
        end = call.head.find(b"\r\n\r\n", 0, call.head_bytes)
        if end < 0:
            if call.head_bytes == HEAD_BYTES_MAX:
                raise ValueError(f"more than {HEAD_BYTES_MAX} bytes of headers")
            return
        lines = call.head[:end].decode("latin-1").split("\r\n")
        version, _, rest = lines[0].partition(" ")
        call.status = int(rest[:3])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            call.headers[name.strip().lower()] = value.strip()
        length = call.headers.get("content-length")
        if version != "HTTP/1.1" or call.headers.get("connection", "").lower() == "close":
            self.usable = False
        size = int(length) if length is not None else -1
        if size < 0 or "transfer-encoding" in call.headers or (call.status != 206 and size > ERROR_BYTES_MAX):
            # Unknown length, or not the requested range: the connection cannot be reused.
            self.usable = False
            size = 0
        came = memoryview(call.head)[end + 4 : call.head_bytes][:size]
        call.body = call.allocate(size) if call.status == 206 else memoryview(bytearray(size))
        call.body[: len(came)] = came
        call.body_bytes = len(came)


class RangedGets:
    """Ranged GETs over kept-alive connections."""

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        read_timeout_s: float,
        connections_max: int,
        tls: ssl.SSLContext | None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`read_timeout_s` limits the silence inside a response; `tls` is for https; URLs are signed with `headers`."""
        self._head_end = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items()) + "\r\n"
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._tls = tls
        self._slots = asyncio.Semaphore(connections_max)
        self._idle: dict[str, list[_GetConnection]] = {}
        self._busy: set[_GetConnection] = set()

    def close(self) -> None:
        """Close every connection."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        for connection in list(self._busy):
            connection.fail(ConnectionError("the store is closed"))

    async def get(self, url: str, byte_range: str, allocate: Callable[[int], memoryview]) -> RangedResponse:
        """Get a range of a signed URL; `allocate(size)` returns the memory for the body of a 206 response.

        Raises OSError or EOFError if the connection breaks or times out.
        """
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nRange: {byte_range}\r\nAccept-Encoding: identity\r\n"
            f"{self._head_end}"
        ).encode("ascii")
        origin = f"{parts.scheme}://{parts.netloc}"
        async with self._slots:
            connection = self._kept(origin)
            if connection is not None:
                try:
                    return await self._run(connection, origin, request, allocate)
                except _ConnectionLost:
                    pass
            connection = await self._connect(parts.scheme, parts.hostname or "", parts.port)
            return await self._run(connection, origin, request, allocate)

    def _kept(self, origin: str) -> _GetConnection | None:
        idle = self._idle.get(origin, [])
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS_MAX
        while idle:
            connection = idle.pop()
            if connection.usable and connection.idle_since >= oldest:
                return connection
            connection.close()
        return None

    async def _connect(self, scheme: str, host: str, port: int | None) -> _GetConnection:
        secure = scheme == "https"
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                _GetConnection, host, port or (443 if secure else 80), ssl=self._tls if secure else None
            )
        return connection

    async def _run(
        self, connection: _GetConnection, origin: str, request: bytes, allocate: Callable[[int], memoryview]
    ) -> RangedResponse:
        loop = asyncio.get_running_loop()
        call = _PendingGet(loop.create_future(), allocate)
        self._busy.add(connection)
        try:
            connection.start(request, call)
            await self._finished(call)
            answer = call.done.result()
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.usable:
            connection.idle_since = loop.time()
            self._idle.setdefault(origin, []).append(connection)
        else:
            connection.close()
        return answer

    async def _finished(self, call: _PendingGet) -> None:
        """Return when the call has succeeded or failed. Raises TimeoutError after `read_timeout_s` without a byte."""
        while not call.done.done():
            call.moved = False
            await asyncio.wait([call.done], timeout=self._read_timeout_s)
            if not call.done.done() and not call.moved:
                raise TimeoutError(f"silent for {self._read_timeout_s} s")
