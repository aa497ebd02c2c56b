"""Client of the JSON API of a running node's admin port, for requests that Kafka's protocol does not have.

A token comes from a file or the environment, and never from the command line, which others can read. The port is that
of the options, else of the settings if a file or the environment has any, else of the profile. A profile is used as a
whole: where another port is named, its token is not sent.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlencode

import click

from anabranch.addresses import host_port
from anabranch.broker.node.settings.known import ADMIN_HOST, ADMIN_PORT, CONFIG_ENV, ENV_PREFIX
from anabranch.broker.operator.admin.paths import API_PREFIX, REGISTRY_PREFIX
from anabranch.broker.operator.admin.tokens import AccessError, read_tokens
from anabranch.broker.operator.cli.options import config_option, read_settings
from anabranch.broker.operator.cli.profiles import NO_PROFILE, Profile, chosen_profile, profile_option
from anabranch.client.connection import AddressError, parse_address

if TYPE_CHECKING:
    import http.client
    import ssl

    from anabranch.broker.node.settings.admin_area import AdminSettings

GREETING_TIMEOUT_S: Final = 5.0
"""Limit for the answer that shows that there is an admin port; the request that follows has no limit."""
REFUSED: Final = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.SERVICE_UNAVAILABLE}
)
"""Responses whose reason says all, in one line."""


class TooLarge(click.ClickException):
    """The registry refuses a request or its answer for their size."""


@dataclass(frozen=True, slots=True)
class AdminPort:
    """A node's admin port."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    """Bearer token; empty: none."""
    context: "ssl.SSLContext | None" = None
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
        return response.status == HTTPStatus.OK

    def call(self, method: str, path: str, timeout_s: float | None) -> Any:
        """Send a request of the API. Raises OSError without an answer in time, ClickException when it is refused."""
        path = API_PREFIX + path
        response, body = self._send(method, path, timeout_s)
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if response.status == HTTPStatus.OK:
            if found is None:
                raise click.ClickException(f"{self} is not an admin port: no JSON at {path}")
            return found
        # A node gives the reason as JSON. The page of another web server is not shown.
        reason = found.get("error") if isinstance(found, dict) else None
        if reason and response.status in REFUSED:
            raise click.ClickException(reason)
        raise click.ClickException(f"{self} {path}: {response.status} {reason or response.reason}")

    def ask_registry(self, method: str, path: str, body: Any = None, *, may_miss: bool = False) -> Any:
        """Send a request to the schema registry, and return its answer; None for what is not there, if it `may_miss`.

        Raises ClickException with what the registry says against it, and when it cannot be reached; TooLarge for an
        answer, or a request, that would be.
        """
        try:
            self.greet()
            response, text = self._send(method, REGISTRY_PREFIX + path, None, body)
        except OSError as error:
            raise self.unreachable(error) from None
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {}
        if response.status == HTTPStatus.OK:
            return answer
        if answer.get("error_code", response.status) == HTTPStatus.NOT_FOUND:  # what it has not is 404 and two digits
            raise click.ClickException(f"{self} has no schema registry: see schema_registry.enabled")
        if response.status == HTTPStatus.NOT_FOUND and may_miss:
            return None
        kind = TooLarge if response.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE else click.ClickException
        raise kind(answer.get("message") or f"{self}: {response.status} {response.reason}")

    def _send(
        self, method: str, path: str, timeout_s: float | None, body: Any = None
    ) -> "tuple[http.client.HTTPResponse, str]":
        """Send one request, with a body as JSON unless it is None, and return its response with the body."""
        import http.client  # late: commands that share these options may not need it
        import ssl

        if self.context is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self.context)
        try:
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, None if body is None else json.dumps(body), headers)
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
    profile: Profile = NO_PROFILE

    def find(self, settings: "AdminSettings | None") -> AdminPort | None:
        """Return the port; None if the settings say that the node has none. Raises ClickException.

        `settings`: those of the node; None: only options and profile name the port.
        """
        profile, address = self.profile, self.address
        if profile.admin and address is not None:
            profile = NO_PROFILE  # its token is for its own port
        address = address or profile.admin or None
        if address is not None:
            host, port, has_tls = parse_admin(address)
        elif settings is not None:
            host, port, has_tls = settings.host, settings.port, settings.ssl is not None
            if settings.enabled is False or not port:
                return None
        else:
            host, port, has_tls = ADMIN_HOST, ADMIN_PORT, False
        from_settings = None if settings is None else settings.ssl_ca_file
        ca_file = self.ca_file or from_settings or (Path(profile.admin_ca_file) if profile.admin_ca_file else None)
        has_tls |= self.ca_file is not None or bool(profile.admin_ca_file)
        context = _context(ca_file, self.certificate_file or profile.admin_certificate_file) if has_tls else None
        return AdminPort(host, port, self._token(settings, profile), context)

    def of_node(self, *names: Path | None) -> Self:
        """Return the options without the profile if a file, a folder or a variable says where the port is."""
        return replace(self, profile=NO_PROFILE) if any([*names, *map(os.environ.get, _ADDRESS)]) else self

    def find_needed(self, config_file: Path | None) -> AdminPort:
        """Return the port of a node that must have one. Raises ClickException."""
        if config_file is None and not any(name.startswith(_VARIABLES) for name in os.environ):
            port = self.find(None)
        else:
            port = self.of_node(config_file).find(read_settings(config_file).admin)
        if port is None:
            raise click.UsageError("the settings name no admin port (admin.enabled, admin.port): give it with --admin")
        return port

    def _token(self, settings: "AdminSettings | None", profile: Profile) -> str:
        """Return the token of the option, else one of the settings, preferably one that may operate."""
        try:
            if self.token_file is not None:
                return read_tokens("--admin-token-file", self.token_file)[0]
            for name in ("operate_token", "read_token") if settings is not None else ():
                secret, path = getattr(settings, name), getattr(settings, f"{name}_file")
                if secret is not None:
                    return str(secret.reveal())
                if path is not None:
                    return read_tokens(f"admin.{name}_file", path)[0]
            if profile.admin_token_file:
                return read_tokens("admin_token_file", Path(profile.admin_token_file))[0]
        except AccessError as error:
            raise click.ClickException(str(error)) from None
        return ""


def _context(ca_file: Path | None, certificate: Path | str | None) -> "ssl.SSLContext":
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate:
            context.load_cert_chain(certificate, password=lambda: "")
    except (OSError, ValueError) as error:
        files = ", ".join(str(each) for each in (ca_file, certificate) if each)
        raise click.ClickException(f"{files}: {getattr(error, 'strerror', None) or error}") from None
    return context


_ADDRESS: Final = (CONFIG_ENV, *(f"{ENV_PREFIX}ADMIN_{name}" for name in ("ENABLED", "HOST", "PORT")))
"""Variables that say where the port is."""
_VARIABLES: Final = (CONFIG_ENV, f"{ENV_PREFIX}ADMIN_")
"""Beginnings of the variables with settings of the port."""


def port_beside(servers: str, profile: Profile) -> AdminPort:
    """Return the admin port that the environment or a profile names, else that of the first of Kafka's addresses.

    Raises ClickException.
    """
    if profile.admin or any(name.startswith(_VARIABLES) for name in os.environ):
        return AdminOptions(None, profile=profile).find_needed(None)
    try:
        host, _ = parse_address(servers.partition(",")[0])
    except AddressError as error:
        raise click.BadParameter(str(error), param_hint="--bootstrap-server") from None
    return AdminPort(host, ADMIN_PORT)


def parse_admin(text: str) -> tuple[str, int, bool]:
    """Parse `HOST:PORT` or `https://HOST:PORT`, the value of `--admin`; the last part is whether it has TLS."""
    scheme, separator, rest = text.rpartition("://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if not host or not port.isdigit() or (separator and scheme not in {"http", "https"}):
        raise click.BadParameter(f"expected HOST:PORT or https://HOST:PORT, found {text!r}", param_hint="--admin")
    return host.strip("[]"), int(port), scheme == "https"


def admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an admin port, each under its own name."""
    wrapped = command
    for name, metavar, text in reversed(_ADMIN_OPTIONS):
        kind = None if name == "--admin" else click.Path(path_type=Path)
        wrapped = click.option(name, metavar=metavar, type=kind, help=text)(wrapped)
    return wrapped


_ADMIN_OPTIONS: Final = (
    ("--admin", "[https://]HOST:PORT", "Admin port of a running node  [default: from the settings, else the profile]"),
    ("--admin-token-file", "FILE", "File whose first line is the token for it  [default: from the settings]"),
    (
        "--admin-ca-file",
        "FILE",
        "Authorities of its certificate (PEM)  [default: from the settings, else the system's]",
    ),
    ("--admin-certificate-file", "FILE", "Certificate and private key to show it (PEM)."),
)


def admin_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an admin port; the command receives them as `admin`."""

    def run(
        admin: str | None,
        admin_token_file: Path | None,
        admin_ca_file: Path | None,
        admin_certificate_file: Path | None,
        profile_name: str | None,
        **arguments: Any,
    ) -> None:
        profile = chosen_profile(profile_name)
        options = AdminOptions(admin, admin_token_file, admin_ca_file, admin_certificate_file, profile)
        command(admin=options, **arguments)

    return admin_options(profile_option(update_wrapper(run, command)))


def on_node(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node; the command receives its admin port as first argument."""

    @config_option
    @admin_option
    def run(config_file: Path | None, admin: AdminOptions, **arguments: Any) -> None:
        command(admin.find_needed(config_file), **arguments)

    return update_wrapper(run, command)
