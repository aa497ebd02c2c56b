"""Life cycle of objects and files of tables: prepared, then committed, or destroyed and deleted after their deadline.

Each method is the body of one transaction.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Table, delete, update

from anabranch.s3stream.catalog.rows import chunks
from anabranch.s3stream.catalog.table_values import TableFile
from anabranch.s3stream.errors import CatalogError, NotFound
from anabranch.s3stream.model import ObjectInfo, ObjectState


@dataclass(frozen=True, slots=True)
class LifeCycle:
    """The rows of one table of the catalog, by id. Each has a state and a deadline."""

    noun: str
    rows: Table
    key: Column[Any]
    find: Callable[[Connection, Collection[int]], Mapping[int, ObjectInfo | TableFile]]

    def note_multipart(self, connection: Connection, key: int, upload_id: str) -> None:
        """Store the multipart upload id of a prepared one. Raises NotFound."""
        prepared = (self.key == key, self.rows.c.state == int(ObjectState.PREPARED))
        if connection.execute(update(self.rows).where(*prepared).values(upload_id=upload_id)).rowcount != 1:
            raise NotFound(f"{self.noun} {key} is not prepared: it never was, or it was committed or reaped meanwhile")

    def expire(self, connection: Connection, keys: Collection[int], now_ms: int) -> Sequence[int]:
        """Make prepared ones past their deadline destroyed; returns which of the ids are destroyed and due."""
        for piece in chunks(keys):
            connection.execute(
                update(self.rows)
                .where(self.key.in_(piece))
                .where(self.rows.c.state == int(ObjectState.PREPARED), self.rows.c.deadline_ms <= now_ms)
                .values(state=int(ObjectState.DESTROYED))
            )
        found = self.find(connection, keys)
        # One that was committed and replaced meanwhile is destroyed too, and kept for readers until its new deadline.
        return [
            key for key, info in found.items() if info.state is ObjectState.DESTROYED and info.deadline_ms <= now_ms
        ]

    def discard(self, connection: Connection, keys: Collection[int], delete_after_ms: int) -> None:
        """Make prepared ones destroyed, due at `delete_after_ms`; others are not changed."""
        for piece in chunks(keys):
            connection.execute(
                update(self.rows)
                .where(self.key.in_(piece), self.rows.c.state == int(ObjectState.PREPARED))
                .values(state=int(ObjectState.DESTROYED), deadline_ms=delete_after_ms)
            )

    def forget(self, connection: Connection, keys: Collection[int]) -> None:
        """Delete unused ones. Raises CatalogError, and deletes none, when one of them is committed."""
        for key, info in self.find(connection, keys).items():
            if info.state is ObjectState.COMMITTED:
                raise CatalogError(f"{self.noun} {key} is committed and cannot be forgotten")
        for piece in chunks(keys):
            connection.execute(delete(self.rows).where(self.key.in_(piece)))
