"""Reservation of a node's ports before anything is created, so that a busy port leaves no log and no catalog behind.

Also the addresses of hosts.
"""

import asyncio
import errno
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Final, NamedTuple

import structlog

from anabranch.addresses import host_port, is_loopback
from anabranch.broker.node.net.server import bind
from anabranch.broker.node.net.vanished import notice_vanishing
from anabranch.broker.node.settings.checks import share_port
from anabranch.broker.node.settings.listeners import Listener, SecurityProtocol
from anabranch.broker.node.settings.model import Settings


class ReservedPorts(NamedTuple):
    """Bound sockets that do not listen yet."""

    clients: Sequence[socket.socket]
    """One for each listener, in the order of the settings."""
    internal: socket.socket
    """For other nodes."""
    admin: socket.socket | None
    """None: not wanted."""
    shared: Sequence[socket.socket] = ()
    """For clients, likewise, if several processes of this machine have them: whichever is free accepts a connection."""


async def resolve(host: str) -> str:
    """Return the first address of a host, or of an address in any notation. Raises OSError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return str(found[0][4][0])


def reserve_ports(settings: Settings, stack: ExitStack | AsyncExitStack) -> ReservedPorts:
    """Bind the ports for Kafka clients, for other nodes and, if enabled, the admin port; `stack` closes them.

    Raises OSError with a message of one line.
    """
    admin = settings.admin
    clients = reserve_listeners(settings, stack)
    admin_bound = None
    internal = _reserve("internal port", settings.internal_host, settings.internal_port, "cluster.internal_port", stack)
    notice_vanishing(internal)
    for bound in clients:
        _check_distinct(f"internal port {host_port(settings.internal_host, settings.internal_port)}", internal, bound)
    if admin.is_wanted:
        name = f"admin port {host_port(admin.host, admin.port)}"
        admin_bound = _reserve("admin port", admin.host, admin.port, "admin.port (--admin-port)", stack)
        for bound in clients:
            _check_distinct(name, admin_bound, bound)
        _check_distinct(name, admin_bound, internal, "other nodes")
    return ReservedPorts(clients, internal, admin_bound)


def reserve_listeners(settings: Settings, stack: ExitStack | AsyncExitStack) -> Sequence[socket.socket]:
    """Bind the ports for Kafka clients; `stack` closes them. Raises OSError with a message of one line."""
    clients: list[socket.socket] = []
    for each in settings.listeners:
        what, port_setting = "cannot listen on", "listener.port (--port)"
        if settings.listener.listeners:
            what, port_setting = f"listener {each.name}: cannot listen on", "its port in listener.listeners"
        bound = _reserve(what, each.host, each.port, port_setting, stack)
        for other in clients:
            _check_distinct(f"listener {each.name}", bound, other, "clients of another listener")
        clients.append(bound)
    return clients


_OPEN: Final = {
    SecurityProtocol.PLAINTEXT: "a listener has neither encryption nor authentication, and is not on loopback: whoever "
    "reaches it can read and change everything",
    SecurityProtocol.SASL_PLAINTEXT: "a listener has no encryption, and is not on loopback: whoever reads in the "
    "network sees all records, and the passwords of clients that use PLAIN",
}


def warn_if_open(listener: Listener, bound: socket.socket) -> None:
    """Log a warning if a listener without encryption can be reached from other machines."""
    host, port = bound.getsockname()[:2]
    if listener.protocol in _OPEN and not is_loopback(host):
        structlog.get_logger("network").warning(
            _OPEN[listener.protocol], listener=listener.name, address=host_port(host, port)
        )


def warn_if_internal_open(settings: Settings, bound: socket.socket) -> None:
    """Log a warning if connections of other nodes may come from other machines without encryption."""
    host, port = bound.getsockname()[:2]
    if settings.cluster.internal_tls != "required" and not is_loopback(host):
        structlog.get_logger("network").warning(
            "the internal port does not require TLS, and is not on loopback: whoever reads in the network sees records "
            "that move between nodes, and whoever can change packets can change requests",
            address=host_port(host, port),
            setting="cluster.internal_tls",
        )


_ADVICE: Final = {
    errno.EADDRINUSE: ": stop the program that has it, or change {setting}",
    errno.EADDRNOTAVAIL: ": no network interface of this machine has the address",
    errno.EACCES: ": run as a user that may listen there, or change {setting}",
}
"""Remedies for errors of a port, by their numbers."""


def _check_distinct(name: str, bound: socket.socket, other: socket.socket, served: str = "Kafka clients") -> None:
    """Raise OSError if two sockets share an address.

    Sockets that do not listen yet may, and only now are the hosts' names resolved.
    """
    (host, port), (other_host, other_port) = bound.getsockname()[:2], other.getsockname()[:2]
    if port == other_port and share_port(other_host, host):
        raise OSError(
            f"{name}: {served} are served at this address ({host_port(other_host, other_port)}): "
            "give one of them another port"
        )


def _reserve(what: str, host: str, port: int, port_setting: str, stack: ExitStack | AsyncExitStack) -> socket.socket:
    try:
        bound = bind(host, port)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "").format(setting=port_setting)
        raise OSError(f"{what} {host_port(host, port)}: {error.strerror or error}{advice}") from error
    stack.callback(bound.close)
    return bound
