"""A client connection under TLS: the same protocol as without, over a transport that encrypts no more than is sent.

The event loop's TLS transport encrypts all that is written to it at once, whatever its size, and its buffer size leaves
out what the socket has not taken. A response may have tens of megabytes, which are views of caches until they are
encrypted. So `TlsTransport` keeps responses as they are, and passes on pieces as the network takes them: ciphertext is
bounded, no response holds up the loop for long, and `get_write_buffer_size` tells whether the client reads.

TLS has no half-closed connections here: when the client closes its end, the connection ends.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import structlog

from anabranch.broker.node.net.connection import Connection, ConnectionManager
from anabranch.broker.node.net.principals import NoMatchingRule
from anabranch.broker.node.net.tls import Tls
from anabranch.wal.interface import Buffer

PIECE_BYTES: Final = 128 << 10
"""Bytes that are encrypted in one step: eight records of TLS. At most two pieces and what the socket has not taken of
another are in memory as ciphertext."""
_LOW_SHARE: Final = 4
"""Writing resumes when a fourth of the limit is left, as by default in asyncio."""

_log = structlog.get_logger("network")


class TlsTransport(asyncio.Transport):
    """Transport of a connection, over the event loop's TLS transport `inner`.

    `pause` and `resume` are the protocol's methods for flow control. The owner passes on the inner transport's calls to
    `inner_paused` and `inner_resumed`.
    """

    def __init__(self, inner: asyncio.Transport, *, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        super().__init__()
        self._inner = inner
        self._pause, self._resume = pause, resume
        self._socket = inner.get_extra_info("socket")
        """Kept: the inner transport forgets it one step before the connection is lost."""
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._high_bytes = self._low_bytes = 0
        self._paused = False
        self._inner_paused = False
        self._closing = False
        inner.set_write_buffer_limits(high=PIECE_BYTES)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the connection."""
        return self._socket if name == "socket" else self._inner.get_extra_info(name, default)

    # writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the limits of `get_write_buffer_size` at which the protocol is paused and resumed."""
        self._high_bytes = PIECE_BYTES if high is None else high
        self._low_bytes = self._high_bytes // _LOW_SHARE if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the socket has not taken, except for at most one piece."""
        return self._queued_bytes + self._inner.get_write_buffer_size()

    def write(self, data: Any) -> None:
        """Send bytes, which must not change until they are sent."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Send buffers, which must not change until they are sent."""
        for data in list_of_data:
            if data:
                self._queue.append(memoryview(data))
                self._queued_bytes += len(data)
        self._feed()
        if self._queued_bytes > self._high_bytes and not self._paused:
            self._paused = True
            self._pause()

    def inner_paused(self) -> None:
        """Encrypt nothing until the network has taken what is encrypted."""
        self._inner_paused = True

    def inner_resumed(self) -> None:
        """Continue to encrypt."""
        self._inner_paused = False
        self._feed()

    def _feed(self) -> None:
        while self._queue and not self._inner_paused and not self._inner.is_closing():
            self._inner.write(self._take())
        if self._closing and not self._queue:
            self._inner.close()
        elif self._paused and self._queued_bytes <= self._low_bytes:
            self._paused = False
            self._resume()

    def _take(self) -> Buffer:
        """Take the next piece from the queue. Small buffers are joined: each write is at least one record of TLS."""
        parts: list[memoryview] = []
        room = PIECE_BYTES
        while self._queue and room:
            part = self._queue.popleft()
            if len(part) > room:
                self._queue.appendleft(part[room:])
                part = part[:room]
            parts.append(part)
            room -= len(part)
        self._queued_bytes -= PIECE_BYTES - room
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # reading and closing

    def is_reading(self) -> bool:
        """Return whether the protocol receives data."""
        return self._inner.is_reading()

    def pause_reading(self) -> None:
        """Pass no more data to the protocol. The loop keeps up to 256 KiB that arrive meanwhile."""
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Pass data to the protocol again."""
        self._inner.resume_reading()

    def is_closing(self) -> bool:
        """Return whether the transport is closing or closed."""
        return self._closing or self._inner.is_closing()

    def close(self) -> None:
        """Send what is queued, then close. Nothing more is received."""
        if self._closing:
            return
        self._closing = True
        if self._queue:
            self._inner.pause_reading()
        else:
            self._inner.close()

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self.discard()
        self._inner.abort()

    def discard(self) -> None:
        """Drop what is queued: the connection is lost."""
        self._queue.clear()
        self._queued_bytes = 0


class TlsConnection(Connection):
    """Protocol of one client after its handshake."""

    counted_before = True

    __slots__ = ("_established", "_tls", "_tls_transport")

    def __init__(
        self, manager: ConnectionManager, number: int, listener: str, tls: Tls | None, established: Callable[[], None]
    ) -> None:
        """Create the protocol before the handshake; `established` is called when that is complete.

        Without `tls`, certificates do not identify the clients of the listener.
        """
        super().__init__(manager, number, listener)
        self._tls = tls
        self._established = established
        self._tls_transport: TlsTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client, unless a limit or the rules for principals refuse it."""
        self._established()
        secured = TlsTransport(
            cast("asyncio.Transport", transport), pause=super().pause_writing, resume=super().resume_writing
        )
        self._tls_transport = secured
        super().connection_made(secured)
        if self.closed:
            return
        ssl_object = transport.get_extra_info("ssl_object")
        try:
            if self._tls is not None:
                self.principal = self._tls.principal_of(ssl_object)
        except NoMatchingRule as error:
            self.refuse(str(error))
            return
        _log.debug(
            "connected",
            listener=self.listener,
            client=self.host,
            port=self.port,
            principal=self.principal,
            protocol=ssl_object.version(),
            cipher=ssl_object.cipher()[0],
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop unanswered requests, and responses that are not sent."""
        if self._tls_transport is not None:
            self._tls_transport.discard()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the network does not take more."""
        if self._tls_transport is not None:
            self._tls_transport.inner_paused()

    def resume_writing(self) -> None:
        """Note that the network takes more."""
        if self._tls_transport is not None:
            self._tls_transport.inner_resumed()
