"""Tables of a running node whose metadata is in its store, made by the test instead of by the node.

table = await StoredTable.created(node, "orders")     # the topic and its table, without metadata
stored = await table.commit()                         # a snapshot without data: its metadata, as stored
"""

import json
from typing import Any, Self

from crc32c import crc32c

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.table_values import (
    NewTable,
    NewTableFile,
    TableCommit,
    TableFile,
    TableFileKind,
    TableRetention,
)
from anabranch.s3stream.model import NodeIdentity
from tests.support.waiting import until

TTL_MS = 600_000
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 1,
    "fields": [{"id": 1, "name": "value", "type": "binary", "required": False}],
}


class StoredTable:
    """A table, to which the test commits as the node would."""

    def __init__(self, node: Node, name: str, table_id: bytes) -> None:
        self.node = node
        self.name = name
        self.table_id = table_id
        self.tables = node.serving.catalog.tables
        self.location = f"table/{node.serving.settings.node.cluster}/{table_id.hex()}"
        self.snapshots: list[dict[str, Any]] = []
        self.metadata: list[TableFile] = []
        """Files of the metadata of all versions."""

    @classmethod
    async def created(cls, node: Node, name: str, *, retention: TableRetention = TableRetention.TOPIC) -> Self:
        """Create a topic and its table."""
        created = await node.serving.topic_commands.create(name, partitions=1, configs={})
        self = cls(node, name, bytes(created.info.topic_id[::-1]))
        store = next(iter(node.stores))
        wanted = NewTable(self.table_id, created.info.topic_id, name, store, self.location, "schema 1", retention)
        await self.tables.create(wanted, now_ms=self.now_ms)
        return self

    @property
    def now_ms(self) -> int:
        """Time of the node."""
        return self.node.serving.now_ms()

    async def commit(self, *, expire: bool = False) -> bytes:
        """Commit a snapshot without data, and return the metadata. `expire`: the snapshots before it."""
        version = len(self.metadata) + 1
        manifest, metadata = await self.prepare(TableFileKind.MANIFEST, TableFileKind.METADATA)
        snapshot_id = 1_000 + version
        if expire:
            self.snapshots.clear()
        self.snapshots.append(
            {
                "snapshot-id": snapshot_id,
                "sequence-number": version,
                "timestamp-ms": self.now_ms,
                "manifest-list": self.node.stores[manifest.store].uri(manifest.file_key),
                "summary": {"operation": "append"},
                "schema-id": 1,
            }
        )
        stored = [b"manifests", self._metadata(version, snapshot_id)]
        for file, content in zip((manifest, metadata), stored, strict=True):
            await self.node.stores[file.store].put(file.file_key, [content], writer_id=file.writer_id)
        await self.tables.commit(
            TableCommit(
                node=self.identity,
                table_id=self.table_id,
                version=version - 1,
                added=[
                    NewTableFile(file.file_id, len(content), crc32c(content))
                    for file, content in zip((manifest, metadata), stored, strict=True)
                ],
                now_ms=self.now_ms,
                delete_after_ms=self.now_ms,
                snapshot_id=snapshot_id,
                expire_before=version if expire else 0,
            )
        )
        self.metadata.append(metadata)
        return stored[1]

    async def prepare(self, *kinds: TableFileKind) -> list[TableFile]:
        """Prepare files."""
        return list(
            await self.tables.prepare_files(
                self.table_id,
                kinds,
                node=self.identity,
                writer_id="test",
                now_ms=self.now_ms,
                deadline_ms=self.now_ms + TTL_MS,
            )
        )

    async def until_known(self, other: Node) -> None:
        """Wait until another node knows the topic."""
        await until(lambda: other.serving.topics.get(self.name) is not None)

    @property
    def identity(self) -> NodeIdentity:
        """Registration of the node."""
        return NodeIdentity(self.node.serving.node_id, self.node.serving.members.own.epoch)

    def _metadata(self, version: int, snapshot_id: int) -> bytes:
        place = self.node.stores[next(iter(self.node.stores))].uri(self.location)
        uuid = self.table_id.hex()
        metadata = {
            "format-version": 2,
            "table-uuid": f"{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}",
            "location": place,
            "last-sequence-number": version,
            "last-updated-ms": self.now_ms,
            "last-column-id": 1,
            "current-schema-id": 1,
            "schemas": [SCHEMA],
            "default-spec-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "properties": {},
            "current-snapshot-id": snapshot_id,
            "refs": {"main": {"snapshot-id": snapshot_id, "type": "branch"}},
            "snapshots": self.snapshots,
            "snapshot-log": [],
            "metadata-log": [],
        }
        return json.dumps(metadata, indent=1).encode()
