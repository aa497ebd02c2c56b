"""Brings the schema from one version to the next, and the cluster from one level to the next.

Steps before `FIRST_ADDITIVE` wait until no node of an older version can be writing, and are the level at once. Later
ones are applied beside running nodes of older versions. What they bring is used from the level on, to which somebody
raises the cluster when all nodes know it; until then a node may go back to the older version. A new catalog has the
newest level.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, func, insert, inspect, literal, select, text

from anabranch.s3stream.catalog.rows import ENDED, ChangeKind, next_change
from anabranch.s3stream.catalog.schema import (
    DIALECT_SQL,
    FIRST_ADDITIVE,
    MIGRATIONS,
    nodes,
    schema_additions,
    schema_version,
)
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
    """Raise CatalogError unless the schema has all that this program uses, and a level that it knows."""
    newest = MIGRATIONS[-1][0]
    if not inspect(connection).has_table("schema_version"):
        raise CatalogError(f"catalog {where}: there is no catalog in this database")
    _refuse_newer(current_level(connection), where)
    found = _made_version(connection)
    if found < newest:
        raise CatalogError(
            f"catalog {where}: schema version {found} is older than this program's {newest}: it is migrated when a "
            "node of this version starts"
        )


def leases_of_older_nodes(connection: Connection) -> Sequence[OlderLease]:
    """Return the leases that have not ended if steps are missing that nodes of older versions must not meet."""
    tables = inspect(connection)
    last = max(version for version, _ in MIGRATIONS if version < FIRST_ADDITIVE)
    if not tables.has_table("schema_version") or not 0 < current_level(connection) < last:
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
    """Apply the missing steps up to `version`. Raises CatalogError for a level newer than this program."""
    for name in ("schema_version", "schema_additions"):
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS {name} (version INTEGER PRIMARY KEY)"))
    level, made = current_level(connection), _made_version(connection)
    _refuse_newer(level, where)
    for number, statements in MIGRATIONS:
        if made < number <= version:
            for statement in statements:
                connection.exec_driver_sql(statement.format(**DIALECT_SQL[dialect]))
            is_level = level == 0 or number < FIRST_ADDITIVE
            connection.execute(insert(schema_version if is_level else schema_additions).values(version=number))


def current_level(connection: Connection) -> int:
    """Return the cluster's level; 0 in a database without any step."""
    return connection.execute(select(func.max(schema_version.c.version))).scalar_one() or 0


def raise_level(connection: Connection, wanted: int) -> None:
    """Raise the cluster's level. Raises CatalogError unless all nodes that may live know it."""
    if wanted == (level := current_level(connection)):
        return  # a repeated command
    check_raise(connection, wanted)
    connection.execute(insert(schema_version), [{"version": number} for number in range(level + 1, wanted + 1)])
    next_change(connection, ChangeKind.CONFIG)


def check_raise(connection: Connection, wanted: int) -> None:
    """Raise CatalogError unless the cluster has the level, or all nodes that may live know it."""
    level, newest = current_level(connection), MIGRATIONS[-1][0]
    if wanted == level:
        return
    if not level < wanted <= newest:
        raise CatalogError(f"the level cannot change from {level} to {wanted}: it only rises, and up to {newest} here")
    query = select(nodes.c.node_id).where(nodes.c.lease_until_ms > ENDED)
    unaware = (nodes.c.level < wanted) | (nodes.c.level_epoch != nodes.c.epoch)
    older = connection.execute(query.where(unaware).order_by(nodes.c.node_id)).scalars().all()
    if older:
        which = f"node {older[0]} runs" if len(older) == 1 else f"nodes {', '.join(map(str, older))} run"
        raise CatalogError(f"{which} a version that does not know level {wanted}: upgrade them first")


def _made_version(connection: Connection) -> int:
    """Return the last step that was applied."""
    level = current_level(connection)
    if not inspect(connection).has_table("schema_additions"):
        return level
    added: int | None = connection.execute(select(func.max(schema_additions.c.version))).scalar_one()
    return max(level, added or 0)


def _refuse_newer(found: int, where: str) -> None:
    newest = MIGRATIONS[-1][0]
    if found > newest:
        raise CatalogError(
            f"catalog {where}: schema version {found} is newer than this program's {newest}: use the version of the "
            "nodes"
        )
