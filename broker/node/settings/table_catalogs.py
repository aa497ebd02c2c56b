"""Other catalogs of Iceberg that tables of topics may be published in: their settings, `[table_catalogs.NAME]`.

A topic chooses one by its config `table.publish`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from anabranch.broker.node.settings.area import Area, Secret, setting
from anabranch.broker.node.settings.errors import SettingsError

if TYPE_CHECKING:
    from anabranch.tables.publication import ExternalCatalog

_HTTP: Final = re.compile(r"https?://[^/]", re.IGNORECASE)
_DATABASE: Final = re.compile(r"(sqlite|postgresql)://")
_OF_REST: Final = ("warehouse", "token", "credential", "oauth2_server_uri", "scope", "headers", "ca_file")
_OF_JDBC: Final = ("catalog_name", "password")


@dataclass(frozen=True, kw_only=True)
class TableCatalogSettings(Area):
    """Another catalog of Iceberg, `[table_catalogs.NAME]`."""

    type: Literal["rest", "jdbc"] = setting(
        description="Kind of catalog: `rest`, Iceberg's REST protocol, or `jdbc`, the tables of a database that "
        "Iceberg's JDBC catalog has."
    )
    uri: str = setting(
        description="Address: of a REST catalog, without `/v1`; of a database, `postgresql://USER@HOST/DB` or "
        "`sqlite:///PATH`."
    )
    namespace: str = setting(
        default="default",
        min_length=1,
        description="Namespace of the tables there, its levels separated by dots. It is created if it is missing.",
    )
    warehouse: str = setting(default="", description="REST: warehouse, as the catalog calls it.")
    token: Secret | None = setting(default=None, description="REST: bearer token.")
    credential: Secret | None = setting(
        default=None, description="REST: `CLIENT_ID:CLIENT_SECRET`, for a token by OAuth's client credentials."
    )
    oauth2_server_uri: str = setting(
        default="", description="REST: where such a token is fetched. Empty: the catalog's own `/v1/oauth/tokens`."
    )
    scope: str = setting(default="", description="REST: scope of such a token. Empty: `catalog`.")
    headers: Secret | None = setting(
        default=None, description="REST: further headers of each request, `NAME: VALUE`, one a line."
    )
    ca_file: Path | None = setting(
        default=None, description="REST: PEM file with the authorities of its certificate. Unset: those of the system."
    )
    catalog_name: str = setting(
        default="", description="JDBC: name of the catalog in the database. Empty: the name of this table of settings."
    )
    password: Secret | None = setting(default=None, description="JDBC: password of the database's user.")


def check_table_catalog(name: str, area: TableCatalogSettings) -> None:
    """Check rules that concern several settings of a catalog. Raises SettingsError."""
    where = f"setting table_catalogs.{name}"
    pattern, expected = (
        (_HTTP, "an address such as https://catalog.example.com")
        if area.type == "rest"
        else (_DATABASE, "postgresql://USER@HOST/DB or sqlite:///PATH")
    )
    if not pattern.match(area.uri):
        raise SettingsError(f"{where}.uri: expected {expected}")  # what was found may hold a password
    for other in _OF_JDBC if area.type == "rest" else _OF_REST:
        if getattr(area, other):
            raise SettingsError(f"{where}.{other}: set, but a catalog of type {area.type!r} has no use for it")
    if area.token is not None and area.credential is not None:
        raise SettingsError(f"{where}.token: set, but so is credential, for which a token is fetched")
    if not all(area.namespace.split(".")):
        raise SettingsError(f"{where}.namespace: expected names separated by dots, found {area.namespace!r}")
    _headers_of(name, area)


def _headers_of(name: str, area: TableCatalogSettings) -> Mapping[str, str]:
    found = {}
    for line in (area.headers.reveal() if area.headers is not None else "").splitlines():
        header, colon, value = line.partition(":")
        if line.strip():
            if not colon or not header.strip():
                raise SettingsError(f"setting table_catalogs.{name}.headers: expected lines of NAME: VALUE")
            found[header.strip()] = value.strip()
    return found


def external_catalog(name: str, area: TableCatalogSettings) -> "ExternalCatalog":
    """Return a catalog as the process that publishes is told of it."""
    from anabranch.tables.publication import ExternalCatalog  # late: most nodes publish nothing

    headers = _headers_of(name, area)
    named = {
        "warehouse": area.warehouse,
        "token": _revealed(area.token),
        "credential": _revealed(area.credential),
        "oauth2-server-uri": area.oauth2_server_uri,
        "scope": area.scope,
        **{f"header.{header}": value for header, value in headers.items()},
    }
    secrets = [_revealed(area.token), _revealed(area.password), *headers.values()]
    secrets += [_revealed(area.credential), _revealed(area.credential).partition(":")[2]]
    if found := re.match(r"\w+://[^/@]*:([^/@]+)@", area.uri):
        secrets.append(found[1])
    return ExternalCatalog(
        name=name,
        type=area.type,
        uri=area.uri.rstrip("/") if area.type == "rest" else area.uri,
        namespace=tuple(area.namespace.split(".")),
        catalog_name=area.catalog_name or name,
        properties={key: value for key, value in named.items() if value},
        ca_file="" if area.ca_file is None else str(area.ca_file.absolute()),
        password=_revealed(area.password),
        secrets=[each for each in secrets if each],
    )


def _revealed(secret: Secret | None) -> str:
    return "" if secret is None else secret.reveal()
