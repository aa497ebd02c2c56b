"""A small HTTP server for people and scripts on the same machine: metrics, status, maintenance.

    GET  /metrics        metrics in Prometheus' text format
    GET  /status         the node's state as JSON
    POST /compact        compact all objects; responds after the run, with its summary as JSON
    GET  /compact/plan   the plan of such a run, as JSON
    /topics/...          whole topics: see `broker.admin.topics`
    /moves...            moves of partitions, and drains of nodes: see `broker.admin.moves`
    /storage/...         stopped streams: see `broker.admin.storage`
    /cluster, /nodes...  the cluster and its nodes: see `broker.admin.cluster`

One request per connection, no authentication. By default it listens on loopback.
"""

import asyncio
import socket
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

from broker.admin.cluster import ClusterRoutes
from broker.admin.metrics import prometheus_text, status
from broker.admin.moves import MoveRoutes
from broker.admin.responses import Query, Response, Route, json_response, text_response
from broker.admin.storage import StorageRoutes
from broker.admin.topics import TopicRoutes
from broker.node import Node
from s3stream.errors import StorageError
from s3stream.tasks import end_tasks

REQUEST_TIMEOUT_S = 10
REQUEST_BYTES_MAX = 8 << 10
CONNECTIONS_MAX = 100
"""Connections at a time. Further ones are closed at once."""


class AdminServer:
    """HTTP server of the admin port, listening from `start` to `close`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[object]] = set()
        self.address = ""
        """`host:port` once started."""
        self._routes: Mapping[str, Route] = {
            "/metrics": ("GET", self._metrics),
            "/status": ("GET", self._status),
            "/compact": ("POST", self._compact),
            "/compact/plan": ("GET", self._compaction_plan),
            **TopicRoutes(node.moves).routes,
            **MoveRoutes(node).routes,
            **StorageRoutes(node).routes,
            **ClusterRoutes(node).routes,
        }

    async def start(self, bound: socket.socket) -> None:
        """Listen on a bound socket. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=REQUEST_BYTES_MAX)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening, and cancel requests under way."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await end_tasks(self._requests)

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
            status_code, content_type, body = await self._respond(head)
            payload = body.encode()
            writer.transport.set_write_buffer_limits(0)  # so that drain() waits until everything is sent
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(
                    f"HTTP/1.1 {status_code} {HTTPStatus(status_code).phrase}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode()
                    + payload
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # the client has gone, does not read, or does not send HTTP
        except asyncio.CancelledError:
            writer.transport.abort()  # end normally: asyncio logs a cancelled connection task as a bug
        finally:
            writer.close()

    async def _respond(self, head: str) -> Response:
        request = head.split("\r\n", 1)[0].split(" ")
        if len(request) != 3:
            return text_response(HTTPStatus.BAD_REQUEST, "not an HTTP request")
        try:
            method, target = request[0], urlsplit(request[1])
        except ValueError as error:
            return text_response(HTTPStatus.BAD_REQUEST, f"not a URL: {error}")
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
