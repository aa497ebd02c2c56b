"""A table of a topic of a running node, to which a test commits in place of the node.

The metadata is what Iceberg's readers find in the store; manifests and data files are no such files.

    table = await MadeTable.created(node, "orders")       # the topic and its table, without metadata
    stored = await table.commit()                         # a snapshot without data: its metadata, as stored

    table = await MadeTable.of(node, "t")
    await table.commit({0: [(0, 60)]})                    # partition 0 has at least 60 uploaded records
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from uuid import UUID

from crc32c import crc32c

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.table_values import (
    NewTable,
    NewTableFile,
    TableCommit,
    TableFile,
    TableFileKind,
    TableInfo,
    TableRetention,
    table_location,
)

FIELDS: Final[Sequence[Mapping[str, Any]]] = (
    {"id": 1, "name": "id", "required": False, "type": "long"},
    {
        "id": 2,
        "name": "tags",
        "required": False,
        "type": {"type": "list", "element-id": 3, "element": "string", "element-required": False},
    },
    {
        "id": 4,
        "name": "_kafka",
        "required": True,
        "type": {"type": "struct", "fields": [{"id": 5, "name": "offset", "required": True, "type": "long"}]},
    },
)
DATA: Final = b"PAR1"
MANIFEST: Final = b"Obj\1"
TTL_MS: Final = 3_600_000
DELETE_DELAY_MS: Final = 60_000
FIRST_ID: Final = 1_000
"""The id of a snapshot is that of the version of its commit, and this."""


class MadeTable:
    """A table, and what its metadata says."""

    def __init__(self, node: Node, info: TableInfo) -> None:
        self.info = info
        self.metadata: list[TableFile] = []
        """Files of the metadata of all versions."""
        self._node = node
        self._tables = node.serving.catalog.tables
        self._context = node.upkeep.compaction_context
        self._snapshots: list[dict[str, Any]] = []
        self._rows = 0

    @classmethod
    async def of(cls, node: Node, topic: str, retention: TableRetention = TableRetention.TOPIC) -> Self:
        """Create the table of a topic."""
        table_id = (topic.encode() * 16)[:16]
        cluster = node.serving.settings.node.cluster
        found = node.serving.topics.require(topic)
        wanted = NewTable(
            table_id, found.topic_id, topic, found.config.store, table_location(cluster, table_id), "1", retention
        )
        return cls(node, await node.serving.catalog.tables.create(wanted, now_ms=node.serving.now_ms()))

    @classmethod
    async def created(cls, node: Node, topic: str, *, retention: TableRetention = TableRetention.TOPIC) -> Self:
        """Create a topic and its table."""
        await node.serving.topic_commands.create(topic, partitions=1, configs={})
        return await cls.of(node, topic, retention)

    async def commit(
        self, spans: Mapping[int, Sequence[tuple[int, int]]] | None = None, *, expire: bool = False
    ) -> bytes:
        """Commit a snapshot with more data files, by partition; returns the metadata. `expire`: those before it."""
        places = [(index, start, end) for index, some in (spans or {}).items() for start, end in some]
        version = len(self.metadata) + 1
        files = await self._prepare(
            [TableFileKind.DATA] * len(places) + [TableFileKind.MANIFEST, TableFileKind.METADATA]
        )
        if expire:
            self._snapshots.clear()
        self._add_snapshot(version, files[-2], sum(end - start for _, start, end in places))
        metadata = json.dumps(self._metadata(version), indent=1).encode()
        contents = [*[DATA] * len(places), MANIFEST, metadata]
        for file, content in zip(files, contents, strict=True):
            await self._node.stores[file.store].put(file.file_key, [content], writer_id=file.writer_id)
        added = [
            NewTableFile(file.file_id, len(content), crc32c(content), *_place(place), schema_id=1 if place else 0)
            for file, content, place in zip(files, contents, [*places, None, None], strict=True)
        ]
        now_ms = self._node.serving.now_ms()
        await self._tables.commit(
            TableCommit(
                node=self._context.identity,
                table_id=self.info.table_id,
                version=version - 1,
                added=added,
                now_ms=now_ms,
                delete_after_ms=now_ms + DELETE_DELAY_MS,
                snapshot_id=FIRST_ID + version,
                expire_before=version if expire else 0,
            )
        )
        self.metadata.append(files[-1])
        return metadata

    async def _prepare(self, kinds: Sequence[TableFileKind]) -> Sequence[TableFile]:
        now_ms = self._node.serving.now_ms()
        return await self._tables.prepare_files(
            self.info.table_id,
            kinds,
            node=self._context.identity,
            writer_id=self._context.new_writer_id(),
            now_ms=now_ms,
            deadline_ms=now_ms + TTL_MS,
        )

    def _add_snapshot(self, version: int, manifest: TableFile, rows: int) -> None:
        self._rows += rows
        self._snapshots.append(
            {
                "snapshot-id": FIRST_ID + version,
                "sequence-number": version,
                "timestamp-ms": self._node.serving.now_ms(),
                "manifest-list": self._node.stores[manifest.store].uri(manifest.file_key),
                "summary": {"operation": "append", "added-records": str(rows), "total-records": str(self._rows)},
                "schema-id": 1,
            }
        )

    def _metadata(self, version: int) -> Mapping[str, Any]:
        return {
            "format-version": 2,
            "table-uuid": str(UUID(bytes=self.info.table_id)),
            "location": self._node.stores[self.info.store].uri(self.info.location),
            "last-sequence-number": version,
            "last-updated-ms": self._node.serving.now_ms(),
            "last-column-id": 5,
            "current-schema-id": 1,
            "schemas": [
                {"type": "struct", "schema-id": 0, "fields": []},
                {"type": "struct", "schema-id": 1, "fields": FIELDS},
            ],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": FIRST_ID + version,
            "refs": {"main": {"snapshot-id": FIRST_ID + version, "type": "branch"}},
            "snapshots": self._snapshots,
            "snapshot-log": [],
            "metadata-log": [],
        }


def _place(place: tuple[int, int, int] | None) -> tuple[int, int, int, int]:
    """Return partition, start, end and count of rows of a file."""
    if place is None:
        return -1, 0, 0, 0
    index, start, end = place
    return index, start, end, end - start
