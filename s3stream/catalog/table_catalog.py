"""The part of the catalog that has the tables of topics. `TABLES.md` describes what each command keeps true.

As in `Catalog`, each method is one transaction, commands are idempotent, and times are ms since 1970.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from anabranch.s3stream.catalog import table_rows
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.deadline import Deadline
from anabranch.s3stream.catalog.table_values import (
    NamedTable,
    NewTable,
    TableCommit,
    TableFile,
    TableFileKind,
    TableInfo,
    TableState,
    TableTotals,
)
from anabranch.s3stream.model import NodeIdentity

Result = TypeVar("Result")


class ChangeAsNode(Protocol):
    """Runs a command that manifests must hold soon, for the registration that the catalog acts for."""

    def __call__(self, command: Callable[[Connection], Result], /) -> Coroutine[Any, Any, Result]:
        """Run the command in one transaction. Raises NodeFenced."""


class TableCatalog:
    """Tables of topics: their files, snapshots, and the offsets that they have."""

    def __init__(self, database: Database, change_as_node: ChangeAsNode) -> None:
        self._database = database
        self._change_as_node = change_as_node

    async def create(self, wanted: NewTable, *, now_ms: int) -> TableInfo:
        """Create a table without snapshot and metadata.

        Raises NotFound without its topic, or if that has other configs than named; AlreadyExists if the topic has
        another table, or another table the name.
        """
        return await self._change_as_node(lambda c: table_rows.create_table(c, wanted, now_ms))

    async def drop(self, table_id: bytes, *, keep_files: bool, now_ms: int, delete_after_ms: int) -> None:
        """Drop a table. Its files are deleted, or with `keep_files` left in the store, where nobody looks after them.

        Ignores a table that does not exist.
        """
        deadline = Deadline(now_ms, delete_after_ms)
        await self._change_as_node(lambda c: table_rows.drop_table(c, table_id, deadline.ms, keep_files=keep_files))

    async def set_options(self, table_id: bytes, options: Mapping[str, str]) -> None:
        """Replace the options of a table. Raises NotFound."""
        await self._change_as_node(lambda c: table_rows.set_options(c, table_id, options))

    async def list(self) -> Sequence[TableInfo]:
        """Return all tables by name."""
        return await self._database.read(table_rows.list_tables)

    async def of_topic(self, topic_id: bytes) -> TableInfo | None:
        """Return the table of a topic, None if it has none."""
        return await self._database.read(lambda c: table_rows.find_table_of(c, topic_id))

    async def read(self, table_id: bytes) -> TableState:
        """Return a table with its schemas, bounds and snapshots, of one moment. Raises NotFound."""
        return await self._database.read(lambda c: table_rows.read_table(c, table_id))

    async def count_data(self) -> Mapping[bytes, TableTotals]:
        """Count the data files that each table has now, by table id. Tables without any are left out."""
        return await self._database.read(table_rows.count_data)

    async def list_at_rest(self, before_ms: int) -> Sequence[TableInfo]:
        """Return the tables with more than one snapshot whose current one was committed up to a time."""
        return await self._database.read(lambda c: table_rows.list_tables_at_rest(c, before_ms))

    async def find(self, name: str) -> NamedTable:
        """Return a table by its name, with the row of its metadata, of one moment. Raises NotFound."""
        return await self._database.read(lambda c: table_rows.find_table(c, name))

    async def list_data_files(self, table_id: bytes, idx: int, *, start_offset: int, limit: int) -> Sequence[TableFile]:
        """Return the first data files of a partition from an offset on that the table has now, in order.

        One that the offset lies inside of is the first one.
        """
        return await self._database.read(lambda c: table_rows.list_data_files(c, table_id, idx, start_offset, limit))

    async def list_live_files(self, table_id: bytes, *, after: tuple[int, int], limit: int) -> Sequence[TableFile]:
        """Return the first data files past a partition and start offset that the table has now, in this order."""
        return await self._database.read(lambda c: table_rows.list_live_files(c, table_id, after, limit))

    async def list_manifests(self, table_id: bytes) -> Sequence[TableFile]:
        """Return the manifests of the current snapshot, and its manifest list, which is the last one."""
        return await self._database.read(lambda c: table_rows.list_manifests(c, table_id))

    async def list_files(self, *, after: int, limit: int) -> Sequence[TableFile]:
        """Return the first `limit` files, of any table and in any state, with ids above `after`, by id."""
        return await self._database.read(lambda c: table_rows.list_files(c, after, limit))

    async def get_files(self, file_ids: Collection[int]) -> Mapping[int, TableFile]:
        """Return the files that exist, in any state, by id."""
        return await self._database.read(lambda c: table_rows.find_files(c, file_ids))

    async def list_trimmed_files(self, table_id: bytes, *, limit: int) -> Sequence[TableFile]:
        """Return data files that the table has and its topic has left, by partition and offset.

        Empty for a table that keeps them, and for one whose topic is detached or deleted.
        """
        return await self._database.read(lambda c: table_rows.list_trimmed_files(c, table_id, limit))

    async def prepare_files(
        self,
        table_id: bytes,
        kinds: Sequence[TableFileKind],
        *,
        node: NodeIdentity,
        writer_id: str,
        now_ms: int,
        deadline_ms: int,
    ) -> Sequence[TableFile]:
        """Reserve ids and keys, never used before, for files that are about to be written, in the order of `kinds`.

        Raises NodeFenced, NotFound.
        """
        deadline = Deadline(now_ms, deadline_ms)

        def prepare(connection: Connection) -> Sequence[TableFile]:
            wanted = table_rows.NewTableFiles(kinds, writer_id, deadline.ms)
            return table_rows.prepare_files(connection, table_id, wanted, node)

        return await self._database.write(prepare)

    async def note_multipart(self, file_id: int, upload_id: str) -> None:
        """Record the multipart upload of a prepared file, so that a later process can abort it. Raises NotFound."""
        await self._database.write(lambda c: table_rows.LIFE_CYCLE.note_multipart(c, file_id, upload_id))

    async def commit(self, commit: TableCommit) -> int:
        """Bring a table to its next version, and return its number. A commit that took effect returns it again.

        Raises TableChanged when another commit was first, NodeFenced, NotFound, and CatalogError for files that would
        leave a gap, have an offset twice, or pass the topic's end. After CatalogUnavailable repeat it as it was, with a
        `delete_after_ms` of then.
        """
        deadline = Deadline(commit.now_ms, commit.delete_after_ms)
        return await self._database.write(
            lambda c: table_rows.commit_table(c, replace(commit, delete_after_ms=deadline.ms))
        )

    async def discard_files(self, file_ids: Sequence[int], *, now_ms: int, delete_after_ms: int) -> None:
        """Make prepared files destroyed: no commit can follow, and they are collected from `delete_after_ms` on.

        Files in other states are not changed: a writer may call this after a commit whose outcome it does not know.
        """
        deadline = Deadline(now_ms, delete_after_ms)
        await self._database.write(lambda c: table_rows.LIFE_CYCLE.discard(c, file_ids, deadline.ms))

    async def list_reapable(self, *, now_ms: int, limit: int) -> Sequence[TableFile]:
        """Return prepared or destroyed files past their deadline that no unexpired snapshot names."""
        return await self._database.read(lambda c: table_rows.list_reapable_files(c, now_ms, limit))

    async def expire_files(self, file_ids: Sequence[int], *, now_ms: int) -> Sequence[int]:
        """Make prepared files past their deadline destroyed, so that their writers can no longer commit them.

        Returns which of the ids are destroyed and past their deadline: only those may be deleted from the store.
        """
        return await self._database.write(lambda c: table_rows.LIFE_CYCLE.expire(c, file_ids, now_ms))

    async def forget_files(self, file_ids: Sequence[int]) -> None:
        """Delete the rows of prepared and destroyed files whose bytes are gone from the store."""
        await self._database.write(lambda c: table_rows.LIFE_CYCLE.forget(c, file_ids))
