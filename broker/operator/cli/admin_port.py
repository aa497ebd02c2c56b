"""Client of the JSON API of a running node's admin port, for requests that Kafka's protocol does not have.

A token comes from a file or the environment, and never from the command line, which others can read.
"""

import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import click

from anabranch.addresses import host_port
from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.operator.admin.access import AccessError, read_tokens
from anabranch.broker.operator.admin.paths import API_PREFIX
from anabranch.broker.operator.cli.options import config_option, read_settings

GREETING_TIMEOUT_S: Final = 5.0
"""Limit for the answer that shows that there is an admin port; the request that follows has no limit."""
REFUSED: Final = frozenset(
    {
        http.HTTPStatus.BAD_REQUEST,
        http.HTTPStatus.NOT_FOUND,
        http.HTTPStatus.CONFLICT,
        http.HTTPStatus.SERVICE_UNAVAILABLE,
    }
)
"""Responses whose reason says all, in one line."""


@dataclass(frozen=True, slots=True)
class AdminPort:
    """A node's admin port."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    """Bearer token; empty: none."""
    context: ssl.SSLContext | None = None
    """TLS of the port; None: it has none."""

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    def greet(self) -> None:
        """Check that a node answers. Raises OSError without an answer in time, ClickException if none is there."""
        found = self.call("GET", "/session", GREETING_TIMEOUT_S)
        if not isinstance(found, dict) or "node_id" not in found:
            raise click.ClickException(f"{self} is not an admin port: no node at {API_PREFIX}/session")

    @property
    def url(self) -> str:
        """Address for a browser."""
        return f"{'http' if self.context is None else 'https'}://{self}"

    def serves(self, path: str) -> bool:
        """Return whether the port has a page. Raises OSError without an answer in time, ClickException if it fails."""
        response, _ = self._send("GET", path, GREETING_TIMEOUT_S)
        return response.status == http.HTTPStatus.OK

    def call(self, method: str, path: str, timeout_s: float | None) -> Any:
        """Send a request of the API. Raises OSError without an answer in time, ClickException when it is refused."""
        path = API_PREFIX + path
        response, body = self._send(method, path, timeout_s)
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if response.status == http.HTTPStatus.OK:
            if found is None:
                raise click.ClickException(f"{self} is not an admin port: no JSON at {path}")
            return found
        # A node gives the reason as JSON. The page of another web server is not shown.
        reason = found.get("error") if isinstance(found, dict) else None
        if reason and response.status in REFUSED:
            raise click.ClickException(reason)
        raise click.ClickException(f"{self} {path}: {response.status} {reason or response.reason}")

    def _send(self, method: str, path: str, timeout_s: float | None) -> tuple[http.client.HTTPResponse, str]:
        """Send one request, and return its response with the body."""
        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.context)
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {self.token}"} if self.token else {})
            response = connection.getresponse()
            return response, response.read().decode("utf-8", "replace")
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise click.ClickException(f"{self}: TLS: {reason}; see --admin-ca-file") from None
        except http.client.RemoteDisconnected:
            raise click.ClickException(f"{self} is not an admin port: it closes the connection") from None
        except http.client.HTTPException as error:
            raise click.ClickException(f"{self} is not an admin port: {error!r}") from None
        finally:
            connection.close()

    def ask(self, method: str, path: str, **query: str | None) -> Any:
        """Send a request with the parameters of `query` that are not empty, and wait for the answer without a limit.

        Raises ClickException, also when the node cannot be reached.
        """
        given = urlencode({name: value for name, value in query.items() if value})
        try:
            self.greet()
            return self.call(method, f"{path}?{given}" if given else path, None)
        except OSError as error:
            raise self.unreachable(error) from None

    def unreachable(self, error: OSError) -> click.ClickException:
        """Return the error to show when the port has not answered."""
        return click.ClickException(
            f"cannot reach the admin port {self}: {_why(error)}; start the node, or give its port with --admin or its "
            "settings with --config"
        )


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {GREETING_TIMEOUT_S:g} s"
    return error.strerror or str(error)


@dataclass(frozen=True, slots=True)
class AdminOptions:
    """The options that name an admin port, and how a command authenticates there."""

    address: str | None
    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None

    def find(self, settings: Settings) -> AdminPort | None:
        """Return the port; None if neither option nor settings name one. Raises ClickException."""
        admin = settings.admin
        if self.address is None and (admin.enabled is False or not admin.port):
            return None
        host, port, is_https = admin.host, admin.port, False
        if self.address is not None:
            host, port, is_https = parse_admin(self.address)
        has_tls = is_https or self.ca_file is not None or (self.address is None and admin.ssl is not None)
        context = self._context(admin.ssl_ca_file) if has_tls else None
        return AdminPort(host, port, self._token(admin), context)

    def find_needed(self, settings: Settings) -> AdminPort:
        """Return the port. Raises ClickException, also if neither option nor settings name one."""
        port = self.find(settings)
        if port is None:
            raise click.UsageError("the settings name no admin port (admin.enabled, admin.port): give it with --admin")
        return port

    def _token(self, admin: AdminSettings) -> str:
        """Return the token of the option, else one of the settings, preferably one that may operate."""
        try:
            if self.token_file is not None:
                return read_tokens("--admin-token-file", self.token_file)[0]
            for name in ("operate_token", "read_token"):
                secret, path = getattr(admin, name), getattr(admin, f"{name}_file")
                if secret is not None:
                    return str(secret.reveal())
                if path is not None:
                    return read_tokens(f"admin.{name}_file", path)[0]
        except AccessError as error:
            raise click.ClickException(str(error)) from None
        return ""

    def _context(self, settings_ca_file: Path | None) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file or settings_ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, password=lambda: "")
        except (OSError, ValueError) as error:
            files = ", ".join(str(each) for each in (self.ca_file or settings_ca_file, self.certificate_file) if each)
            raise click.ClickException(f"{files}: {getattr(error, 'strerror', None) or error}") from None
        return context


def parse_admin(text: str) -> tuple[str, int, bool]:
    """Parse `HOST:PORT` or `https://HOST:PORT`, the value of `--admin`; the last part is whether it has TLS."""
    scheme, separator, rest = text.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if not host or not port.isdigit() or (separator and scheme not in {"http", "https"}):
        raise click.BadParameter(f"expected HOST:PORT or https://HOST:PORT, found {text!r}", param_hint="--admin")
    return host.strip("[]"), int(port), scheme == "https"


def admin_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an admin port; the command receives them as `admin`."""

    def run(
        admin: str | None,
        admin_token_file: Path | None,
        admin_ca_file: Path | None,
        admin_certificate_file: Path | None,
        **arguments: Any,
    ) -> None:
        command(admin=AdminOptions(admin, admin_token_file, admin_ca_file, admin_certificate_file), **arguments)

    wrapped = update_wrapper(run, command)
    for name, metavar, text in reversed(_ADMIN_OPTIONS):
        kind = None if name == "--admin" else click.Path(path_type=Path)
        wrapped = click.option(name, metavar=metavar, type=kind, help=text)(wrapped)
    return wrapped


_ADMIN_OPTIONS: Final = (
    ("--admin", "[https://]HOST:PORT", "Admin port of the running node  [default: from the settings]"),
    ("--admin-token-file", "FILE", "File whose first line is the token for it  [default: from the settings]"),
    (
        "--admin-ca-file",
        "FILE",
        "Authorities of its certificate (PEM)  [default: from the settings, else the system's]",
    ),
    ("--admin-certificate-file", "FILE", "Certificate and private key to show it (PEM)."),
)


def on_node(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node; the command receives its admin port as first argument."""

    @config_option
    @admin_option
    def run(config_file: Path | None, admin: AdminOptions, **arguments: Any) -> None:
        command(admin.find_needed(read_settings(config_file)), **arguments)

    return update_wrapper(run, command)
