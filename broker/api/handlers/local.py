"""Requests of Kafka's protocol that this node sends itself: for its admin port, and for those of other nodes.

They go through the same handlers as requests of clients, so that checks, limits and audit events are the same. ACLs do
not apply: the admin port has its own access control (`broker.operator.admin.access`), and other nodes are trusted.
"""

import asyncio
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final, NamedTuple

from anabranch.broker.api.declaration import Handler, Handlers
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.node.net.connection import UNKNOWN_SOFTWARE
from anabranch.broker.node.net.exchange import Exchange, Peer, RefusedBatch
from anabranch.broker.node.net.traffic import UNKNOWN_RACK, RackTraffic
from anabranch.broker.node.peers.links import RESPONSE_BYTES_MAX
from anabranch.protocol.codec import decode_exact, encode
from anabranch.protocol.errors import KafkaError, ProtocolError
from anabranch.protocol.messages.internal.relay import RelayRequest, RelayResponse
from anabranch.s3stream.errors import StorageError

CLIENT_ID: Final = "admin"
RELAYED_S = 5.0
"""Time limit of a relayed request. The other node does not wait for longer (`broker.node.peers.links`)."""


class LocalRefusal(Exception):
    """A request cannot be answered here. The text is the one line to show."""


class User(NamedTuple):
    """The user on whose behalf a request is made, as named in audit events."""

    principal: str
    host: str


class _LocalConnection:
    """Stands for the connection of a request of this node to itself."""

    def __init__(self, serving: Serving, user: User, *, draining: bool) -> None:
        self.host = user.host
        self.port = 0
        self.principal = user.principal
        self.has_delegation_token = self.has_scram_credential = False
        self.listener = serving.settings.listeners[0].name
        self.closed = False
        self.draining = draining
        self.on_lost: Callable[[object], None] | None = None
        self.refused_batches: dict[tuple[str | bytes, int], RefusedBatch] = {}
        self.software_name = self.software_version = UNKNOWN_SOFTWARE
        self.traffic = RackTraffic(UNKNOWN_RACK)  # no client's
        self.peer: Peer | None = Peer(serving.node_id, serving.members.own.epoch)  # ACLs do not apply to nodes
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def clock(self) -> Callable[[], float]:
        return asyncio.get_running_loop().time

    def refuse(self, reason: str) -> None:
        if not self.answered.done():
            self.answered.set_exception(LocalRefusal(reason))

    def hold(self, exchange: Exchange) -> None:
        """Nothing waits behind the request."""

    def release(self, exchange: Exchange) -> None:
        """No memory is reserved for it."""

    def completed(self, exchange: Exchange) -> None:
        """The exchange itself has passed the response on."""

    def enter_rack(self, rack: str) -> None:
        """Nothing is counted."""

    def mute(self, seconds: float) -> None:
        """Quotas do not apply."""


class _LocalExchange(Exchange):
    """Passes the response on as it is, instead of encoding it."""

    __slots__ = ("_answered",)

    def __init__(self, connection: _LocalConnection, api_key: int, api_version: int) -> None:
        super().__init__(connection, api_key, api_version, 0, CLIENT_ID)
        self._answered = connection.answered

    def complete(self, response: Any | None, *, version: int | None = None) -> None:  # noqa: ARG002
        assert not self.done, "an exchange completes once"
        self.done = True
        if response is not None and self.amend is not None:
            response = self.amend(response)
        if not self._answered.done():
            self._answered.set_result(response)


class LocalRequests:
    """Calls the handlers of this node."""

    def __init__(self, serving: Serving, handlers: Handlers, *, is_stopping: Callable[[], bool]) -> None:
        """Set up; while `is_stopping`, requests do not wait for what the node is about to serve, or for records."""
        self._serving = serving
        self._handlers = handlers
        self._is_stopping = is_stopping
        self._by_request = {handler.api.request: handler for handler in handlers.values()}

    def handler_of(self, request: object) -> Handler:
        """Return the handler of a request message."""
        return self._by_request[type(request)]

    async def call(self, request: Any, user: User, version: int | None = None) -> Any:
        """Return the response to a request message. Raises LocalRefusal, KafkaError, StorageError."""
        handler = self.handler_of(request)
        if not handler.may_answer(self._serving):
            raise LocalRefusal(f"node {self._serving.node_id} cannot prove that it still leads its partitions")
        connection = _LocalConnection(self._serving, user, draining=self._is_stopping())
        exchange = _LocalExchange(connection, handler.api.key, handler.local_version if version is None else version)
        try:
            response = handler.function(self._serving, request, exchange)
            if type(response) is CoroutineType:
                response = await response
            if response is not None:
                exchange.complete(response)
            return await connection.answered
        finally:
            connection.closed = True
            if not exchange.done and exchange.on_close is not None:
                exchange.on_close()

    async def relay(self, request: RelayRequest) -> RelayResponse:
        """Answer a request that another node passes on for its user."""
        key, version = request.api_key, request.api_version
        handler = self._handlers.get(key)
        if handler is None or not (handler.relayed and handler.min_version <= version <= handler.max_version):
            return RelayResponse(failure=f"API key {key} in version {version} is not relayed")
        try:
            # In memory of its own that can be written: batches of Produce are changed in place.
            message = decode_exact(handler.api.request, bytearray(request.body), version)
            async with asyncio.timeout(RELAYED_S):
                response = await self.call(message, User(request.principal, request.host), version)
            body = b"" if response is None else encode(response, version)
        except TimeoutError:
            return RelayResponse(failure=f"{handler.api.name} has taken longer than {RELAYED_S:g} s")
        except (LocalRefusal, ProtocolError, KafkaError, StorageError) as error:
            return RelayResponse(failure=str(error))
        if len(body) > RESPONSE_BYTES_MAX - 1024:
            return RelayResponse(failure=f"the response has {len(body)} bytes, too many for the link between nodes")
        return RelayResponse(body=body)
