"""Rules about settings that concern more than one of them."""

import re
from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

from anabranch.broker.node.settings.admin_area import check_admin
from anabranch.broker.node.settings.authorizer_area import super_users_of
from anabranch.broker.node.settings.delegation_token_area import check_delegation_tokens
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.sasl_area import check_sasl
from anabranch.broker.node.settings.ssl_area import check_internal_ssl, check_ssl
from anabranch.broker.node.settings.storage_areas import BucketArea
from anabranch.broker.node.settings.table_catalogs import check_table_catalog
from anabranch.broker.node.settings.tables_area import check_tables

_ENDPOINT: Final = re.compile(r"https?://[^/]", re.IGNORECASE)
_CATALOG_URL: Final = re.compile(r"(sqlite|postgresql)(\+\w+)?://")
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def _check_endpoint(name: str, endpoint: str) -> None:
    if endpoint and not _ENDPOINT.match(endpoint):
        raise SettingsError(f"setting {name}: expected an address such as http://127.0.0.1:9000, found {endpoint!r}")


def _check_protection(area: str, bucket: BucketArea) -> None:
    if problem := bucket.protection.problem():
        raise SettingsError(f"setting {area}.{problem[0]}: {problem[1]}")


def _check_auto_id(settings: Settings) -> None:
    if settings.wal.path is not None and settings.wal.kind == "device":
        raise SettingsError(
            "setting wal.path: set, but with node.node_id = auto each node has its log in a folder of its own: leave "
            "one of them out"
        )
    if settings.node.processes != 1:
        raise SettingsError(
            "setting node.processes: more than 1, but with node.node_id = auto a start is one node: start several, or "
            "set the id of the first one"
        )


def check_together(settings: Settings) -> None:
    """Check rules that concern several settings. Raises SettingsError."""
    if settings.objects.store == "s3" and not settings.objects.bucket:
        raise SettingsError("setting objects.bucket: empty, but objects.store is 's3', which needs a bucket")
    _check_endpoint("objects.endpoint", settings.objects.endpoint)
    _check_endpoint("admin.schema_registry_url", settings.admin.schema_registry_url or "")
    _check_endpoint("tables.registry", settings.tables.registry or "")
    _check_protection("objects", settings.objects)
    if settings.catalog.url and not _CATALOG_URL.match(settings.catalog.url):
        # What was found is not shown: it may hold a password.
        raise SettingsError("setting catalog.url: expected sqlite:///PATH or postgresql://USER@HOST/DB")
    for name, store in settings.stores.items():
        if name == settings.objects.store:
            raise SettingsError(f"store {name!r}: this is the name of the store that [objects] describes")
        if store.type == "s3" and not store.bucket:
            raise SettingsError(f"setting stores.{name}.bucket: empty, but its type is 's3', which needs a bucket")
        _check_endpoint(f"stores.{name}.endpoint", store.endpoint)
        _check_protection(f"stores.{name}", store)
        if store.type == "local" and store.path is None:
            raise SettingsError(f"setting stores.{name}.path: unset, but its type is 'local', which needs a directory")
    if settings.has_auto_id:
        _check_auto_id(settings)
    group = settings.group
    if group.session_timeout_min_ms > group.session_timeout_max_ms:
        raise SettingsError(
            f"setting group.session_timeout_min_ms: {group.session_timeout_min_ms} is more than "
            f"group.session_timeout_max_ms ({group.session_timeout_max_ms})"
        )
    check_addresses(used_addresses(settings))
    internal = settings.internal_ssl
    is_shared = internal is not None and settings.cluster.internal_ssl_certificate_file is None
    check_ssl(settings.ssl, is_used=settings.uses_tls, is_shared=is_shared)
    if internal is not None:
        check_internal_ssl(internal)
    super_users_of(settings.authorizer)
    check_sasl(settings.sasl, settings.listener.sasl_mechanisms, settings.listeners)
    check_delegation_tokens(settings.delegation_token)
    check_admin(settings.admin)
    check_tables(settings.tables)
    for name, catalog in settings.table_catalogs.items():
        check_table_catalog(name, catalog)
    _check_endpoint("tables.s3_endpoint", settings.tables.s3_endpoint)
    request_max, held_max = settings.network.request_bytes_max, settings.network.node_bytes_max
    if held_max is not None and request_max > held_max:
        raise SettingsError(
            f"setting network.node_bytes_max: {held_max} is less than request_bytes_max ({request_max})"
        )


class UsedAddress(NamedTuple):
    """An address that a node listens at."""

    name: str
    """Its setting, for messages."""
    host: str
    port: int
    """0: any free port."""


def used_addresses(settings: Settings) -> Sequence[UsedAddress]:
    """Return the addresses of the listeners for clients, of the internal port and of the admin port."""
    admin = settings.admin
    is_named = bool(settings.listener.listeners)
    taken = [
        UsedAddress(f"listener.listeners ({each.name})" if is_named else "listener.port", each.host, each.port)
        for each in settings.listeners
    ]
    taken.append(UsedAddress("cluster.internal_port", settings.internal_host, settings.internal_port))
    if admin.is_wanted:
        taken.append(UsedAddress("admin.port", admin.host, admin.port))
    return taken


def check_addresses(taken: Sequence[UsedAddress]) -> None:
    """Refuse one address for two uses. Raises SettingsError."""
    for (other, other_host, other_port), (name, host, port) in combinations(taken, 2):
        if port and port == other_port and share_port(other_host, host):
            how = f"at the same address ({host})" if host == other_host else f"and {other_host} includes {host}"
            raise SettingsError(f"setting {name}: {port} is also {other}, {how}: change one of them")


def share_port(host: str, other: str) -> bool:
    """Return whether sockets listening at these two addresses conflict on the same port."""
    hosts = {host, other}
    return (
        len(hosts) == 1
        or "::" in hosts  # includes the addresses of IPv4
        or ("0.0.0.0" in hosts and ":" not in host + other)  # noqa: S104 - compared with, not bound to
        or ("localhost" in hosts and hosts <= _LOOPBACK)
    )
