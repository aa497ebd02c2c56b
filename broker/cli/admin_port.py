"""Client of a running node's admin port, for requests that Kafka's protocol does not have."""

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
"""Limit for the node's status; the request that follows has no limit."""
REFUSED: Final = frozenset({http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.CONFLICT})
"""Responses whose body is the reason of a refusal, in one line."""

admin_option: Final = click.option(
    "--admin", metavar="HOST:PORT", help="Admin port of the running node  [default: from the settings]"
)


@dataclass(frozen=True, slots=True)
class AdminPort:
    """A node's admin port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def status(self) -> dict[str, Any]:
        """Return the node's status. Raises OSError without an answer in time, ClickException if it is no admin port."""
        found = self.call("GET", "/status", GREETING_TIMEOUT_S)
        if not isinstance(found, dict) or "node" not in found:
            raise click.ClickException(f"{self} is not an admin port: no node status at /status")
        return found

    def call(self, method: str, path: str, timeout_s: float | None) -> Any:
        """Send one request. Raises OSError without an answer in time, ClickException when the node refuses it."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read().decode("utf-8", "replace")
        except http.client.RemoteDisconnected:
            raise click.ClickException(f"{self} is not an admin port: it closes the connection") from None
        except http.client.HTTPException as error:
            raise click.ClickException(f"{self} is not an admin port: {error!r}") from None
        finally:
            connection.close()
        if response.status in REFUSED:
            raise click.ClickException(f"{self}: {body.strip()}")
        if response.status != http.HTTPStatus.OK:
            # A node gives the reason in plain text. The page of another web server is not shown.
            is_plain = str(response.getheader("Content-Type", "")).startswith("text/plain")
            reason = body.strip() if is_plain else response.reason
            raise click.ClickException(f"{self} {path}: {response.status} {reason}")
        try:
            return json.loads(body)
        except ValueError:
            raise click.ClickException(f"{self} is not an admin port: no JSON at {path}") from None

    def ask(self, method: str, path: str, **query: str | None) -> Any:
        """Send a request with the parameters of `query` that are not empty, and wait for the answer without a limit.

        Raises ClickException, also when the node cannot be reached.
        """
        given = urlencode({name: value for name, value in query.items() if value})
        try:
            self.status()
            return self.call(method, f"{path}?{given}" if given else path, None)
        except OSError as error:
            raise click.ClickException(
                f"cannot reach the admin port {self}: {_why(error)}; start the node, or give its port with --admin or "
                "its settings with --config"
            ) from None


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {GREETING_TIMEOUT_S:g} s"
    return error.strerror or str(error)


def parse_admin(text: str) -> AdminPort:
    """Parse `HOST:PORT`, the value of `--admin`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise click.BadParameter(f"expected HOST:PORT, found {text!r}", param_hint="--admin")
    return AdminPort(host.strip("[]"), int(port))


def configured(settings: Settings) -> AdminPort | None:
    """Return the admin port in the settings; None if it is disabled or any free port."""
    admin = settings.admin
    return AdminPort(admin.host, admin.port) if admin.enabled and admin.port else None


def on_node(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node; the command receives its admin port as first argument."""

    @config_option
    @admin_option
    def run(config_file: Path | None, admin: str | None, **arguments: Any) -> None:
        port = parse_admin(admin) if admin is not None else configured(read_settings(config_file))
        if port is None:
            raise click.UsageError("the settings name no admin port (admin.enabled, admin.port): give it with --admin")
        command(port, **arguments)

    return update_wrapper(run, command)
