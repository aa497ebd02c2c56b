"""Connections of the admin port: accepted one by one, with limits on their number, bytes and time.

aiohttp parses requests and keeps connections alive. This module adds limits against hostile clients:

- At most `CONNECTIONS_MAX` connections are open, TLS handshakes included. A further one replaces an unauthenticated
  one: the oldest of the address that has most. If all clients are authenticated, it replaces an idle one. So probes and
  clients are served, however many strangers connect.
- A client that does not complete the head of its first request in time is disconnected; so is one that is idle.
- A client that does not read its responses is disconnected: a response counts as sent when the kernel has taken all of
  it.
- Pipelined requests are bounded in bytes.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast

import structlog
from aiohttp import web

from anabranch.broker.node.logging.line_limit import LineLimit
from anabranch.s3stream.tasks import end_tasks

if TYPE_CHECKING:  # it needs an extra that the console works without
    from anabranch.broker.node.net.tls import Tls

REQUEST_TIMEOUT_S = 10.0
"""Time for a TLS handshake, for the head of the first request, for a body, and for the client to take a response."""
IDLE_TIMEOUT_S = 75.0
"""Time without a complete request after which a connection is closed."""
CONNECTIONS_MAX = 100
"""Connections at a time."""
LINE_BYTES_MAX: Final = 8 << 10
"""Longest request line, and longest header."""
HEADERS_MAX: Final = 64
UNHANDLED_BYTES_MAX: Final = 1 << 20
"""Bytes that a connection may send before its first request is complete, or beyond the body of one under way."""
SERVER: Final = "anabranch"
"""Header `Server`. The default would name versions of Python and aiohttp."""
PAUSE_S: Final = 1.0
"""Pause after the system refuses to accept a connection."""

_Place = tuple[str, Callable[[], object]]
"""Address of a client, and a function that ends its connection."""

_log = structlog.get_logger("admin")


class AdminConnection(web.RequestHandler):
    """One connection of the admin port."""

    def __init__(self, manager: web.Server, loop: asyncio.AbstractEventLoop, host: str, body_bytes_max: int) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=IDLE_TIMEOUT_S,
            access_log=None,  # type: ignore[arg-type]  # aiohttp takes None for no log
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
            lingering_time=0,
            auto_decompress=False,
        )
        self.host = host
        self.is_known = False
        """True if its client has shown who it is; on a port that is open to all, while a request is under way."""
        self.is_idle = True
        """True if no request is under way."""
        self.is_leaving = False
        """True if it has been closed, and only has to end."""
        self._socket: asyncio.Transport | None = None
        self._bytes_max = UNHANDLED_BYTES_MAX + body_bytes_max
        self._unhandled_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        """Ends the connection unless the client sends its first request, or takes what it is sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request, for a limited time."""
        self._socket = cast("asyncio.Transport", transport)
        # So that a response is complete when the kernel has all of it. With 0, asyncio's TLS pauses at each write.
        self._socket.set_write_buffer_limits(high=1, low=0)
        super().connection_made(transport)
        self._limit_time()

    def data_received(self, data: bytes) -> None:
        """Pass bytes to the parser, a limited number of them for each request."""
        self._unhandled_bytes += len(data)
        if self._unhandled_bytes > self._bytes_max:
            self.abort()
        else:
            super().data_received(data)

    def request_begun(self) -> None:
        """Note that a request is complete, except for its body, and is handled now."""
        self._unhandled_bytes = 0
        self.is_idle = False
        self._cancel_limit()

    def request_ended(self, *, is_open: bool) -> None:
        """Note that a request is answered. `is_open`: the port is open to all; otherwise a stranger may not stay."""
        self.is_idle = True
        if is_open:
            self.is_known = False
        elif not self.is_known:
            self._limit_time()

    def pause_writing(self) -> None:
        """Wait until the client takes what it is sent, for a limited time."""
        super().pause_writing()
        self._limit_time()

    def resume_writing(self) -> None:
        """Go on: the client has taken all of it."""
        self._cancel_limit()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the requests of this connection."""
        self._cancel_limit()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the socket without sending the rest."""
        self.is_leaving = True
        if self._socket is not None:
            self._socket.abort()

    def _limit_time(self) -> None:
        self._cancel_limit()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_TIMEOUT_S, self.abort)

    def _cancel_limit(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - the parser's message repeats what the client has sent
    ) -> web.StreamResponse:
        """Answer what is no valid request, and close."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the response is sent already")
        if isinstance(exc, UnicodeEncodeError):  # aiohttp's own refusal repeats bytes that are no text
            status = HTTPStatus.BAD_REQUEST
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            _log.error("request failed", exc_info=exc)
        text = "not an HTTP request\n" if status == HTTPStatus.BAD_REQUEST else f"{HTTPStatus(status).phrase}\n"
        response = web.Response(status=status, text=text, headers={"Server": SERVER})
        response.force_close()
        return response


class Acceptor:
    """Accepts connections on a bound socket until `close`. Each handshake uses the newest certificate."""

    def __init__(self, server: web.Server, bound: socket.socket, tls: "Tls | None", body_bytes_max: int) -> None:
        self._server = server
        self._bound = bound
        self._tls = tls
        self._body_bytes_max = body_bytes_max
        self._handshakes: dict[asyncio.Task[object], str] = {}
        """Handshakes under way, and the addresses of their clients."""
        self._warnings = LineLimit(asyncio.get_running_loop().time)
        bound.setblocking(False)
        bound.listen()
        self._accepting: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Stop listening, and abort all connections: requests under way are cancelled."""
        await end_tasks({self._accepting})
        self._bound.close()
        await end_tasks(self._handshakes)
        for connection in self._server.connections:
            cast("AdminConnection", connection).abort()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._bound)
            except OSError as error:
                _log.error("no connection can be accepted; trying again", reason=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            if not self._make_room():
                accepted.close()
                continue
            handshake = loop.create_task(self._handshake(accepted, address[0], loop))
            self._handshakes[handshake] = address[0]
            handshake.add_done_callback(self._handshakes.pop)

    def _make_room(self) -> bool:
        """Close a connection if there are as many as there may be; return False if none can be closed."""
        handshakes: list[_Place] = [
            (host, task.cancel) for task, host in self._handshakes.items() if not task.cancelling()
        ]
        connections = [cast("AdminConnection", each) for each in self._server.connections]
        connections = [each for each in connections if not each.is_leaving]
        if len(handshakes) + len(connections) < CONNECTIONS_MAX:
            return True
        strangers = [*handshakes, *((each.host, each.abort) for each in connections if not each.is_known)]
        idle: list[_Place] = [(each.host, each.abort) for each in connections if each.is_idle]
        for crowd in (strangers, idle):
            if crowd:
                ((most, _),) = Counter(host for host, _ in crowd).most_common(1)
                next(end for host, end in crowd if host == most)()
                return True
        return False

    async def _handshake(self, accepted: socket.socket, host: str, loop: asyncio.AbstractEventLoop) -> None:
        timeout_s = None if self._tls is None else REQUEST_TIMEOUT_S
        try:
            await loop.connect_accepted_socket(
                lambda: AdminConnection(self._server, loop, host, self._body_bytes_max),
                accepted,
                ssl=None if self._tls is None else self._tls.files.context,
                ssl_handshake_timeout=timeout_s,
                ssl_shutdown_timeout=timeout_s,
            )
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error
            left_out = self._warnings.fields("handshake")
            if left_out is not None:
                _log.warning("TLS handshake failed on the admin port", reason=str(reason), **left_out)
        except asyncio.CancelledError:
            accepted.close()
            raise
