"""A table of the topic `t` of a `MetadataNode`, with files that only the catalog has.

table = await TableNode.started(catalog)
await table.grow(0, 100)                          # the topic's partition 0 has offsets up to 100
await table.append({0: [(0, 60), (60, 100)]})     # the table has them in two files
"""

from collections.abc import Mapping, Sequence
from typing import Final, Self

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import (
    NewTable,
    NewTableFile,
    TableCommit,
    TableFile,
    TableFileKind,
    TableRetention,
    TableState,
    table_location,
)
from anabranch.s3stream.model import NodeIdentity
from tests.support.catalog_node import CLUSTER, MetadataNode, span

TABLE_ID: Final = b"T" * 16
NEW_TABLE: Final = NewTable(TABLE_ID, b"t" * 16, "t", "main", table_location(CLUSTER, TABLE_ID), "schema 1")

Spans = Mapping[int, Sequence[tuple[int, int]]]
"""Start and end of data files, by partition."""


class TableNode:
    """A node that commits to the table."""

    def __init__(self, node: MetadataNode) -> None:
        self.node = node
        self.tables = node.catalog.tables
        self.delete_delay_ms = node.delete_delay_ms
        self._snapshots = 0

    @classmethod
    async def started(
        cls, catalog: Catalog, *, retention: TableRetention = TableRetention.TOPIC, partitions: int = 3
    ) -> Self:
        """Start a node with a topic, and create its table."""
        self = cls(await MetadataNode.started(catalog, partitions))
        wanted = NewTable(
            TABLE_ID, b"t" * 16, "t", "main", NEW_TABLE.location, NEW_TABLE.schema, retention, {"table.value": "json"}
        )
        await self.tables.create(wanted, now_ms=self.now_ms)
        return self

    @property
    def now_ms(self) -> int:
        """Time of all calls."""
        return self.node.clock.ms

    async def state(self) -> TableState:
        """The table now."""
        return await self.tables.read(TABLE_ID)

    async def version(self) -> int:
        """Its version now."""
        return (await self.state()).info.version

    async def grow(self, partition: int, end: int) -> None:
        """Upload records to a partition, up to an offset."""
        stream = self.node.streams[partition]
        start = (await self.node.catalog.get_streams([stream]))[stream].end_offset
        await self.node.upload([span(stream, start, end)])

    async def trim(self, partition: int, start: int) -> None:
        """Trim a partition."""
        await self.node.trim(self.node.streams[partition], start)

    async def prepare(self, *kinds: TableFileKind, node: NodeIdentity | None = None) -> Sequence[TableFile]:
        """Prepare files."""
        return await self.tables.prepare_files(
            TABLE_ID,
            kinds,
            node=node or self.node.identity,
            writer_id=self.node.new_writer_id(),
            now_ms=self.now_ms,
            deadline_ms=self.now_ms + self.node.prepare_ttl_ms,
        )

    async def change(
        self,
        spans: Spans | None = None,
        *,
        removed: Sequence[TableFile] = (),
        version: int | None = None,
        snapshot: bool = True,
        manifests: int = 1,
        schema: str = "",
        expire_before: int = 0,
        node: NodeIdentity | None = None,
    ) -> TableCommit:
        """Prepare the files of a commit, and return it: data files, manifests with a snapshot, metadata."""
        places = [(idx, *bounds) for idx, some in (spans or {}).items() for bounds in some]
        listed = manifests if snapshot else 0
        kinds = [TableFileKind.DATA] * len(places) + [TableFileKind.MANIFEST] * listed + [TableFileKind.METADATA]
        files = await self.prepare(*kinds, node=node)
        ids = [file.file_id for file in files]
        self._snapshots += 1
        data = [
            NewTableFile(file_id, 1_000, 7, idx, start, end, end - start, schema_id=1)
            for file_id, (idx, start, end) in zip(ids, places, strict=False)
        ]
        return TableCommit(
            node=node or self.node.identity,
            table_id=TABLE_ID,
            version=await self.version() if version is None else version,
            added=[*data, *(NewTableFile(file_id, 50, 8) for file_id in ids[len(places) :])],
            now_ms=self.now_ms,
            delete_after_ms=self.now_ms + self.delete_delay_ms,
            removed=[file.file_id for file in removed],
            snapshot_id=1_000_000 * (node or self.node.identity).node_id + self._snapshots if snapshot else 0,
            schema=schema,
            expire_before=expire_before,
        )

    async def append(self, spans: Spans, *, removed: Sequence[TableFile] = (), expire_before: int = 0) -> TableCommit:
        """Commit a snapshot with more files, and return the commit."""
        commit = await self.change(spans, removed=removed, expire_before=expire_before)
        await self.tables.commit(commit)
        return commit

    async def live(self, partition: int = 0) -> Sequence[TableFile]:
        """The partition's data files in the current snapshot."""
        return await self.tables.list_data_files(TABLE_ID, partition, start_offset=0, limit=1_000)

    async def bounds(self, partition: int = 0) -> list[tuple[int, int]]:
        """Start and end of these."""
        return [(file.start_offset, file.end_offset) for file in await self.live(partition)]

    async def due(self, now_ms: int) -> list[int]:
        """Ids of the files that may be deleted at a time."""
        return sorted(file.file_id for file in await self.tables.list_reapable(now_ms=now_ms, limit=1_000))
