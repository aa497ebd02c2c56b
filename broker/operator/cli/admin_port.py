"""Client of the JSON API of a running node's admin port, for requests that Kafka's protocol does not have.

A token comes from a file or the environment, and never from the command line, which others can read. `NodeOptions.find`
says which port is asked. A profile is used as a whole: where another port is named, its token is not sent.
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

from anabranch.addresses import host_port, is_loopback
from anabranch.broker.node.settings.known import ADMIN_HOST, ADMIN_PORT, CONFIG_ENV, ENV_PREFIX
from anabranch.broker.operator.admin.paths import API_PREFIX, REGISTRY_PREFIX
from anabranch.broker.operator.admin.tokens import AccessError, read_tokens
from anabranch.broker.operator.cli.admin_address import announced_port, parse_admin
from anabranch.broker.operator.cli.client import CommandClient, client_options
from anabranch.broker.operator.cli.options import config_option, read_settings
from anabranch.broker.operator.cli.profiles import NO_PROFILE, Profile, chosen_profile, profile_option

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
    cluster: str = ""
    """Name of the cluster that it must belong to; empty: any."""

    def __str__(self) -> str:
        return host_port(self.host, self.port)

    def greet(self) -> None:
        """Check that a node answers. Raises OSError without an answer in time, ClickException if none is there."""
        found = self.call("GET", "/session", GREETING_TIMEOUT_S)
        if not isinstance(found, dict) or "node_id" not in found:
            raise click.ClickException(f"{self} is not an admin port: no node at {API_PREFIX}/session")
        if self.cluster and found.get("cluster_id") != self.cluster:
            raise click.ClickException(
                f"the admin port {self} belongs to another cluster, {found.get('cluster_id')!r}, than the nodes of "
                f"Kafka's address, {self.cluster!r}: name the right one with --admin"
            )

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
        advice = "; see --admin-token-file" if response.status == HTTPStatus.UNAUTHORIZED else ""
        raise click.ClickException(f"{self} {path}: {response.status} {reason or response.reason}{advice}")

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
            if error.reason == "WRONG_VERSION_NUMBER":
                raise click.ClickException(f"{self} does not answer with TLS: leave out https://") from None
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
            f"cannot reach the admin port {self}: {_why(error)}; start the node, or name one with --bootstrap-server, "
            "--admin or --config"
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
    context: "ssl.SSLContext | None" = None
    """TLS of Kafka's connections, which is used if nothing names authorities or a certificate for the port."""

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
        certificate, context = self.certificate_file or profile.admin_certificate_file, None
        if has_tls:
            context = None if ca_file or certificate else self.context
            context = context or _context(ca_file, certificate)
        return AdminPort(host, port, self._token(settings, profile), context)

    def of_node(self, *names: Path | None) -> Self:
        """Return the options without the profile if a file, a folder or a variable says where the port is."""
        return replace(self, profile=NO_PROFILE) if _names_port(*names) else self

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


def _names_port(*names: Path | None) -> bool:
    return any([*names, *map(os.environ.get, _ADDRESS)])


_ADDRESS: Final = (CONFIG_ENV, *(f"{ENV_PREFIX}ADMIN_{name}" for name in ("ENABLED", "HOST", "PORT")))
"""Variables that say where the port is."""
_VARIABLES: Final = (CONFIG_ENV, f"{ENV_PREFIX}ADMIN_")
"""Beginnings of the variables with settings of the port."""


def admin_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an admin port, each under its own name."""
    wrapped = command
    for name, metavar, text in reversed(_ADMIN_OPTIONS):
        kind = None if name == "--admin" else click.Path(path_type=Path)
        wrapped = click.option(name, metavar=metavar, type=kind, help=text)(wrapped)
    return wrapped


_ADMIN_OPTIONS: Final = (
    (
        "--admin",
        "[https://]HOST:PORT",
        "Admin port of a running node  [default: of a --bootstrap-server, else from the settings, else the profile]",
    ),
    ("--admin-token-file", "FILE", "File whose first line is the token for it  [default: from the settings]"),
    (
        "--admin-ca-file",
        "FILE",
        "Authorities of its certificate (PEM)  [default: from the settings, else the system's]",
    ),
    ("--admin-certificate-file", "FILE", "Certificate and private key to show it (PEM)."),
)


def _taken(arguments: dict[str, Any], profile: Profile) -> AdminOptions:
    """Take the values of `admin_options` out of a command's arguments."""
    admin, token, ca, certificate = (
        arguments.pop(f"admin{end}") for end in ("", "_token_file", "_ca_file", "_certificate_file")
    )
    return AdminOptions(admin, token, ca, certificate, profile)


def admin_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name an admin port; the command receives them as `admin`."""

    def run(profile_name: str | None, **arguments: Any) -> None:
        admin = _taken(arguments, chosen_profile(profile_name))
        command(admin=admin, **arguments)

    return admin_options(profile_option(update_wrapper(run, command)))


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """The options that find a running node."""

    admin: AdminOptions
    client: CommandClient
    config_file: Path | None = None

    def find(self) -> AdminPort:
        """Return the node's admin port. Raises ClientError, ClickException.

        It is that of `--admin`, else of a node that the client's options name, else of the settings, else of the
        profile, else of a node that the client's properties are about.
        """
        is_known = _names_port(self.config_file) or self.admin.profile.admin or not self.client.properties
        if self.admin.address is None and (self.client.is_given or not is_known):
            return self._find_announced()
        port = self.admin.of_node(self.config_file).find(self._settings())
        if port is None:
            raise click.UsageError("the settings name no admin port (admin.enabled, admin.port): give it with --admin")
        return port

    def _settings(self) -> "AdminSettings | None":
        is_set = self.config_file is not None or any(name.startswith(_VARIABLES) for name in os.environ)
        return read_settings(self.config_file).admin if is_set else None

    def _find_announced(self) -> AdminPort:
        """Return the port that a node announces to Kafka's clients.

        A token must not go to a stranger: that of settings which name a port, and were not named with the nodes, is for
        that port. And of a port that is only assumed nobody knows whether it has TLS.
        """
        announced = announced_port(self.client)
        is_for_another = self.config_file is None and _names_port()
        options = replace(self.admin, address=announced.address, context=self.client.settings.context)
        port = options.find(None if is_for_another else self._settings())
        assert port is not None, "it has an address"
        if port.token and port.context is None and not announced.is_told and not is_loopback(port.host):
            raise click.ClickException(
                f"the node at {port.host} does not tell its admin port (its version is older, or its ACLs forbid it), "
                "and a token is not sent unencrypted unless it does: name the port with --admin"
            )
        return replace(port, cluster=announced.cluster)


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node; the command receives them as `options`."""

    def run(config_file: Path | None, client: CommandClient, **arguments: Any) -> None:
        admin = _taken(arguments, client.profile)
        command(options=NodeOptions(admin, client, config_file), **arguments)

    return config_option(client_options(admin_options(update_wrapper(run, command))))


def on_node(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that find a running node; the command receives its admin port as first argument."""

    @node_options
    def run(options: NodeOptions, **arguments: Any) -> None:
        command(options.find(), **arguments)

    return update_wrapper(run, command)
