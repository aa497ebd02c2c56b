"""Ports of a node: their certificates, their servers, and listening on them."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anabranch.broker.api.handlers import PIPELINED
from anabranch.broker.api.handlers.internal import internal_server
from anabranch.broker.app.kafka import Quotas
from anabranch.broker.cluster.membership.tasks import NodeTasks
from anabranch.broker.cluster.ports import Ports
from anabranch.broker.node.net.ports import ReservedPorts, warn_if_internal_open, warn_if_open
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.settings.memory import MemorySizes
from anabranch.broker.node.settings.model import Settings
from anabranch.extras import needed

if TYPE_CHECKING:
    from anabranch.broker.node.net.tls import Tls


@dataclass(frozen=True, slots=True)
class NodeTls:
    """TLS of the listeners, and of the internal port with connections to other nodes. None: not used."""

    clients: "Tls | None"
    nodes: "Tls | None"


def open_tls(settings: Settings, now_ms: Callable[[], int]) -> NodeTls:
    """Read the files of TLS. Raises TlsError, MissingExtra."""
    area = settings.internal_ssl
    if area is None and not settings.uses_tls:
        return NodeTls(clients=None, nodes=None)
    with needed("TLS"):
        from anabranch.broker.node.net.tls import Tls
    return NodeTls(
        clients=Tls(settings.ssl, now_ms) if settings.uses_tls else None,
        nodes=None if area is None else Tls(area, now_ms),
    )


def make_ports(settings: Settings, sizes: MemorySizes, tls: NodeTls, quotas: Quotas) -> Ports:
    """Build the servers. They do not listen yet."""
    return Ports(
        clients=Server(settings.network, sizes, pipelined=PIPELINED),
        clients_tls=tls.clients,
        client_quotas=quotas.clients,
        address_quotas=quotas.addresses,
        nodes=internal_server(settings.network, sizes),
        nodes_tls=tls.nodes,
    )


async def listen_to_nodes(ports: Ports, settings: Settings, bound: socket.socket, tasks: NodeTasks) -> None:
    """Accept connections of other nodes, with TLS or without."""
    server, tls = ports.nodes, ports.nodes_tls
    warn_if_internal_open(settings, bound)
    if tls is None:
        await server.listen(bound)
        return
    accepts_plaintext = settings.cluster.internal_tls != "required"
    server.listen_tls(bound, "internal", tls, tasks.spawn, accepts_plaintext=accepts_plaintext)
    tasks.spawn(tls.run())


async def listen_to_clients(ports: Ports, settings: Settings, reserved: ReservedPorts, tasks: NodeTasks) -> None:
    """Accept connections of clients on all listeners."""
    server, tls = ports.clients, ports.clients_tls
    if tls is not None:
        tasks.spawn(tls.run())
    # The shared ones first: the ports of the listeners are those that only this process has.
    shared = zip(settings.listeners, reserved.shared, strict=bool(reserved.shared))
    for listener, port in (*shared, *zip(settings.listeners, reserved.clients, strict=True)):
        if listener.protocol.uses_tls and tls is not None:
            server.listen_tls(port, listener.name, tls, tasks.spawn)
        else:
            await server.listen(port, listener.name)
        warn_if_open(listener, port)
