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

from anabranch.client.cluster import Cluster
from anabranch.client.connection import AddressError, Connection
from anabranch.client.errors import ClientError, PropertyError
from anabranch.client.settings import ClientSettings, bootstrap_of, client_settings, gather
from anabranch.protocol.ids import uuid_text

DEFAULT_SERVER: Final = "127.0.0.1:9092"
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


def client_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a Kafka client; the command receives a `CommandClient` as `client`, and its errors are shown.

    Properties and files are checked before the command begins.
    """

    def run(
        servers: str | None, command_config: Path | None, command_properties: Sequence[str], **arguments: Any
    ) -> None:
        try:
            client = make_client(servers, command_config, _parse(command_properties))
        except PropertyError as error:
            raise click.UsageError(str(error)) from None
        try:
            command(client=client, **arguments)
        except ClientError as error:
            raise click.ClickException(str(error)) from None

    wrapped = update_wrapper(run, command)
    wrapped = click.option(
        "--command-property",
        "command_properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A client property that is not secret; repeatable.",
    )(wrapped)
    wrapped = click.option(
        "--command-config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Kafka's client properties: security.protocol, sasl.*, ssl.*.",
    )(wrapped)
    return click.option(
        "--bootstrap-server",
        "servers",
        metavar="HOST:PORT[,...]",
        help=f"Address of a node  [default: that of the properties, else {DEFAULT_SERVER}]",
    )(wrapped)


def make_client(
    servers: str | None, command_config: Path | None = None, single: Mapping[str, str] | None = None
) -> CommandClient:
    """Return the client of a file of properties, the environment and single properties. Raises PropertyError."""
    properties = gather(command_config, single or {}, os.environ)
    return CommandClient(servers or bootstrap_of(properties) or DEFAULT_SERVER, client_settings(properties), properties)


def _parse(texts: Sequence[str]) -> Mapping[str, str]:
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
