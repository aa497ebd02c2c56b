"""A table of a topic of a running node, made by hand: files that the store has, and the catalog names.

The data files are no Parquet; the metadata is what Iceberg's readers find there.

    table = await MadeTable.of(node, "t")
    await table.append({0: [(0, 60)]})        # the topic's partition 0 has at least 60 uploaded records
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

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


class MadeTable:
    """A table, and what its metadata says."""

    def __init__(self, node: Node, info: TableInfo) -> None:
        self.info = info
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

    async def append(self, spans: Mapping[int, Sequence[tuple[int, int]]]) -> int:
        """Commit a snapshot with more data files, by partition, and return the table's version."""
        places = [(index, start, end) for index, some in spans.items() for start, end in some]
        kinds = [TableFileKind.DATA] * len(places) + [TableFileKind.MANIFEST, TableFileKind.METADATA]
        now_ms, identity = self._node.serving.now_ms(), self._context.identity
        writer_id = self._context.new_writer_id()
        files = await self._tables.prepare_files(
            self.info.table_id,
            kinds,
            node=identity,
            writer_id=writer_id,
            now_ms=now_ms,
            deadline_ms=now_ms + 3_600_000,
        )
        version = (await self._tables.read(self.info.table_id)).info.version
        metadata = self._metadata(version + 1, now_ms, sum(end - start for _, start, end in places))
        contents = [*[DATA] * len(places), b"Obj\1", json.dumps(metadata).encode()]
        for file, content in zip(files, contents, strict=True):
            await self._node.stores[self.info.store].put(file.file_key, [content], writer_id=writer_id)
        added = [
            NewTableFile(file.file_id, len(content), 7, *_place(file, place), schema_id=1 if place else 0)
            for file, content, place in zip(files, contents, [*places, None, None], strict=True)
        ]
        return await self._tables.commit(
            TableCommit(
                node=identity,
                table_id=self.info.table_id,
                version=version,
                added=added,
                now_ms=now_ms,
                delete_after_ms=now_ms + 60_000,
                snapshot_id=version + 1,
            )
        )

    def _metadata(self, version: int, now_ms: int, rows: int) -> Mapping[str, Any]:
        self._rows += rows
        summary = {"operation": "append", "added-records": str(rows), "total-records": str(self._rows)}
        self._snapshots.append({"snapshot-id": version, "timestamp-ms": now_ms, "summary": summary})
        return {
            "format-version": 2,
            "current-schema-id": 1,
            "schemas": [{"schema-id": 0, "fields": []}, {"schema-id": 1, "fields": FIELDS}],
            "current-snapshot-id": version,
            "snapshots": self._snapshots,
        }


def _place(file: TableFile, place: tuple[int, int, int] | None) -> tuple[int, int, int, int]:
    """Return partition, start, end and count of rows of a file."""
    if place is None:
        return -1, 0, 0, 0
    assert file.kind is TableFileKind.DATA
    index, start, end = place
    return index, start, end, end - start
