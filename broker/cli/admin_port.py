"""A running node's admin port, for what Kafka has no requests for."""

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import click

from broker.cli.options import config_option, read_settings
from broker.settings.model import Settings

GREETING_TIMEOUT_S: Final = 5.0
"""How long a node may take to tell its status; what it is asked for then may take as long as it takes."""
REFUSED: Final = frozenset({http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.CONFLICT})
"""Answers whose body is the node's own reason, in one line."""

admin_option: Final = click.option(
    "--admin", metavar="HOST:PORT", help="Admin port of the running node  [default: as in the settings]"
)


@dataclass(frozen=True, slots=True)
class AdminPort:
    """A node's admin port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def status(self) -> dict[str, Any]:
        """The node's status: whether it is one. Raises OSError when nobody answers in time."""
        found = self.call("GET", "/status", GREETING_TIMEOUT_S)
        if not isinstance(found, dict) or "node" not in found:
            raise click.ClickException(f"{self} is no admin port: no node's status at /status")
        return found

    def call(self, method: str, path: str, timeout_s: float | None) -> Any:
        """One request; raises OSError when nobody answers in time, ClickException when the node says no."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read().decode("utf-8", "replace")
        except http.client.RemoteDisconnected:
            raise click.ClickException(f"{self} is no admin port: it closes the connection") from None
        except http.client.HTTPException as error:
            raise click.ClickException(f"{self} is no admin port: {error!r}") from None
        finally:
            connection.close()
        if response.status in REFUSED:
            raise click.ClickException(f"{self}: {body.strip()}")
        if response.status != http.HTTPStatus.OK:
            # A node says why in plain text; a web server's page is not for a terminal.
            is_plain = str(response.getheader("Content-Type", "")).startswith("text/plain")
            reason = body.strip() if is_plain else response.reason
            raise click.ClickException(f"{self} {path}: {response.status} {reason}")
        try:
            return json.loads(body)
        except ValueError:
            raise click.ClickException(f"{self} is no admin port: no JSON at {path}") from None

    def ask(self, method: str, path: str, **query: str | None) -> Any:
        """A node's answer, however long it takes, with what is not empty of `query`; one that is away is told of, too.

        Raises ClickException.
        """
        given = urlencode({name: value for name, value in query.items() if value})
        try:
            self.status()
            return self.call(method, f"{path}?{given}" if given else path, None)
        except OSError as error:
            raise click.ClickException(
                f"cannot reach the admin port {self}: {_why(error)}; start the node, or name its port with --admin or "
                "its settings with --config"
            ) from None


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {GREETING_TIMEOUT_S:g} s"
    return error.strerror or str(error)


def parse_admin(text: str) -> AdminPort:
    """`HOST:PORT`, as given with `--admin`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"expected HOST:PORT, found {text!r}", param_hint="--admin")
    return AdminPort(host.strip("[]"), int(port))


def configured(settings: Settings) -> AdminPort | None:
    """The admin port of a node with those settings; None where they do not tell."""
    admin = settings.admin
    return AdminPort(admin.host, admin.port) if admin.enabled and admin.port else None


def on_node(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that find a running node, and the node's admin port as its first argument."""

    @config_option
    @admin_option
    def run(config_file: Path | None, admin: str | None, **arguments: Any) -> None:
        port = parse_admin(admin) if admin is not None else configured(read_settings(config_file))
        if port is None:
            raise click.UsageError("the settings name no admin port (admin.enabled, admin.port): give it with --admin")
        command(port, **arguments)

    return update_wrapper(run, command)
