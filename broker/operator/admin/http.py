"""The HTTP server of the admin port: the JSON API, and paths that other programs expect.

    /api/v1/...          the API of commands, console and scripts: see `broker.operator.admin.api`
    /schema-registry/... Confluent's REST API for schemas: see `broker.operator.admin.schema_registry`
    /iceberg/...         Iceberg's REST catalog of tables: see `broker.operator.admin.iceberg`
    GET  /metrics        metrics in Prometheus' text format, or in OpenMetrics
    /health...           see `broker.operator.admin.health`
    /console/...         the console's files: see `broker.operator.admin.console`; `authentication` there is whether a
                         browser needs a token

By default it listens on loopback, without authentication; see `broker.operator.admin.access`. The limits on connections
are in `broker.operator.admin.connections`.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

import structlog
from aiohttp import web

from anabranch.addresses import host_port, normal_host
from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.principals import ANONYMOUS, NoMatchingRule
from anabranch.broker.operator.admin.access import AdminAccess, Realm, Refusal
from anabranch.broker.operator.admin.api.api import IS_ALLOWED, MAY_OPERATE, USER, Api
from anabranch.broker.operator.admin.api.endpoints import CHANGES_NOTHING, failed
from anabranch.broker.operator.admin.connections import SERVER, Acceptor, AdminConnection
from anabranch.broker.operator.admin.console import Console
from anabranch.broker.operator.admin.health import unhealthy_reason, unready_reason
from anabranch.broker.operator.admin.metrics.exposition import scrape
from anabranch.broker.operator.admin.metrics.group_ages import GroupAges
from anabranch.broker.operator.admin.metrics.siblings import merged
from anabranch.broker.operator.admin.paths import (
    API_PREFIX,
    CONSOLE_PREFIX,
    REGISTRY_PREFIX,
    TABLES_PREFIX,
    console_url,
)
from anabranch.protocol.messages.internal.describe_metrics import DescribeMetricsRequest
from anabranch.s3stream.tasks import end_tasks

if TYPE_CHECKING:
    from anabranch.broker.operator.admin.iceberg import RestCatalog

BODY_BYTES_MAX: Final = 2 << 20
"""Largest body of a request. A record of a megabyte fits, in base64 and with its headers."""
STOP_TIMEOUT_S: Final = 1.0
"""Time that cancelled requests have to end when the port is closed."""
_PUBLIC: Final = frozenset({"/", "/console", "/health/live", "/health/ready"})
"""Paths that need no token, beside the console's files."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = structlog.get_logger("admin")


class AdminServer:
    """HTTP server of the admin port, listening from `start` to `close`."""

    def __init__(
        self,
        node: Node,
        local: LocalRequests,
        random_bytes: Callable[[int], bytes],
        siblings: Collection[int] = (),
    ) -> None:
        """Set up; `random_bytes` returns that many unpredictable bytes.

        `siblings` are the other nodes of one start: the port of the first node shows metrics and health of all.
        """
        self._node = node
        self._siblings = sorted(siblings) if node.serving.node_id < min(siblings, default=-1) else ()
        self._api = Api(node, local, node.serving.settings.admin, random_bytes)
        self._ages = GroupAges(node)
        self._access: AdminAccess | None = None
        self._acceptor: Acceptor | None = None
        self._runner: web.AppRunner | None = None
        self._rest_catalog: RestCatalog | None = None
        """None until the first request for tables."""
        self._changes: set[asyncio.Task[web.StreamResponse]] = set()
        """Requests under way that change something: they go on if their client leaves."""
        self.address = ""
        """`host:port` once started."""
        self.console_url = ""
        """Address of the console for a browser, once started."""

    async def start(self, bound: socket.socket, access: AdminAccess) -> None:
        """Listen on a bound socket. Raises OSError."""
        host, port = bound.getsockname()[:2]
        self.address = host_port(host, port)
        self.console_url = console_url(host, port, self._node.advertised.host, has_tls=access.tls is not None)
        self._access = access
        self._runner = web.AppRunner(
            self._application(), handler_cancellation=True, shutdown_timeout=STOP_TIMEOUT_S, access_log=None
        )
        await self._runner.setup()
        assert self._runner.server is not None, "it is set up"
        if access.tls is not None:
            self._node.tasks.spawn(access.tls.run())
        self._acceptor = Acceptor(self._runner.server, bound, access.tls, BODY_BYTES_MAX)
        access.warn_if_exposed(self.address)

    async def close(self) -> None:
        """Stop listening, and cancel requests under way."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            await acceptor.close()
        await end_tasks(self._changes)
        self._api.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _application(self) -> web.Application:
        """Return the application with all routes."""
        application = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard])
        application.on_response_prepare.append(_set_headers)
        router, console = application.router, Console()
        self._api.register(router)
        if self._node.serving.settings.schema_registry.enabled:
            router.add_route("*", REGISTRY_PREFIX + "{target:(/.*)?}", self._registry)
        router.add_route("*", TABLES_PREFIX + "{target:(/.*)?}", self._tables)
        router.add_get("/metrics", self._metrics, allow_head=False)
        router.add_get("/health", self._health, allow_head=False)
        router.add_get("/health/live", self._live, allow_head=False)
        router.add_get("/health/ready", self._ready, allow_head=False)
        router.add_get("/", console.redirect, allow_head=False)
        router.add_get("/console", console.redirect, allow_head=False)
        router.add_get(CONSOLE_PREFIX + "authentication", self._authentication, allow_head=False)
        router.add_get(CONSOLE_PREFIX + "{path:.*}", console.file, allow_head=False)
        return application

    # access

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Pass a request to its handler if its client may send it, and audit changes."""
        assert self._access is not None, "it listens"
        connection = cast("AdminConnection", request.protocol)
        connection.request_begun()
        try:
            return await self._guarded(request, handler, connection)
        finally:
            connection.request_ended(is_open=self._access.is_open)

    async def _guarded(
        self, request: web.Request, handler: _Handler, connection: AdminConnection
    ) -> web.StreamResponse:
        path = request.path
        if request.method == "GET" and (path in _PUBLIC or path.startswith(CONSOLE_PREFIX)):
            return await self._answer(request, handler)
        target, _, query = request.raw_path.partition("?")
        asked = {"action": f"{_shown(request.method)} {_shown(target)}", "resource": _shown(query)}
        host = normal_host(request.remote or "")
        try:
            client = self._check(request)
        except Refusal as refusal:
            event = "authentication failed" if refusal.status == HTTPStatus.UNAUTHORIZED else "denied"
            self._audit(event, refusal.client, host, reason=str(refusal), **asked)
            refused = _failed(path, refusal.status, str(refusal))
            refused.force_close()
            return refused
        connection.is_known = True
        if path.startswith(API_PREFIX):
            request[USER] = User(client, host)
            request[MAY_OPERATE] = self._may_operate(request)
            request[IS_ALLOWED] = lambda: self._is_allowed(request)
        if not _changes(request):
            return await self._answer(request, handler)
        change = asyncio.get_running_loop().create_task(self._change(request, handler, client, host, asked))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        return await asyncio.shield(change)

    def _check(self, request: web.Request) -> str:
        """Return the name of the client for the audit log. Raises Refusal."""
        assert self._access is not None, "it listens"
        return self._access.check(
            request.method,
            request.headers,
            self._principal(request),
            realm=_realm_of(request.path),
            changes=_changes(request),
        )

    def _may_operate(self, request: web.Request) -> bool:
        assert self._access is not None, "it listens"
        return self._access.may_operate(request.headers, self._principal(request))

    def _is_allowed(self, request: web.Request) -> bool:
        """Return whether a client may send now what it was allowed to send."""
        try:
            self._check(request)
        except Refusal:
            return False
        return self._may_operate(request) or not request[MAY_OPERATE]

    async def _change(
        self, request: web.Request, handler: _Handler, client: str, host: str, asked: Mapping[str, str]
    ) -> web.StreamResponse:
        outcome = "interrupted"
        try:
            response = await self._answer(request, handler)
            outcome = HTTPStatus(response.status).name
        finally:
            if not request.get(CHANGES_NOTHING):
                self._audit("changed" if outcome == "OK" else "change refused", client, host, outcome=outcome, **asked)
        return response

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Return the response to a request that the client may make."""
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return _failed(request.path, HTTPStatus.NOT_FOUND, f"there is no such path: see {API_PREFIX}/openapi.json")
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return failed(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.path} requires {allowed}")
        except web.HTTPRequestEntityTooLarge:
            return _failed(
                request.path, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes"
            )
        except web.HTTPException as error:
            return failed(HTTPStatus(error.status), error.reason)
        except ConnectionError:
            raise  # the client has gone
        except Exception as error:  # noqa: BLE001 - a bug in one handler must not stop the port
            _log.error("request failed", action=f"{request.method} {_shown(request.path)}", exc_info=error)
            return _failed(request.path, HTTPStatus.INTERNAL_SERVER_ERROR, "internal error: the node's log has it")

    def _principal(self, request: web.Request) -> str:
        """Return the principal of a client's certificate; empty if there is none."""
        ssl_object = request.get_extra_info("ssl_object")
        tls = None if self._access is None else self._access.tls
        if ssl_object is None or tls is None:
            return ""
        try:
            principal = tls.principal_of(ssl_object)
        except NoMatchingRule:
            return ""
        return "" if principal == ANONYMOUS else principal

    def _audit(self, event: str, client: str, host: str, **fields: str) -> None:
        known = {name: text for name, text in fields.items() if text}
        self._node.serving.audit.record(event, principal=client, host=host, listener="admin", **known)

    # pages

    async def _authentication(self, request: web.Request) -> web.Response:
        """Say whether the console needs a token. One that is sent along has no influence: nobody can try some here."""
        assert self._access is not None, "it listens"
        return web.json_response({"needs_token": self._access.needs_token(self._principal(request))})

    async def _registry(self, request: web.Request) -> web.StreamResponse:
        from anabranch.broker.operator.admin.schema_registry import answer_http

        return await answer_http(self._node.serving, request)

    async def _tables(self, request: web.Request) -> web.StreamResponse:
        if self._rest_catalog is None:
            from anabranch.broker.operator.admin.iceberg import RestCatalog

            self._rest_catalog = RestCatalog(self._node)
        assert self._access is not None, "it listens"
        reader = self._access.table_reader(request.headers, self._principal(request))
        return await self._rest_catalog.answer(request, reader)

    async def _metrics(self, request: web.Request) -> web.Response:
        accept = request.headers.get("accept", "")
        found = await scrape(self._node, accept, self._ages)
        self._ages.look_up()
        if self._siblings:
            asked = DescribeMetricsRequest(accept=accept)
            user = User(ANONYMOUS, normal_host(request.remote or ""))
            answers, _ = await self._api.calls.call_each(self._siblings, lambda _: asked, user)
            found = await merged(found, self._node.serving.node_id, answers)
        return web.Response(body=found.body, headers={"Content-Type": found.content_type})

    async def _health(self, _: web.Request) -> web.StreamResponse:
        members = self._node.serving.members
        silent = ", ".join(str(each) for each in self._siblings if members.get(each) is None)
        return _verdict(
            unhealthy_reason(self._node) or (silent and f"of the nodes of this start, {silent} do not serve")
        )

    async def _live(self, _: web.Request) -> web.StreamResponse:
        return _verdict("")

    async def _ready(self, request: web.Request) -> web.StreamResponse:
        reason = unready_reason(self._node)
        try:
            self._check(request)
        except Refusal:
            reason = reason and "not ready: ask with a token for the reason"
        return _verdict(reason)


def _realm_of(path: str) -> Realm:
    for prefix, realm in ((REGISTRY_PREFIX, Realm.REGISTRY), (TABLES_PREFIX, Realm.TABLES)):
        if path == prefix or path.startswith(f"{prefix}/"):
            return realm
    return Realm.PORT


def _changes(request: web.Request) -> bool:
    """Return whether a request may change something: a POST to the registry may be a question, and tables only read."""
    realm = _realm_of(request.path)
    if realm is not Realm.REGISTRY:
        return realm is Realm.PORT and request.method != "GET"
    from anabranch.broker.operator.admin.schema_registry import is_change

    return is_change(request)


def _failed(path: str, status: HTTPStatus, reason: str) -> web.Response:
    """Return the answer to a request that fails, in the form that its client expects."""
    realm = _realm_of(path)
    if realm is Realm.PORT:
        return failed(status, reason)
    if realm is Realm.TABLES:
        from anabranch.broker.operator.admin import iceberg

        return iceberg.failure(status, reason)
    from anabranch.broker.operator.admin.schema_registry import refused

    return refused(status, reason)


def _verdict(reason: str) -> web.StreamResponse:
    """Answer a probe: 200, or 503 with the reason."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK
    return web.Response(status=status, text=f"{reason or 'ok'}\n")


async def _set_headers(_: web.Request, response: web.StreamResponse) -> None:
    headers = response.headers
    headers.setdefault("Cache-Control", "no-store")
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Server"] = SERVER
    if response.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"


def _shown(text: str) -> str:
    """Return a part of a request for the log, encoded as in a URL: without control characters."""
    return quote(text, safe="/%=&,:+@")
