"""Ranged GETs over HTTP/1.1 whose bodies go from the socket straight into the memory they are kept in.

A general client hands a body out as many small objects, each made and copied twice; for megabytes of cold data that is
most of a GET's CPU. This one can do a single thing: send a GET whose URL is signed already, and receive an answer of
known length into memory of its owner's choice. Whatever else a service may answer is told by its status and left to the
general client.

Connections are kept and used again. One that the service has closed meanwhile is noticed when it is used; the request
is then sent once more on a fresh one, as HTTP allows for GET.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from urllib.parse import urlsplit

HEAD_BYTES_MAX = 32 * 1024
ERROR_BYTES_MAX = 64 * 1024
TURN_BYTES = 256 * 1024
"""What one turn of the event loop receives: appends of the same node wait for no more."""
IDLE_SECONDS_MAX = 10
"""A connection idle for longer may be gone without a word."""


class RangedResponse(NamedTuple):
    """What came back. The body of a refusal may be cut or left out."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: memoryview


class _ConnectionLost(ConnectionError):
    """A kept connection turned out to be closed before anything was answered."""


@dataclass(slots=True)
class _PendingGet:
    """The request a connection works on."""

    done: "asyncio.Future[RangedResponse]"
    allocate: Callable[[int], memoryview]
    head: bytearray = field(default_factory=lambda: bytearray(HEAD_BYTES_MAX))
    head_bytes: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: memoryview | None = None
    body_bytes: int = 0
    moved: bool = False
    """Something came since the last look."""


class _GetConnection(asyncio.BufferedProtocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._call: _PendingGet | None = None
        self.usable = True
        """Whether another request may be sent on it."""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # by behaviour: not every event loop derives from it

    def start(self, request: bytes, call: _PendingGet) -> None:
        """Send a request. Raises _ConnectionLost when the connection is closed."""
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
            return memoryview(bytearray(1))  # nobody asked for anything: a byte here ends the connection
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
        """Close, and end the request under way with an error."""
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
        """Read the head once it is whole, and make room for the body. Raises ValueError."""
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
            # Of no known length, or not what was asked for: the connection cannot be used after it.
            self.usable = False
            size = 0
        came = memoryview(call.head)[end + 4 : call.head_bytes][:size]
        call.body = call.allocate(size) if call.status == 206 else memoryview(bytearray(size))
        call.body[: len(came)] = came
        call.body_bytes = len(came)


class RangedGets:
    """Kept connections, and GETs over them."""

    def __init__(
        self, *, connect_timeout_s: float, read_timeout_s: float, connections_max: int, tls: ssl.SSLContext | None
    ) -> None:
        """`read_timeout_s` is the longest silence inside an answer; `tls` is for https."""
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
        """Bytes of a signed URL; `allocate(size)` gives the memory for a partial answer's body.

        Raises OSError or EOFError when the connection breaks or falls silent.
        """
        parts = urlsplit(url)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nRange: {byte_range}\r\nAccept-Encoding: identity\r\n\r\n"
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
        """Return when the call is done, well or badly. Raises TimeoutError after a silence."""
        while not call.done.done():
            call.moved = False
            await asyncio.wait([call.done], timeout=self._read_timeout_s)
            if not call.done.done() and not call.moved:
                raise TimeoutError(f"silent for {self._read_timeout_s} s")
