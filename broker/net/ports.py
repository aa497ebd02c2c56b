"""Reservation of a node's ports before anything is created, so that a busy port leaves no log and no catalog behind."""

import socket
from contextlib import AsyncExitStack, ExitStack

from broker.net.server import bind
from broker.settings.checks import share_port
from broker.settings.model import Settings


def reserve_ports(settings: Settings, stack: ExitStack | AsyncExitStack) -> tuple[socket.socket, socket.socket | None]:
    """Bind the port for Kafka clients and, if enabled, the admin port; `stack` closes them.

    Raises OSError with a message of one line.
    """
    listener, admin = settings.listener, settings.admin
    bound = _reserve("cannot listen on", listener.host, listener.port, stack)
    if not admin.enabled:
        return bound, None
    admin_bound = _reserve("admin port", admin.host, admin.port, stack)
    # Sockets that do not listen yet may share an address, and only now are the hosts' names resolved.
    (host, port), (admin_host, admin_port) = bound.getsockname()[:2], admin_bound.getsockname()[:2]
    if port == admin_port and share_port(host, admin_host):
        raise OSError(
            f"admin port {admin.host}:{admin.port}: Kafka clients are served at this address ({listener.host}:{port}): "
            "give one of them another port"
        )
    return bound, admin_bound


def _reserve(what: str, host: str, port: int, stack: ExitStack | AsyncExitStack) -> socket.socket:
    try:
        bound = bind(host, port)
    except OSError as error:
        raise OSError(f"{what} {host}:{port}: {error.strerror or error}") from error
    stack.callback(bound.close)
    return bound
