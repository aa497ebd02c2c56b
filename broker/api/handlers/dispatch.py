"""Dispatch of a received frame to its handler.

As in Kafka, ApiVersions in an unknown version is answered in version 0 with UNSUPPORTED_VERSION and the served
versions, so that the client can choose one. Any other unknown key or version, and a body that cannot be decoded, closes
the connection.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger

from anabranch.broker.api.declaration import Handler
from anabranch.broker.api.handlers import HANDLERS
from anabranch.broker.api.handlers.api_versions import unsupported_version
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.topics.parking import Parking, parked_until_s
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.codec import decode
from anabranch.protocol.errors import KafkaError, ProtocolError
from anabranch.protocol.messages import api_versions
from anabranch.wal.interface import Buffer


@dataclass(slots=True)
class Dispatcher:
    """Calls handlers. `spawn` runs a coroutine in the server's TaskGroup."""

    serving: Serving
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    handlers: Mapping[int, Handler] = field(default_factory=lambda: HANDLERS)
    log: FilteringBoundLogger = field(default_factory=lambda: structlog.get_logger("requests"))
    _requests: dict[int, int] = field(init=False)
    _parking: Parking = field(init=False)

    def __post_init__(self) -> None:
        self._requests = self.serving.requests
        self._parking = self.serving.parking

    def dispatch(self, exchange: Exchange, frame: Buffer) -> None:
        """Decode a request and call its handler."""
        key, version = exchange.api_key, exchange.api_version
        handler = self.handlers.get(key)
        if handler is None or not handler.min_version <= version <= handler.max_version:
            self._refuse(exchange)
            return
        self._requests[key] = self._requests.get(key, 0) + 1
        try:
            request, _ = decode(handler.api.request, frame, version, exchange.header_end)
        except (ProtocolError, KafkaError) as error:
            exchange.connection.refuse(f"malformed {handler.api.name} request: {error}")
            return
        if not handler.pipelined:
            may_wait = self._parking.opening or self.serving.ownership.may_lapse
            if may_wait and exchange.peer is None and (is_pending := self._pending_of(handler, request)):
                exchange.connection.hold(exchange)
                self.spawn(self._park(is_pending, request, exchange, handler))
                return
            exchange.connection.release(exchange)
        self._call(request, exchange, handler)

    def _pending_of(self, handler: Handler, request: object) -> Callable[[], bool] | None:
        """Return a function that decides whether the request has to wait; None if it can be handled now."""
        serving, waits_for, opening = self.serving, handler.waits_for, self._parking.opening

        def is_pending() -> bool:
            return not handler.may_answer(serving) or bool(
                opening and waits_for is not None and waits_for(serving, request)
            )

        return is_pending if is_pending() else None

    async def _park(
        self, is_pending: Callable[[], bool], request: object, exchange: Exchange, handler: Handler
    ) -> None:
        """Call the handler when this node serves what the request names, or when it must not wait any longer."""
        await self._parking.wait_while(is_pending, exchange, parked_until_s())
        if not handler.may_answer(self.serving):
            exchange.connection.refuse("this node cannot prove that it still leads its partitions: ask another one")
        if not exchange.closed:
            exchange.connection.release(exchange)
            self._call(request, exchange, handler)

    def _call(self, request: object, exchange: Exchange, handler: Handler) -> None:
        try:
            response = handler.function(self.serving, request, exchange)
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not stop the node
            self._failed(exchange, handler, error)
            return
        if response is None:
            return
        if type(response) is CoroutineType:
            exchange.connection.hold(exchange)
            self.spawn(self._finish(response, exchange, handler))
        else:
            self._complete(exchange, response, handler)

    async def _finish(self, work: Coroutine[Any, Any, object], exchange: Exchange, handler: Handler) -> None:
        try:
            response = await work
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(exchange, handler, error)
        else:
            self._complete(exchange, response, handler)

    def _complete(self, exchange: Exchange, response: object | None, handler: Handler) -> None:
        try:
            exchange.complete(response)
        except ProtocolError as error:
            self._failed(exchange, handler, error)

    def _refuse(self, exchange: Exchange) -> None:
        key, version = exchange.api_key, exchange.api_version
        handler = self.handlers.get(key)
        if handler is None:
            exchange.connection.refuse(f"request with API key {key}, which is not served")
        elif key == api_versions.KEY:
            exchange.complete(unsupported_version(self.serving), version=0)
        else:
            exchange.connection.refuse(
                f"{handler.api.name} request in version {version}, served are {handler.min_version} to "
                f"{handler.max_version}"
            )

    def _failed(self, exchange: Exchange, handler: Handler, error: Exception) -> None:
        """Log a bug with its traceback, and close this connection only."""
        self.serving.request_failures += 1
        self.log.error("request failed", api=handler.api.name, version=exchange.api_version, exc_info=error)
        exchange.connection.refuse(f"internal error in {handler.api.name}")
