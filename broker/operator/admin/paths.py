"""Prefixes of the admin port's paths, and the console's address.

Everything else that the port serves is `/metrics` and the probes under `/health`.
"""

from typing import Final

from anabranch.addresses import host_port
from anabranch.broker.node.settings.listeners import ALL_ADDRESSES

API_PREFIX: Final = "/api/v1"
CONSOLE_PREFIX: Final = "/console/"
REGISTRY_PREFIX: Final = "/schema-registry"
TABLES_PREFIX: Final = "/iceberg"


def console_url(host: str, port: int, machine: str, *, has_tls: bool) -> str:
    """Return the console's address for a browser.

    `machine` is the host announced to Kafka clients. It replaces the address for all interfaces, which no browser can
    open.
    """
    reachable = host_port(machine if host in ALL_ADDRESSES else host, port)
    return f"{'https' if has_tls else 'http'}://{reachable}{CONSOLE_PREFIX}"
