"""The gate of a listener with SASL, where clients authenticate themselves before anything else is served.

    ApiVersions, at most once       ->
    SaslHandshake(mechanism)        ->
    SaslAuthenticate(token), ...    ->      the connection has a principal, and is served

As in Apache Kafka, any other request closes the connection: before SaslHandshake without an answer, after it with
ILLEGAL_SASL_STATE. A failed authentication is answered after a delay, and then closes the connection. A client whose
session has a limited time begins again with SaslHandshake (KIP-368). It keeps mechanism and principal, and is served
again when it is authenticated. The first other request after the end of the session closes the connection.

Until then a client may send small requests only, and has a limited time. Of its data only the name of the user is
logged.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

import structlog

from anabranch.broker.api.declaration import Handler, Handlers
from anabranch.broker.api.handlers import api_versions as api_versions_handler
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.sasl.mechanism import AuthenticationFailed, Mechanism, TooManyAttempts
from anabranch.broker.kafka.sasl.scram import HASHES
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.net.exchange import Exchange
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.settings.sasl_area import SaslSettings, mechanisms_of
from anabranch.protocol.codec import decode
from anabranch.protocol.errors import ErrorCode, KafkaError, ProtocolError
from anabranch.protocol.messages import api_versions, sasl_authenticate, sasl_handshake
from anabranch.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from anabranch.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from anabranch.protocol.wire import schema_of
from anabranch.wal.interface import Buffer

REQUESTS_IN_FLIGHT_MAX: Final = 4
"""Requests in flight of a client that is not authenticated. At the limit, its socket is not read."""
REAUTHENTICATION_INTERVAL_S: Final = 1.0
"""A client may begin to authenticate itself again once in this time, as in Apache Kafka."""

_log = structlog.get_logger("network")


class State(Enum):
    """The next request that a client may send."""

    VERSIONS_OR_HANDSHAKE = auto()
    HANDSHAKE = auto()
    TOKEN = auto()
    OTHER_MECHANISM = auto()
    """A token, after a client wanted to change its mechanism: it fails."""
    NOTHING = auto()
    """The node is occupied with a token, or the authentication has failed."""
    SERVED = auto()


class _Malformed(Exception):
    """The connection is closed without an answer, since the request is not one of an authentication."""


@dataclass(frozen=True, slots=True)
class GateContext:
    """Mechanisms of a listener, and the means to serve its clients."""

    serving: Serving
    handlers: Handlers
    """Handlers of the node, for the versions that it serves."""
    server: Server
    settings: SaslSettings
    mechanisms: Sequence[str]
    begin: Callable[[str, str], Mechanism]
    """Begin an exchange by a mechanism, with a client at an address."""
    spawn: Callable[[Coroutine[Any, Any, None]], None]
    """Runs a coroutine as a task."""


def make_gates(
    serving: Serving,
    handlers: Handlers,
    server: Server,
    begin: Callable[[str, str], Mechanism],
    spawn: Callable[[Coroutine[Any, Any, None]], None],
) -> Mapping[str, "SaslGate"]:
    """Return the gates of the listeners with SASL, by name. The arguments are those of `GateContext`."""
    settings = serving.settings
    area, named = settings.sasl, settings.listener.sasl_mechanisms
    return {
        listener.name: SaslGate(
            GateContext(serving, handlers, server, area, mechanisms_of(area, named, listener.name), begin, spawn)
        )
        for listener in settings.listeners
        if listener.protocol.uses_sasl
    }


class SaslGate:
    """The gate of one listener."""

    def __init__(self, context: GateContext) -> None:
        self._context = context
        self._sessions: dict[Connection, _Session] = {}

    def meet(self, connection: Connection) -> None:
        """Take over the requests of a new connection, until its client is authenticated."""
        self._sessions[connection] = _Session(self._context, connection)

    def forget(self, connection: Connection) -> None:
        """Drop what is kept for a connection that is closed."""
        session = self._sessions.pop(connection, None)
        if session is not None:
            session.end()


class _Session:
    """The authentication of one connection."""

    def __init__(self, context: GateContext, connection: Connection) -> None:
        self._context = context
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._state = State.VERSIONS_OR_HANDSHAKE
        self._mechanism = ""
        self._exchange: Mechanism | None = None
        self._stepping: asyncio.Task[Any] | None = None
        """The step of the exchange that is under way."""
        self._user: str | None = None
        """The user, once it has been authenticated."""
        self._ends_s: float | None = None
        """Time of the loop at which the session ends; None: never."""
        self._began_again_s: float | None = None
        self._intercept()
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(
            context.settings.authentication_timeout_ms / 1000, self._give_up
        )

    def _intercept(self) -> None:
        """Take over the requests of the connection."""
        self._connection.intercept(
            self.dispatch,
            request_bytes_max=self._context.settings.server_max_receive_bytes,
            requests_in_flight_max=REQUESTS_IN_FLIGHT_MAX,
        )

    def end(self) -> None:
        """Do nothing further: the connection is closed."""
        self.stop_timer()
        self._exchange = None
        if self._stepping is not None:
            self._stepping.cancel()

    def stop_timer(self) -> None:
        """Cancel what is due later."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        self._context.server.stats.failed_authentications += 1
        timeout_ms = self._context.settings.authentication_timeout_ms
        self._connection.refuse(f"the client has not authenticated itself within {timeout_ms} ms")

    @property
    def _what(self) -> str:
        return "authentication" if self._user is None else "re-authentication"

    # requests

    def dispatch(self, exchange: Exchange, frame: Buffer) -> None:
        """Handle a request of a client that is not authenticated."""
        key, version = exchange.api_key, exchange.api_version
        handler = self._context.handlers.get(key)
        if handler is not None and handler.min_version <= version <= handler.max_version:
            requests = self._context.serving.requests
            requests[key] = requests.get(key, 0) + 1
        try:
            if self._state is State.TOKEN:
                self._take_token(exchange, frame, handler)
            elif self._state is State.OTHER_MECHANISM:
                self._fail(exchange, None, "the client wants to change its mechanism")
            elif key == api_versions.KEY and self._state is State.VERSIONS_OR_HANDSHAKE:
                self._answer_versions(exchange, frame)
            elif key == sasl_handshake.KEY and self._state is not State.NOTHING:
                self._answer_handshake(exchange, frame)
            else:
                self._refuse_other(key, handler)
        except _Malformed as error:
            self._connection.refuse(str(error))
        except (ProtocolError, KafkaError) as error:
            self._connection.refuse(f"malformed request during {self._what}: {error}")

    def dispatch_session(self, exchange: Exchange, frame: Buffer) -> None:
        """Handle a request of an authenticated client whose session has a limited time."""
        assert self._ends_s is not None, "the session has an end"
        now_s = self._loop.time()
        if exchange.api_key == sasl_handshake.KEY and self._may_begin_again(now_s):
            self._began_again_s = now_s
            self._state = State.HANDSHAKE
            self._intercept()
            self.dispatch(exchange, frame)
        elif now_s > self._ends_s:
            self._context.server.stats.expired_sessions += 1
            _log.info(
                "session expired",
                listener=self._connection.listener,
                client=self._connection.host,
                port=self._connection.port,
                principal=self._connection.principal,
            )
            self._connection.close()
        else:
            self._context.server.dispatch(exchange, frame)

    def _may_begin_again(self, now_s: float) -> bool:
        began_s = self._began_again_s
        return began_s is None or now_s - began_s >= REAUTHENTICATION_INTERVAL_S

    def _refuse_other(self, key: int, handler: Handler | None) -> None:
        name = f"API key {key}" if handler is None else handler.api.name
        raise _Malformed(f"{name} request before {self._what}: this listener expects SASL")

    # steps

    def _answer_versions(self, exchange: Exchange, frame: Buffer) -> None:
        """Answer ApiVersions. Raises ProtocolError."""
        handler, serving = self._context.handlers[api_versions.KEY], self._context.serving
        if not handler.min_version <= exchange.api_version <= handler.max_version:
            exchange.complete(api_versions_handler.unsupported_version(serving), version=0)
            return
        request, _ = decode(api_versions.ApiVersionsRequest, frame, exchange.api_version, exchange.header_end)
        response = api_versions_handler.answer(serving, request, exchange)
        if response.error_code == ErrorCode.NONE:
            self._state = State.HANDSHAKE
        exchange.complete(response)

    def _answer_handshake(self, exchange: Exchange, frame: Buffer) -> None:
        """Begin an exchange by the mechanism that the client has chosen. Raises _Malformed, ProtocolError."""
        handler, mechanisms = self._context.handlers[sasl_handshake.KEY], self._context.mechanisms
        if not handler.min_version <= exchange.api_version <= handler.max_version:
            raise _Malformed(f"SaslHandshake request in version {exchange.api_version}")
        request, _ = decode(SaslHandshakeRequest, frame, exchange.api_version, exchange.header_end)
        if request.mechanism not in mechanisms:
            response = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
            reason = "the client has chosen a mechanism that this listener does not have"
            self._fail(exchange, response if self._user is None else None, reason)
            return
        if exchange.api_version == 0:
            response = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, mechanisms=mechanisms)
            self._fail(exchange, response, "the client sends tokens without requests (SaslHandshake version 0)")
            return
        if self._user is not None and request.mechanism != self._mechanism:
            self._state = State.OTHER_MECHANISM
        else:
            self._mechanism = request.mechanism
            self._exchange = self._context.begin(request.mechanism, self._connection.host)
            self._state = State.TOKEN
        exchange.complete(SaslHandshakeResponse(mechanisms=mechanisms))

    def _take_token(self, exchange: Exchange, frame: Buffer, handler: Handler | None) -> None:
        """Take a token, or refuse another request. Raises _Malformed, ProtocolError."""
        key, version = exchange.api_key, exchange.api_version
        if handler is None or not handler.min_version <= version <= handler.max_version:
            raise _Malformed(f"API key {key} in version {version} during {self._what}")
        if key != sasl_authenticate.KEY:
            self._fail(exchange, _illegal_state(handler, version), f"{handler.api.name} request during {self._what}")
            return
        request, _ = decode(SaslAuthenticateRequest, frame, version, exchange.header_end)
        self._state = State.NOTHING
        self._context.spawn(self._step(exchange, request.auth_bytes))

    async def _step(self, exchange: Exchange, token: bytes) -> None:
        if self._exchange is None:
            return  # the connection was closed before the step began
        try:
            self._stepping = asyncio.current_task()
            answer = await self._exchange.step(token)
            if self._exchange.is_complete:
                self._check_user(self._exchange.user)
        except AuthenticationFailed as error:
            message = error.answer or (
                f"Authentication failed during {self._what} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            response = SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=message)
            self._fail(exchange, response, str(error))
            return
        except TooManyAttempts as error:
            self._connection.refuse(str(error))
            return
        except Exception as error:  # noqa: BLE001 - a bug must not stop the node, nor may what it was handed be logged
            self._context.serving.request_failures += 1
            _log.error(
                "authentication raised an unexpected error", mechanism=self._mechanism, kind=type(error).__name__
            )
            self._connection.refuse("internal error in SaslAuthenticate")
            return
        if self._connection.closed:
            return
        lifetime_ms = 0
        if self._exchange.is_complete:
            lifetime_ms = self._complete(self._exchange)
        else:
            self._state = State.TOKEN
        exchange.complete(SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms))

    def _check_user(self, user: str) -> None:
        """Raise AuthenticationFailed if a client has become another user."""
        if self._user is not None and user != self._user:
            raise AuthenticationFailed(
                "the client wants to change its user",
                answer=f"Cannot change principals during re-authentication from User.{self._user}: User.{user}",
            )

    def _complete(self, done: Mechanism) -> int:
        """Serve the client, and return the lifetime of its session in ms; 0: unlimited."""
        self.stop_timer()
        context, connection = self._context, self._connection
        again = self._user is not None
        self._user, self._exchange, self._state = done.user, None, State.SERVED
        context.server.stats.authenticated += 1
        limits = []
        if context.settings.max_reauth_ms:
            limits.append(context.settings.max_reauth_ms)
        if done.expires_ms is not None:
            limits.append(max(0, done.expires_ms - context.serving.now_ms()))
        self._ends_s = self._loop.time() + min(limits) / 1000 if limits else None
        connection.admit(
            f"User:{done.user}",
            self.dispatch_session if limits else None,
            has_delegation_token=done.uses_delegation_token,
            has_scram_credential=self._mechanism in HASHES and not done.uses_delegation_token,
        )
        _log.debug(
            "authenticated",
            listener=connection.listener,
            client=connection.host,
            port=connection.port,
            mechanism=self._mechanism,
            principal=connection.principal,
            delegation_token=done.uses_delegation_token,
            again=again,
        )
        return min(limits) if limits else 0

    # failures

    def _fail(self, exchange: Exchange, response: object | None, reason: str) -> None:
        """Answer after the delay, and close the connection."""
        self.stop_timer()
        context, connection = self._context, self._connection
        self._state = State.NOTHING
        context.server.stats.failed_authentications += 1
        known = {"mechanism": self._mechanism, "user": "" if self._exchange is None else self._exchange.user}
        context.serving.audit.record(
            "authentication failed",
            host=connection.host,
            listener=connection.listener,
            reason=reason,
            **{name: text for name, text in known.items() if text},
        )
        if connection.closed:
            return
        connection.hold(exchange)
        delay_s = context.settings.failed_authentication_delay_ms / 1000
        self._timer = self._loop.call_later(delay_s, self._close, exchange, response)

    def _close(self, exchange: Exchange, response: object | None) -> None:
        self._timer = None
        if response is not None:
            exchange.complete(response)
        self._connection.close()


def _illegal_state(handler: Handler, version: int) -> object | None:
    """Return the response to a request that is out of order; None if the API has no field for an error."""
    fields = {field.name for field in schema_of(handler.api.response).fields if version in field.versions}
    if "error_code" not in fields:
        return None
    code = ErrorCode.ILLEGAL_SASL_STATE
    message = {"error_message": code.message} if "error_message" in fields else {}
    refused: object = handler.api.response(error_code=code, **message)
    return refused
