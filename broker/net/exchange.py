"""One request on its way through the node: the context its handler is given, and the place of its response."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from protocol.header import response_frame
from wal.interface import Buffer


class ClientConnection(Protocol):
    """The connection that a request came on, as far as its handler may know it."""

    host: str
    """Address, as Kafka shows it."""
    port: int
    closed: bool
    draining: bool
    """Whether the node is about to stop."""
    software_name: str
    software_version: str

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, for measuring how long requests take."""
        ...

    def refuse(self, reason: str) -> None:
        """Close because of what the peer sent."""
        ...

    def hold(self, exchange: "Exchange") -> None:
        """Start no further request until this one is answered."""
        ...

    def release(self, exchange: "Exchange") -> None:
        """Give back the memory of a frame that is no longer needed, before its request is answered."""
        ...

    def completed(self, exchange: "Exchange") -> None:
        """Send the responses that are next in the order of requests."""
        ...


class Exchange:
    """A request under way, handed to its handler as the context, and the place of its response in the order."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "done",
        "frame_bytes",
        "header_end",
        "on_close",
        "on_drain",
        "parts",
        "started",
    )

    def __init__(  # one call per request, on the hot path: no intermediate header object is kept
        self, connection: ClientConnection, api_key: int, api_version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.header_end = 0
        self.frame_bytes = 0
        """Its length included; 0 when given back."""
        self.started = connection.clock()
        self.done = False
        self.parts: Sequence[Buffer] | None = None
        self.on_close: Callable[[], None] | None = None
        """Called when the connection is lost before the answer: for handlers that wait without a task."""
        self.on_drain: Callable[[], None] | None = None
        """Called when the node is about to stop: the handler should answer with what it has."""

    @property
    def client_host(self) -> str:
        """Address of the peer, as Kafka shows it."""
        return self.connection.host

    @property
    def closed(self) -> bool:
        """Whether nobody can receive the answer any more."""
        return self.connection.closed

    def complete(self, response: Any | None, *, version: int | None = None) -> None:
        """Answer, once; None for a request that gets no answer. `version` only where it is not the request's."""
        assert not self.done, "an exchange completes once"
        self.done = True
        connection = self.connection
        if response is not None and not connection.closed:
            answered = self.api_version if version is None else version
            self.parts = response_frame(self.api_key, answered, self.correlation_id, response)
        connection.completed(self)
