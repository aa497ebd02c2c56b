"""A small HTTP server for people and scripts on the same machine: metrics, status, maintenance.

    GET  /metrics        counters in Prometheus' text format
    GET  /status         the node's state as JSON
    POST /compact        compact everything there is; answers, when it is done, with a summary as JSON
    GET  /compact/plan   what that would do, as JSON
    /topics/...          whole topics: see `broker.admin.topics`
    /storage/...         stopped streams: see `broker.admin.storage`

One request per connection, no authentication: it listens on loopback unless told otherwise.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl, urlsplit

from broker.admin.metrics import prometheus_text, status
from broker.admin.storage import StorageRoutes
from broker.admin.topics import Answer, Query, TopicRoutes
from broker.node import Node
from s3stream.errors import StorageError
from s3stream.tasks import end_tasks

REQUEST_TIMEOUT_S = 10
REQUEST_BYTES_MAX = 8 << 10
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    500: "Internal Server Error",
}


class AdminServer:
    """Listens from `start` to `close`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._server: asyncio.Server | None = None
        self._requests: set[asyncio.Task[object]] = set()
        self.address = ""
        """`host:port` once started."""
        self._routes: Mapping[str, tuple[str, Callable[[Query], Awaitable[Answer]]]] = {
            "/metrics": ("GET", self._metrics),
            "/status": ("GET", self._status),
            "/compact": ("POST", self._compact),
            "/compact/plan": ("GET", self._compaction_plan),
            **TopicRoutes(node.moves).routes,
            **StorageRoutes(node).routes,
        }

    async def start(self, bound: socket.socket) -> None:
        """Listen on a socket that is bound. Raises OSError."""
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=REQUEST_BYTES_MAX)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        """Stop listening, and give up what is being answered."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await end_tasks(self._requests)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = asyncio.current_task()
        assert request is not None, "the server runs this in a task"
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status_code, content_type, body = await self._answer(head)
            payload = body.encode()
            writer.transport.set_write_buffer_limits(0)  # drained is sent
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(
                    f"HTTP/1.1 {status_code} {_REASONS[status_code]}\r\nContent-Type: {content_type}\r\n"
                    f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode()
                    + payload
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # the client has gone, does not read, or speaks something else
        except asyncio.CancelledError:
            writer.transport.abort()  # the task ends here either way; asyncio would tell of a cancelled one as of a bug
        finally:
            writer.close()

    async def _answer(self, head: str) -> Answer:
        request = head.split("\r\n", 1)[0].split(" ")
        if len(request) != 3:
            return 400, "text/plain", "not a request\n"
        method, target = request[0], urlsplit(request[1])
        path = target.path
        route = self._routes.get(path)
        if route is None:
            return 404, "text/plain", f"known paths: {', '.join(self._routes)}\n"
        if method != route[0]:
            return 405, "text/plain", f"{path} takes {route[0]}\n"
        return await route[1](dict(parse_qsl(target.query)))

    async def _metrics(self, _: Query) -> Answer:
        return 200, "text/plain; version=0.0.4", prometheus_text(self._node)

    async def _status(self, _: Query) -> Answer:
        return 200, "application/json", json.dumps(await status(self._node), indent=2) + "\n"

    async def _compact(self, _: Query) -> Answer:
        try:
            summary = await self._node.compaction.run_once()
        except StorageError as error:
            return 500, "text/plain", f"{error}\n"
        return 200, "application/json", json.dumps(summary.as_json(), indent=2) + "\n"

    async def _compaction_plan(self, _: Query) -> Answer:
        try:
            plan = await self._node.compaction.plan()
        except StorageError as error:
            return 500, "text/plain", f"{error}\n"
        return 200, "application/json", json.dumps(plan.as_json(self._node.compaction_node), indent=2) + "\n"
