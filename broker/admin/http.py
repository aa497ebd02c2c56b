"""A small HTTP server for people and scripts on the same machine: metrics, status, maintenance.

    GET  /metrics        metrics in Prometheus' text format
    GET  /status         the node's state as JSON
    POST /compact        compact all objects; responds after the run, with its summary as JSON
    GET  /compact/plan   the plan of such a run, as JSON
    /topics/...          whole topics: see `broker.admin.topics`
    /moves...            moves of partitions, and drains of nodes: see `broker.admin.moves`
    /storage/...         stopped streams: see `broker.admin.storage`
    /cluster, /nodes...  the cluster and its nodes: see `broker.admin.cluster`

    GET  /health         200 while the node serves and can write, 503 otherwise

One request per connection. By default it listens on loopback, without authentication; see `broker.admin.access`.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

import structlog

from broker.admin.access import AdminAccess, Refusal
from broker.admin.cluster import ClusterRoutes
from broker.admin.metrics import prometheus_text, status
from broker.admin.moves import MoveRoutes
from broker.admin.responses import Query, Response, Route, json_response, text_response
from broker.admin.storage import StorageRoutes
from broker.admin.topics import TopicRoutes
from broker.net.principals import ANONYMOUS, NoMatchingRule
from broker.net.tls import Tls
from broker.node import Node
from s3stream.errors import StorageError
from s3stream.tasks import end_tasks

REQUEST_TIMEOUT_S = 10
REQUEST_BYTES_MAX = 8 << 10
CONNECTIONS_MAX = 100
"""Connections at a time. Further ones are closed at once."""
PAUSE_S = 1.0
"""Pause after the system refuses to accept a connection."""

_log = structlog.get_logger("admin")


class AdminServer:
    """HTTP server of the admin port, listening from `start` to `close`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._server: asyncio.Server | None = None
        self._access: AdminAccess | None = None
        self._accepting: asyncio.Task[None] | None = None
        """Accepts connections with TLS."""
        self._bound: socket.socket | None = None
        """Socket on which it does."""
        self._handshakes: set[asyncio.Task[object]] = set()
        self._requests: set[asyncio.Task[object]] = set()
        self.address = ""
        """`host:port` once started."""
        self._routes: Mapping[str, Route] = {
            "/metrics": ("GET", self._metrics),
            "/status": ("GET", self._status),
            "/health": ("GET", self._health),
            "/compact": ("POST", self._compact),
            "/compact/plan": ("GET", self._compaction_plan),
            **TopicRoutes(node.moves).routes,
            **MoveRoutes(node).routes,
            **StorageRoutes(node).routes,
            **ClusterRoutes(node).routes,
        }

    async def start(self, bound: socket.socket, access: AdminAccess) -> None:
        """Listen on a bound socket. Raises OSError."""
        host, port = bound.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._access = access
        if access.tls is None:
            self._server = await asyncio.start_server(self._serve, sock=bound, limit=REQUEST_BYTES_MAX)
        else:
            self._node.tasks.spawn(access.tls.run())
            bound.setblocking(False)
            bound.listen()
            self._bound = bound
            self._accepting = asyncio.get_running_loop().create_task(self._accept(bound, access.tls))
        access.warn_if_exposed(self.address)

    async def close(self) -> None:
        """Stop listening, and cancel requests under way."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._accepting is not None:
            await end_tasks({self._accepting})
            self._accepting = None
        if self._bound is not None:
            self._bound.close()
            self._bound = None
        await end_tasks(self._handshakes)
        await end_tasks(self._requests)

    async def _accept(self, bound: socket.socket, tls: Tls) -> None:
        """Accept connections with TLS. Each handshake uses the newest certificate."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(bound)
            except OSError as error:
                _log.error("no connection can be accepted; trying again", reason=str(error))
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._handshakes) + len(self._requests) >= CONNECTIONS_MAX:
                accepted.close()
                continue
            handshake = loop.create_task(self._handshake(accepted, tls))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, tls: Tls) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=REQUEST_BYTES_MAX), self._serve),
                accepted,
                ssl=tls.files.context,
                ssl_handshake_timeout=REQUEST_TIMEOUT_S,
                ssl_shutdown_timeout=REQUEST_TIMEOUT_S,
            )
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error
            _log.warning("TLS handshake failed on the admin port", reason=str(reason))
        except asyncio.CancelledError:
            accepted.close()
            raise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = asyncio.current_task()
        assert request is not None, "the server runs this in a task"
        if len(self._requests) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_code, content_type, body = await self._respond(head, self._principal(writer), _host(writer))
            payload = body.encode()
            writer.transport.set_write_buffer_limits(0)  # so that drain() waits until everything is sent
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(_head(status_code, content_type, len(payload)) + payload)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # the client has gone, does not read, or does not send HTTP
        except asyncio.CancelledError:
            writer.transport.abort()  # end normally: asyncio logs a cancelled connection task as a bug
        finally:
            writer.close()

    def _principal(self, writer: asyncio.StreamWriter) -> str:
        """Return the principal of a client's certificate; empty if there is none."""
        ssl_object = writer.get_extra_info("ssl_object")
        tls = None if self._access is None else self._access.tls
        if ssl_object is None or tls is None:
            return ""
        try:
            principal = tls.principal_of(ssl_object)
        except NoMatchingRule:
            return ""
        return "" if principal == ANONYMOUS else principal

    async def _respond(self, head: str, principal: str, host: str) -> Response:
        first, *lines = head.split("\r\n")
        request = first.split(" ")
        if len(request) != 3:
            return text_response(HTTPStatus.BAD_REQUEST, "not an HTTP request")
        try:
            method, target = request[0], urlsplit(request[1])
        except ValueError as error:
            return text_response(HTTPStatus.BAD_REQUEST, f"not a URL: {error}")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert self._access is not None, "it listens"
        asked = {"action": f"{_shown(method)} {_shown(target.path)}", "resource": _shown(target.query)}
        try:
            client = self._access.check(method, headers, principal)
        except Refusal as refusal:
            event = "authentication failed" if refusal.status == HTTPStatus.UNAUTHORIZED else "denied"
            self._audit(event, refusal.client, host, reason=str(refusal), **asked)
            return text_response(refusal.status, str(refusal))
        if method == "GET":
            return await self._answer(method, target)
        outcome = "interrupted"
        try:
            response = await self._answer(method, target)
            outcome = HTTPStatus(response[0]).name
        finally:
            self._audit("changed" if outcome == "OK" else "change refused", client, host, outcome=outcome, **asked)
        return response

    def _audit(self, event: str, client: str, host: str, **fields: str) -> None:
        known = {name: text for name, text in fields.items() if text}
        self._node.audit.record(event, principal=client, host=host, listener="admin", **known)

    async def _answer(self, method: str, target: SplitResult) -> Response:
        """Return the response to a request that the client may make."""
        path = target.path
        route = self._routes.get(path)
        if route is None:
            return text_response(HTTPStatus.NOT_FOUND, f"known paths: {', '.join(self._routes)}")
        if method != route[0]:
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} requires {route[0]}")
        return await route[1](dict(parse_qsl(target.query)))

    async def _metrics(self, _: Query) -> Response:
        return 200, "text/plain; version=0.0.4", prometheus_text(self._node)

    async def _status(self, _: Query) -> Response:
        return json_response(await status(self._node))

    async def _health(self, _: Query) -> Response:
        storage = self._node.storage
        if self._node.stopping:
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "the node is stopping")
        if storage.error is not None or not storage.writable:
            reason = str(storage.error) if storage.error is not None else "; ".join(map(str, storage.obstacles()))
            return text_response(HTTPStatus.SERVICE_UNAVAILABLE, reason or "the node cannot write")
        return text_response(HTTPStatus.OK, "ok")

    async def _compact(self, _: Query) -> Response:
        try:
            summary = await self._node.compaction.run_once()
        except StorageError as error:
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return json_response(summary.as_json())

    async def _compaction_plan(self, _: Query) -> Response:
        try:
            plan = await self._node.compaction.plan()
        except StorageError as error:
            return text_response(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return json_response(plan.as_json(self._node.compaction_context))


def _shown(text: str) -> str:
    """Return a part of a request for the log, encoded as in a URL: without control characters."""
    return quote(text, safe="/%=&,:+@")


def _host(writer: asyncio.StreamWriter) -> str:
    """Return the address of a client."""
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _head(status: int, content_type: str, length: int) -> bytes:
    """Return the head of a response."""
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
        f"Content-Length: {length}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if status == HTTPStatus.UNAUTHORIZED:
        lines.append("WWW-Authenticate: Bearer")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
