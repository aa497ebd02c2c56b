"""An admin port whose server is loaded at its first connection, for nodes that start often and are rarely looked at."""

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from anabranch.addresses import host_port
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin.access import AdminAccess
from anabranch.broker.operator.admin.paths import console_url
from anabranch.extras import MissingExtra

if TYPE_CHECKING:
    from anabranch.broker.operator.admin.http import AdminServer


_log = structlog.get_logger("node")


class AdminOnDemand:
    """Listens on the port from `start` to `close`. Its server accepts the first connection, and all that follow."""

    def __init__(self, node: Node, make: "Callable[[], AdminServer]") -> None:
        """Set up; `make` loads and returns the server."""
        self._node = node
        self._make = make
        self._waiting: socket.socket | None = None
        """The bound socket, until there is a server."""
        self._server: AdminServer | None = None
        self.address = ""
        """`host:port` once started."""
        self.console_url = ""
        """Address of the console for a browser, once started."""

    async def start(self, bound: socket.socket, access: AdminAccess) -> None:
        """Listen on a bound socket. Raises OSError."""
        host, port = bound.getsockname()[:2]
        self.address = host_port(host, port)
        self.console_url = console_url(host, port, self._node.advertised.host, has_tls=access.tls is not None)
        bound.setblocking(False)
        bound.listen()
        self._waiting = bound
        asyncio.get_running_loop().add_reader(bound, self._load, bound, access)

    def _load(self, bound: socket.socket, access: AdminAccess) -> None:
        self._stop_waiting()
        try:
            self._server = self._make()
        except Exception as error:  # noqa: BLE001 - whatever it is, those that have connected must not wait for it
            bound.close()
            if isinstance(error, MissingExtra):
                _log.error(str(error))
            else:  # such as a package that is too old
                _log.error("the admin port cannot be served", exc_info=error)
            return
        self._node.tasks.spawn(self._server.start(bound, access))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            asyncio.get_running_loop().remove_reader(self._waiting)
            self._waiting = None

    async def close(self) -> None:
        """Stop listening, and cancel requests under way."""
        self._stop_waiting()
        if self._server is not None:
            await self._server.close()
