"""Listeners for clients: named addresses, each with a security protocol. Formats and names are those of Apache Kafka.

A node has one listener PLAINTEXT at `listener.host` and `listener.port`, or those of `listener.listeners`.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from anabranch.broker.node.settings.client_areas import ListenerSettings
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.s3stream.catalog.values import DEFAULT_LISTENER

ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
_ALL_OF_IPV4: Final = "0.0.0.0"  # noqa: S104 - bound to when the operator leaves out the host
_LISTENER: Final = re.compile(r"([A-Za-z0-9_-]+)://(\[[0-9A-Fa-f:.]+\]|[^\[\]:/]*):(\d+)")
_PORT_MAX: Final = 65535


class SecurityProtocol(StrEnum):
    """Protection of the connections of a listener."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def uses_sasl(self) -> bool:
        """True if clients authenticate themselves with SASL."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener: where it listens, and the address announced to clients."""

    name: str
    protocol: SecurityProtocol
    host: str
    port: int
    """0: any free port."""
    advertised_host: str
    advertised_port: int
    """0: the port that it listens on."""


def listeners_of(area: ListenerSettings) -> Sequence[Listener]:
    """Return the listeners, in the order of the settings. Raises SettingsError."""
    protocols = _protocols(area.security_protocol_map)
    if not area.listeners:
        if area.advertised_listeners:
            raise SettingsError(
                "setting listener.advertised_listeners: set without listener.listeners: name the listeners there, or "
                "set listener.advertised_host and listener.advertised_port"
            )
        advertised_host = area.advertised_host or area.host
        protocol = protocols.get(DEFAULT_LISTENER, SecurityProtocol.PLAINTEXT)
        return [Listener(DEFAULT_LISTENER, protocol, area.host, area.port, advertised_host, area.advertised_port)]
    bound = _parse("listeners", area.listeners)
    announced = _parse("advertised_listeners", area.advertised_listeners)
    for name in announced.keys() - bound.keys():
        raise SettingsError(f"setting listener.advertised_listeners: {name} is not among listener.listeners")
    return [_listener(name, protocols, address, announced.get(name)) for name, address in bound.items()]


def _listener(
    name: str,
    protocols: Mapping[str, SecurityProtocol],
    address: tuple[str, int],
    announced: tuple[str, int] | None,
) -> Listener:
    """Return one listener. Raises SettingsError."""
    protocol = protocols.get(name)
    if protocol is None:
        if name not in set(SecurityProtocol):
            raise SettingsError(
                f"setting listener.security_protocol_map: no protocol for listener {name}: add {name}:SSL, or another "
                f"of {', '.join(SecurityProtocol)}"
            )
        protocol = SecurityProtocol(name)
    host, port = address
    advertised_host, advertised_port = announced or (host or socket.gethostname(), 0)
    if advertised_host in ALL_ADDRESSES or not advertised_host:
        raise SettingsError(
            f"setting listener.advertised_listeners: clients of listener {name} cannot connect to "
            f"{advertised_host or 'an address without a host'}: announce {name}://HOST:PORT with the node's host name"
        )
    return Listener(name, protocol, host or _ALL_OF_IPV4, port, advertised_host, advertised_port)


def _parse(setting: str, text: str) -> Mapping[str, tuple[str, int]]:
    """Return host and port by name, in order. Raises SettingsError."""
    found: dict[str, tuple[str, int]] = {}
    for part in _items(text):
        match = _LISTENER.fullmatch(part)
        if match is None or int(match[3]) > _PORT_MAX:
            raise SettingsError(
                f"setting listener.{setting}: expected NAME://HOST:PORT, such as PLAINTEXT://127.0.0.1:9092, "
                f"found {part!r}"
            )
        name = match[1].upper()
        if name in found:
            raise SettingsError(f"setting listener.{setting}: {name} is named twice")
        found[name] = (match[2].strip("[]"), int(match[3]))
    return found


def _protocols(text: str) -> Mapping[str, SecurityProtocol]:
    """Return the protocols by the names of listeners. Raises SettingsError."""
    found: dict[str, SecurityProtocol] = {}
    for part in _items(text):
        name, _, protocol = (each.strip().upper() for each in part.partition(":"))
        if not name or protocol not in set(SecurityProtocol):
            raise SettingsError(
                f"setting listener.security_protocol_map: expected NAME:PROTOCOL with a protocol of "
                f"{', '.join(SecurityProtocol)}, found {part!r}"
            )
        found[name] = SecurityProtocol(protocol)
    return found


def _items(text: str) -> Sequence[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
