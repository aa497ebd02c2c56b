"""Brings the schema from one version to the next, once no node of an older version can be writing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, inspect, literal, select, text

from anabranch.s3stream.catalog.schema import DIALECT_SQL, MIGRATIONS, nodes
from anabranch.s3stream.errors import CatalogError

UNKNOWN_LEASE_MS: Final = 30_000
"""Length of a lease whose row does not tell it."""


@dataclass(frozen=True, slots=True)
class OlderLease:
    """A lease, not ended, of a node that may run an older version."""

    node_id: int
    epoch: int
    lease_until_ms: int
    lease_ms: int


def check_version(connection: Connection, where: str) -> None:
    """Raise CatalogError unless the schema has this program's version."""
    newest = MIGRATIONS[-1][0]
    if not inspect(connection).has_table("schema_version"):
        raise CatalogError(f"catalog {where}: there is no catalog in this database")
    found = _found_version(connection)
    if found < newest:
        raise CatalogError(
            f"catalog {where}: schema version {found} is older than this program's {newest}: it is migrated when a "
            "node of this version starts"
        )
    _refuse_newer(found, where)


def leases_of_older_nodes(connection: Connection) -> Sequence[OlderLease]:
    """Return the leases that have not ended if the schema is an older one."""
    tables = inspect(connection)
    if not tables.has_table("schema_version") or _found_version(connection) in {0, MIGRATIONS[-1][0]}:
        return []
    # Version 4 added the length.
    told = any(column["name"] == "lease_ms" for column in tables.get_columns("nodes"))
    length = nodes.c.lease_ms if told else literal(0)
    query = select(nodes.c.node_id, nodes.c.epoch, nodes.c.lease_until_ms, length)
    return [
        OlderLease(node_id, epoch, until_ms, lease_ms or UNKNOWN_LEASE_MS)
        for node_id, epoch, until_ms, lease_ms in connection.execute(query.where(nodes.c.lease_until_ms > 0))
    ]


def check_no_change(seen: Sequence[OlderLease], found: Sequence[OlderLease], where: str) -> None:
    """Raise CatalogError if a lease was renewed, or begun, since it was seen: its node lives."""
    for lease in found:
        if lease not in seen:
            raise CatalogError(
                f"catalog {where}: node {lease.node_id} of an older version is alive: stop all nodes of older versions "
                f"before the schema is changed to version {MIGRATIONS[-1][0]}"
            )


def migrate(connection: Connection, dialect: str, where: str, *, version: int = MIGRATIONS[-1][0]) -> None:
    """Apply the missing migrations up to `version`. Raises CatalogError for a schema newer than this program."""
    connection.execute(text("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY)"))
    found = _found_version(connection)
    _refuse_newer(found, where)
    for number, statements in MIGRATIONS:
        if found < number <= version:
            for statement in statements:
                connection.exec_driver_sql(statement.format(**DIALECT_SQL[dialect]))
            connection.execute(text("INSERT INTO schema_version (version) VALUES (:version)"), {"version": number})


def _found_version(connection: Connection) -> int:
    return connection.execute(text("SELECT max(version) FROM schema_version")).scalar_one() or 0


def _refuse_newer(found: int, where: str) -> None:
    newest = MIGRATIONS[-1][0]
    if found > newest:
        raise CatalogError(
            f"catalog {where}: schema version {found} is newer than this program's {newest}: use the version of the "
            "nodes"
        )
