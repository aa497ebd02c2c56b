"""A broker under test and a connection to it that carries requests as they are, well formed or not."""

import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any

from anabranch.protocol.codec import encode
from tests.support.raw_client import API_OF, decode_response, request_frame

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Peer:
    """One of the two brokers."""

    name: str
    host: str
    port: int
    sasl_port: int = 0
    """Port of the listener with SASL; 0: there is none."""


class ClosedError(Exception):
    """The broker has closed the connection instead of answering."""


class Wire:
    """One connection. Answers arrive in the order of the requests."""

    def __init__(self, peer: Peer, client_id: str = "differential", context: ssl.SSLContext | None = None) -> None:
        self._client_id = client_id
        self._socket = socket.create_connection((peer.host, peer.port), timeout=TIMEOUT_S)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname=peer.host)
        self._correlation_id = 0

    def close(self) -> None:
        """Close."""
        self._socket.close()

    def send(self, request: object, version: int) -> None:
        """Send a request."""
        self._correlation_id += 1
        api = API_OF[type(request)]
        body = encode(request, version)
        self.send_bytes(
            request_frame(api.key, version, body, correlation_id=self._correlation_id, client_id=self._client_id)
        )

    def receive(self, request_type: type, version: int) -> Any:
        """The next answer, as one to this type of request. Raises ClosedError."""
        return decode_response(request_type, version, self.receive_bytes())[1]

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are. A connection that is closed by now shows when one receives."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive_bytes(self) -> bytes:
        """The next frame without its size. Raises ClosedError."""
        (size,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(size)

    def _receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                received = self._socket.recv(min(1 << 20, count - len(data)))
            except ConnectionResetError:
                raise ClosedError from None
            if not received:
                raise ClosedError
            data += received
        return bytes(data)
