"""Settings of the admin port: its address, TLS, and who may read and operate."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal
from urllib.parse import urlsplit

from anabranch.broker.node.settings.area import Area, Port, Secret, setting
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.known import ADMIN_HOST, ADMIN_PORT
from anabranch.broker.node.settings.ssl_area import SslSettings
from anabranch.extras import is_installed

TOKENS: Final = ("read_token", "operate_token", "schemas_token", "tables_token")
"""Settings with a token, each with a setting `..._file`."""


@dataclass(frozen=True, kw_only=True)
class AdminSettings(Area):
    """The HTTP port for metrics, status and maintenance. Without tokens or client certificates, keep it on loopback."""

    enabled: bool | None = setting(
        default=None, description="Listen on the port. Unset: if the extra `console` is installed."
    )
    connect_urls: str = setting(
        default="",
        description="URLs of Kafka Connect clusters, separated by commas: the REST port of a worker of each, as "
        "http://connect:8083, for the console.",
    )
    connect_credentials: Secret | None = setting(
        default=None, description="`user:password` for these clusters (HTTP Basic)."
    )
    on_demand: bool = setting(
        default=False,
        description="Load the server of the port at its first connection.",
    )
    host: str = setting(default=ADMIN_HOST, min_length=1, description="Address to listen on.")
    port: Port = setting(default=ADMIN_PORT, description="Port to listen on; 0 takes a free one.")
    allowed_hosts: str = setting(
        default="",
        description=(
            "Names, separated by commas, by which a port without authentication may be asked (against DNS rebinding), "
            "besides addresses, `localhost`, the machine's name and names that the node announces."
        ),
    )
    read_token: Secret | None = setting(
        default=None,
        description="Bearer token that may read: every GET.",
    )
    read_token_file: Path | None = setting(
        default=None,
        description="File with such tokens, one on each line, which is read for each request.",
    )
    operate_token: Secret | None = setting(
        default=None, description="Bearer token that may read and change everything."
    )
    operate_token_file: Path | None = setting(default=None, description="File with such tokens, likewise.")
    schemas_token: Secret | None = setting(
        default=None,
        description="Bearer token that may read and change what is in the schema registry, and nothing else.",
    )
    schemas_token_file: Path | None = setting(default=None, description="File with such tokens, likewise.")
    tables_token: Secret | None = setting(
        default=None,
        description="Bearer token that may read tables (`/iceberg`), and nothing else.",
    )
    tables_token_file: Path | None = setting(
        default=None,
        description="File with such tokens, likewise. With an authorizer, ACLs of a user decide for a token that "
        "follows the user's name, as in `User:etl TOKEN`.",
    )
    records: Literal["nobody", "operators", "readers"] = setting(
        default="operators",
        description=(
            "Who may see what records contain, and load tables: `nobody`, `operators`, `readers` (whoever may read: a "
            "token for monitoring, too). Tokens for tables load them in any case."
        ),
    )
    schema_registry_url: str | None = setting(
        default=None,
        description="URL of a schema registry with Confluent's interface, to show records in Avro and "
        "protobuf. Unset: the cluster's own registry.",
    )
    schema_registry_credentials: Secret | None = setting(
        default=None, description="`user:password` for the schema registry (HTTP Basic)."
    )
    ssl_certificate_file: Path | None = setting(
        default=None,
        description="PEM file with the port's certificate. Unset: the port has no TLS.",
    )
    ssl_key_file: Path | None = setting(
        default=None,
        description="PEM file with its private key, not encrypted. Unset: it is in `admin.ssl_certificate_file`.",
    )
    ssl_ca_file: Path | None = setting(
        default=None,
        description=(
            "PEM file with the authorities of client certificates. Commands accept the port's certificate "
            "from them, too."
        ),
    )
    ssl_client_auth: Literal["none", "requested", "required"] = setting(
        default="none",
        description="Certificates of clients: `none` (not asked for), `requested` (a client without one needs a "
        "token), `required`. A client with a certificate may read.",
    )
    ssl_operators: str = setting(
        default="",
        description=("Names of client certificates that may change everything, as CN=..., separated by semicolons."),
    )

    metrics_partitions_max: int = setting(
        default=10_000,
        ge=0,
        description=(
            "Partitions led by the node that `/metrics` names, by topic name. Others are counted in "
            "`anabranch_metrics_left_out`."
        ),
    )
    metrics_offsets_max: int = setting(
        default=10_000,
        ge=0,
        description=(
            "Groups and committed offsets that `/metrics` names, oldest groups first. Further groups are "
            "counted likewise."
        ),
    )

    @property
    def connect_clusters(self) -> Mapping[str, str]:
        """URLs of Kafka Connect clusters without a slash at the end, by `host:port`."""
        urls = [url.strip().rstrip("/") for url in self.connect_urls.split(",") if url.strip()]
        return {urlsplit(url).netloc: url for url in urls}

    @property
    def is_wanted(self) -> bool:
        """True if the port is to listen."""
        return is_installed("console") if self.enabled is None else self.enabled

    @property
    def uses_tokens(self) -> bool:
        """True if the port accepts tokens."""
        return any(getattr(self, f"{name}{suffix}") is not None for name in TOKENS for suffix in ("", "_file"))

    @property
    def is_open(self) -> bool:
        """True if every client that reaches the port may do everything."""
        return not self.uses_tokens and self.ssl_client_auth == "none"

    @property
    def operators(self) -> frozenset[str]:
        """Names of the client certificates whose owners may change everything."""
        return frozenset(name.strip() for name in self.ssl_operators.split(";") if name.strip())

    @property
    def ssl(self) -> SslSettings | None:
        """The settings of TLS; None without."""
        if self.ssl_certificate_file is None:
            return None
        return AdminSslSettings(
            certificate_file=self.ssl_certificate_file,
            key_file=self.ssl_key_file,
            ca_file=self.ssl_ca_file,
            client_auth=self.ssl_client_auth,
        )


@dataclass(frozen=True, kw_only=True)
class AdminSslSettings(SslSettings):
    """TLS of the admin port."""

    prefix: ClassVar[str] = "admin.ssl_"


def check_admin(area: AdminSettings) -> None:
    """Check rules that concern several settings of the port. Raises SettingsError."""
    for name in TOKENS:
        if getattr(area, name) is not None and getattr(area, f"{name}_file") is not None:
            raise SettingsError(f"setting admin.{name}_file: set beside admin.{name}: remove one of them")
    if not _are_urls(area.connect_urls):
        raise SettingsError(
            "setting admin.connect_urls: expected URLs such as http://host:port, without a user, each of another host "
            "or port, with commas between them"
        )
    if area.ssl_client_auth != "none":
        for name in ("ssl_certificate_file", "ssl_ca_file"):
            if getattr(area, name) is None:
                raise SettingsError(
                    f"setting admin.{name}: unset, but admin.ssl_client_auth is {area.ssl_client_auth!r}"
                )
        if not (area.operators or area.operate_token or area.operate_token_file):
            raise SettingsError(
                "setting admin.ssl_operators: empty, and there is no operate token: nobody could operate the node"
            )
    elif area.operators:
        raise SettingsError("setting admin.ssl_operators: set, but admin.ssl_client_auth is 'none'")
    if area.ssl_key_file is not None and area.ssl_certificate_file is None:
        raise SettingsError("setting admin.ssl_key_file: set without admin.ssl_certificate_file")


def _are_urls(text: str) -> bool:
    """Return whether a text names web servers, each once."""
    urls = [url.strip() for url in text.split(",") if url.strip()]
    try:
        parts = [urlsplit(url) for url in urls]
        places = {(each.hostname, each.port) for each in parts}
    except ValueError:
        return False
    are_plain = all(
        each.scheme in {"http", "https"}
        and each.hostname
        and "@" not in each.netloc
        and not (each.query or each.fragment)
        for each in parts
    )
    return are_plain and len(places) == len(urls)
