"""Kafka connections of commands: the options that describe them, and errors as one line."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final

import click

from anabranch.addresses import host_port, normal_address
from anabranch.broker.operator.cli.profiles import NO_PROFILE, Profile, chosen_profile, profile_option
from anabranch.client.cluster import Cluster
from anabranch.client.connection import AddressError, Connection, parse_address
from anabranch.client.errors import ClientError, PropertyError
from anabranch.client.properties import BOOTSTRAP_SERVERS
from anabranch.client.settings import ClientSettings, bootstrap_of, client_settings, gather
from anabranch.protocol.ids import uuid_text

DEFAULT_PORT: Final = 9092
DEFAULT_SERVER: Final = f"127.0.0.1:{DEFAULT_PORT}"
LIBRDKAFKA_LOG: Final = logging.getLogger("anabranch.librdkafka")
"""Log of librdkafka, which goes nowhere: its errors also come as results, and commands show those in one line."""
LIBRDKAFKA_LOG.addHandler(logging.NullHandler())
LIBRDKAFKA_LOG.propagate = False


@dataclass(frozen=True, slots=True)
class CommandClient:
    """Nodes to connect to, and the protection of the connections."""

    servers: str
    settings: ClientSettings
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties from which the settings were made."""
    profile: Profile = NO_PROFILE
    """Profile that they are of; an empty one if it names another cluster."""
    is_given: bool = False
    """True if an option names the nodes."""

    def cluster(self) -> Cluster:
        """Connect to the cluster of the first node that answers. Raises ClientError, BadParameter."""
        try:
            return Cluster(self.servers, self.connect_to)
        except AddressError as error:
            raise click.BadParameter(str(error), param_hint="--bootstrap-server") from None

    def librdkafka(self) -> AbstractContextManager[dict[str, object]]:
        """Give librdkafka's properties of the same connection. Raises PropertyError."""
        # Imported late: it loads `cryptography`, which most commands do not need.
        from anabranch.client.librdkafka import librdkafka_properties

        return librdkafka_properties(self.properties, self.settings, self.servers)

    def connect_to(self, host: str, port: int) -> Connection:
        """Connect to one node. Raises ClientError."""
        return Connection(host, port, self.settings)


bootstrap_option: Final = click.option(
    "-b",
    "--bootstrap-server",
    "servers",
    metavar="HOST[:PORT][,...]",
    help=f"Address of a node; the port is {DEFAULT_PORT} unless given  [default: from properties, else the profile, "
    f"else {DEFAULT_SERVER}]",
)


def property_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of client properties."""
    wrapped = click.option(
        "--command-property",
        "command_properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A client property that is not secret; repeatable.",
    )(command)
    return click.option(
        "--command-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Kafka's client properties: security.protocol, sasl.*, ssl.*.",
    )(wrapped)


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a Kafka client; the command receives a `CommandClient` as `client`, and its errors are shown.

    Properties and files are checked before the command begins.
    """

    def run(
        servers: str | None,
        command_config: Path | None,
        command_properties: Sequence[str],
        profile_name: str | None,
        **arguments: Any,
    ) -> None:
        properties = parse_properties(command_properties)
        try:
            client = make_client(servers, command_config, properties, chosen_profile(profile_name))
        except PropertyError as error:
            raise click.UsageError(str(error)) from None
        try:
            command(client=client, **arguments)
        except ClientError as error:
            raise click.ClickException(str(error)) from None

    return bootstrap_option(property_options(profile_option(update_wrapper(run, command))))


def make_client(
    servers: str | None,
    command_config: Path | None = None,
    single: Mapping[str, str] | None = None,
    profile: Profile = NO_PROFILE,
) -> CommandClient:
    """Return the client of a file of properties, the environment, single properties and a profile.

    A profile is used as a whole: not where another address is named, and without its properties where another file
    has some, so that no login is sent to a stranger. Raises PropertyError.
    """
    properties = gather(command_config, single or {}, os.environ)
    if profile.bootstrap_server and (servers or bootstrap_of(properties)):
        profile = NO_PROFILE
    properties = {**_properties_of(profile, command_config), **properties}
    chosen = with_ports(servers or bootstrap_of(properties) or DEFAULT_SERVER)
    return CommandClient(chosen, client_settings(properties), properties, profile, is_given=servers is not None)


def _properties_of(profile: Profile, command_config: Path | None) -> Mapping[str, str]:
    """Return the client properties of a profile. Raises PropertyError."""
    found: dict[str, str] = {}
    if command_config is None:
        found = gather(Path(profile.command_config) if profile.command_config else None, profile.command_property)
    return found | ({BOOTSTRAP_SERVERS: profile.bootstrap_server} if profile.bootstrap_server else {})


def check_servers(text: str) -> str:
    """Return the value of `--bootstrap-server` with all ports. Raises BadParameter."""
    servers = with_ports(text)
    try:
        for each in servers.split(","):
            parse_address(each)
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="--bootstrap-server") from None
    return servers


def with_ports(servers: str) -> str:
    """Return addresses, separated by commas, with the default port where one has none."""
    return ",".join(_with_port(each.strip()) for each in servers.split(","))


def _with_port(address: str) -> str:
    if normal_address(address) is not None:  # of IPv6 it has colons, and no port
        return host_port(address, DEFAULT_PORT)
    return address if not address or ":" in address.rpartition("]")[2] else f"{address}:{DEFAULT_PORT}"


def parse_properties(texts: Sequence[str]) -> Mapping[str, str]:
    """Parse the values of `--command-property`. Raises BadParameter."""
    parsed = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            # The text is not shown: it may be a secret.
            raise click.BadParameter("expected NAME=VALUE", param_hint="--command-property")
        parsed[name] = value
    return parsed


def id_text(topic_id: bytes) -> str:
    """Format a topic id as Kafka's tools do; `-` if there is none."""
    return uuid_text(topic_id) if any(topic_id) else "-"
