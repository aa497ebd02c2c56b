"""Accepts the connections of a listener with TLS, and completes their handshakes.

Invariants:

- A connection counts against the limits from the moment it is accepted, and has a limited time for its handshake.
- Nothing of TLS is created before the client's whole first message has arrived. So a client that connects and waits
  costs a socket, and one that speaks without TLS is recognized by its first bytes.
- At most one handshake begins in each round of the event loop. A handshake costs about a millisecond of computing: a
  thousand clients that connect at once slow down the others, but do not stop them.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import structlog

from anabranch.addresses import normal_host
from anabranch.broker.node.net.connection import Connection, ConnectionManager
from anabranch.broker.node.net.framer import other_protocol
from anabranch.broker.node.net.tls import Tls
from anabranch.broker.node.net.tls_connection import TlsConnection

HANDSHAKE_RECORD: Final = 22
"""First byte of a client that speaks TLS (RFC 8446, section 5.1)."""
RECORD_HEAD_BYTES: Final = 5
RECORD_BYTES_MAX: Final = 1 << 14
PAUSE_S: Final = 1.0
"""Pause after the system refuses to accept a connection, because descriptors or memory are exhausted."""
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has sent no certificate, and {prefix}client_auth is 'required'",
    "NO_SHARED_CIPHER": "the client offers no cipher suite that is enabled (ssl.cipher_suites)",
    "UNSUPPORTED_PROTOCOL": "the client offers no version of TLS that is enabled (ssl.enabled_protocols)",
    "VERSION_TOO_LOW": "the client offers no version of TLS that is enabled (ssl.enabled_protocols)",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this node's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "to the client this node's certificate has expired",
}
"""Explanations of OpenSSL's reasons."""

_log = structlog.get_logger("network")


class TlsServer(ConnectionManager, Protocol):
    """The server that the connections of a listener belong to."""

    def next_number(self) -> int:
        """Return the number of the next connection."""
        ...

    def begin_handshake(self, host: str) -> bool:
        """Count a connection against the limits; return False if one refuses it."""
        ...

    def end_handshake(self, host: str, *, failed: bool = False) -> None:
        """Count it no longer: it has become a connection, or has failed."""
        ...

    def warn(self, event: str, **fields: Any) -> None:
        """Log a warning that a stranger has caused, unless there are too many of its kind."""
        ...


class TlsAcceptor:
    """A listener with TLS, on a bound socket, until `close`."""

    def __init__(
        self,
        server: TlsServer,
        bound: socket.socket,
        listener: str,
        tls: Tls,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        *,
        asks_certificates: bool = True,
        accepts_plaintext: bool = False,
        backlog: int,
    ) -> None:
        """Listen; with `asks_certificates`, clients are identified by certificates, as the settings say.

        With `accepts_plaintext`, a client that begins without TLS is served, too.
        """
        self._accepts_plaintext = accepts_plaintext
        self._server = server
        self._bound = bound
        self._listener = listener
        self._tls = tls
        self._spawn = spawn
        self._asks_certificates = asks_certificates
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        """Held by the handshake that begins in this round of the loop."""
        self._accepted: dict[socket.socket, str] = {}
        """Connections whose tasks have not begun, and the addresses of their clients."""
        self._handshakes: set[asyncio.Task[Any]] = set()
        self._retry: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(backlog)
        self._loop.add_reader(bound, self._accept)

    def close(self) -> None:
        """Accept no more, and abort the handshakes that are under way. Connections stay open."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()
        for handshake in list(self._handshakes):
            handshake.cancel()
        for accepted, host in self._accepted.items():
            accepted.close()
            self._server.end_handshake(host)
        self._accepted.clear()

    def _accept(self) -> None:
        try:
            accepted, address = self._bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("no connection can be accepted; trying again", listener=self._listener, reason=str(error))
            self._loop.remove_reader(self._bound)
            self._retry = self._loop.call_later(PAUSE_S, self._loop.add_reader, self._bound, self._accept)
            return
        host, port = normal_host(address[0]), address[1]
        if not self._server.begin_handshake(host):
            accepted.close()
            return
        accepted.setblocking(False)
        self._accepted[accepted] = host
        delay_s = self._server.hold_off_s(host)
        self._spawn(self._hold_off(accepted, host, delay_s) if delay_s else self._serve(accepted, host, port))

    async def _hold_off(self, accepted: socket.socket, host: str, seconds: float) -> None:
        """Close after that time, without a handshake: the client's address creates too many connections."""
        if self._accepted.pop(accepted, None) is None:
            return
        task = asyncio.current_task()
        assert task is not None, "it runs as a task"
        self._handshakes.add(task)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._handshakes.discard(task)
            accepted.close()
            self._server.end_handshake(host)

    async def _serve(self, accepted: socket.socket, host: str, port: int) -> None:
        """Complete a handshake. The connection continues by itself."""
        if self._accepted.pop(accepted, None) is None:
            return
        task = asyncio.current_task()
        assert task is not None, "it runs as a task"
        self._handshakes.add(task)
        begun = established = False
        problem = ""

        def note_established() -> None:
            nonlocal established
            established = True
            self._server.end_handshake(host)

        try:
            async with asyncio.timeout(self._tls.handshake_timeout_s):
                problem = await self._first_message(accepted)
                if problem and self._accepts_plaintext:
                    problem, begun = "", True
                    note_established()  # it counts as a connection from now on
                    await self._serve_plaintext(accepted)
                elif not problem:
                    async with self._turn:
                        await asyncio.sleep(0)
                    begun = True
                    await self._handshake(accepted, note_established)
        except TimeoutError:
            problem = f"it took longer than {self._tls.handshake_timeout_s:g} s (ssl.handshake_timeout_ms)"
        except EOFError:
            _log.debug("closed before the TLS handshake", listener=self._listener, client=host, port=port)
        except OSError as error:
            problem = _reason(error, self._tls.prefix)
        finally:
            self._handshakes.discard(task)
            if not begun:
                accepted.close()
            if not established:
                self._server.end_handshake(host, failed=bool(problem))
        if problem:
            self._server.warn("TLS handshake failed", listener=self._listener, client=host, port=port, reason=problem)

    async def _handshake(self, accepted: socket.socket, established: Callable[[], None]) -> None:
        """Complete a handshake with the newest certificate. Raises OSError."""
        server, tls = self._server, self._tls
        await self._loop.connect_accepted_socket(
            lambda: TlsConnection(
                server,
                server.next_number(),
                self._listener,
                tls if self._asks_certificates else None,
                established,
            ),
            accepted,
            ssl=tls.files.context if self._asks_certificates else tls.files.anonymous_context,
            ssl_handshake_timeout=tls.handshake_timeout_s,
            ssl_shutdown_timeout=server.frame_timeout_s,
        )

    async def _serve_plaintext(self, accepted: socket.socket) -> None:
        """Serve a client without TLS. Raises OSError."""
        server = self._server
        await self._loop.connect_accepted_socket(
            lambda: Connection(server, server.next_number(), self._listener), accepted
        )

    async def _first_message(self, accepted: socket.socket) -> str:
        """Wait for the first message of a client, and leave it unread; return what is wrong with it.

        Raises EOFError if the client closes without a byte, and OSError.
        """
        await _received(accepted, RECORD_HEAD_BYTES)
        head = accepted.recv(RECORD_HEAD_BYTES, socket.MSG_PEEK)
        if not head:
            raise EOFError
        if head[0] != HANDSHAKE_RECORD:
            return f"{other_protocol(head) or 'a client that does not use TLS'}, but this listener expects TLS"
        await _received(accepted, RECORD_HEAD_BYTES + min(int.from_bytes(head[3:], "big"), RECORD_BYTES_MAX))
        return ""


async def _received(accepted: socket.socket, size: int) -> None:
    """Wait until a socket has received that many bytes, or is closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(accepted)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _reason(error: OSError, prefix: str) -> str:
    """Explain why a handshake has failed. `prefix` is that of the settings."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return _REASONS.get(error.reason or "", f"OpenSSL: {error.reason or error}").replace("{prefix}", prefix)
    if isinstance(error, ConnectionError):
        return "the client has closed the connection"
    return str(error)
