"""A request in progress: the context of its handler, and the place of its response in the order."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from anabranch.broker.node.net.traffic import RackTraffic
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.header import response_frame
from anabranch.wal.interface import Buffer


class RefusedBatch(NamedTuple):
    """A batch of a connection that its client is to send again."""

    code: ErrorCode
    """Error with which it was refused."""
    behind: int
    """Number of batches that may have been sent behind it before the client knew."""


class Peer(NamedTuple):
    """Another node of the cluster, in one of its lives."""

    node_id: int
    node_epoch: int


class MutationQuota(Protocol):
    """A client's quota of changes of topics, for one request (KIP-599)."""

    def record(self, partitions: int) -> None:
        """Count partitions that are created or deleted. Raises THROTTLING_QUOTA_EXCEEDED."""
        ...

    def throttle(self) -> int:
        """Return the throttle time in ms, and count it."""
        ...


class ClientConnection(Protocol):
    """The connection of a request, as far as handlers depend on it."""

    host: str
    """Address of the client, in Kafka's notation."""
    port: int
    principal: str
    """Principal of the client, in Kafka's notation."""
    has_delegation_token: bool
    """True if the client has authenticated itself with a delegation token."""
    has_scram_credential: bool
    """True if the client has authenticated itself with a password that the catalog has a SCRAM credential of."""
    listener: str
    """Name of the listener that the client has connected to."""
    closed: bool
    draining: bool
    """True if the node is stopping."""
    refused_batches: dict[tuple[str | bytes, int], RefusedBatch]
    """By partition, the last batch that was refused and is to be sent again (`broker.api.handlers.produce`)."""
    software_name: str
    software_version: str
    traffic: RackTraffic
    """Counts of the rack that the client is in."""
    peer: Peer | None
    """The node at the other end, once it is authenticated; None for a client."""
    on_lost: Callable[[object], None] | None
    """Called with this connection once it is lost."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, for measuring how long requests take."""
        ...

    def refuse(self, reason: str) -> None:
        """Close the connection because of an invalid request."""
        ...

    def hold(self, exchange: "Exchange") -> None:
        """Start no further request until this one is answered."""
        ...

    def release(self, exchange: "Exchange") -> None:
        """Release the memory of a frame that is no longer needed, before its request is answered."""
        ...

    def completed(self, exchange: "Exchange") -> None:
        """Send the responses that are next in the order of requests."""
        ...

    def enter_rack(self, rack: str) -> None:
        """Count the client's traffic as that of a rack from now on."""
        ...

    def mute(self, seconds: float) -> None:
        """Read nothing and start no request for a time."""
        ...


class Exchange:
    """A request in progress: the context of its handler, and the place of its response in the order."""

    __slots__ = (
        "amend",
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
        """Size of the frame, length prefix included; 0 once it is released."""
        self.started = connection.clock()
        self.done = False
        self.amend: Callable[[Any], Any] | None = None
        """Returns the response to send for that of the handler; None closes the connection itself. It never raises."""
        self.parts: Sequence[Buffer] | None = None
        self.on_close: Callable[[], None] | None = None
        """Called if the connection is lost before the response: for handlers that wait without a task."""
        self.on_drain: Callable[[], None] | None = None
        """Called when the node is stopping: the handler should respond with the data that it has."""

    @property
    def client_host(self) -> str:
        """Address of the client, in Kafka's notation."""
        return self.connection.host

    @property
    def listener(self) -> str:
        """Name of the listener that the client has connected to: answers name the addresses of this listener."""
        return self.connection.listener

    @property
    def peer(self) -> Peer | None:
        """The node that sent the request; None for a client."""
        return self.connection.peer

    @property
    def closed(self) -> bool:
        """True if the connection is closed, so that no response can be sent."""
        return self.connection.closed

    # quotas: none, unless the request is metered (`broker.kafka.quotas.metering`)

    def fetch_bytes_max(self, wanted: int) -> int:
        """Return how many bytes a Fetch may read."""
        return wanted

    def throttle_fetch(self, size_bytes: int) -> int:  # noqa: ARG002 - for those with quotas
        """Count the bytes that are about to be answered; return the throttle time if the answer must be empty."""
        return 0

    def mutation_quota(self, *, strict_since: int) -> MutationQuota | None:  # noqa: ARG002 - as above
        """Return the quota for the topics that the request changes; None if there is none.

        From that request version on, changes beyond the quota are refused.
        """
        return None

    def complete(self, response: Any | None, *, version: int | None = None) -> None:
        """Respond, once; None for a request without a response. `version` defaults to the request's."""
        assert not self.done, "an exchange completes once"
        self.done = True
        connection = self.connection
        if response is not None and self.amend is not None:
            response = self.amend(response)
        if response is not None and not connection.closed:
            answered = self.api_version if version is None else version
            self.parts = response_frame(self.api_key, answered, self.correlation_id, response)
        connection.completed(self)
