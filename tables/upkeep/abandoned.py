"""Expiry of old snapshots of tables that nobody commits: their topic is gone, or is no table any more.

A table's committer lets its old snapshots go when they are due. Without one the living node with the lowest id does it,
and the others later, one after the other, in case that it cannot. The version that a commit names keeps two nodes from
doing the same. How long snapshots stay is a property in the metadata, which outlives the configs of the topic.
"""

import json
import shutil
from collections.abc import Sequence
from typing import Any, Final

import structlog

from anabranch.extras import MissingExtra
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import TableInfo
from anabranch.s3stream.errors import NodeFenced, NotFound, StorageError, TableChanged
from anabranch.tables.process import ColumnsError
from anabranch.tables.upkeep.commit import RETENTION_PROPERTY, Draft, TableCommits
from anabranch.tables.upkeep.context import UpkeepContext
from anabranch.tables.upkeep.options import DEFAULTS, ENABLE, SNAPSHOT_RETENTION_MS
from anabranch.tables.upkeep.transfers import TableFiles
from anabranch.tables.upkeep.view import TableView

log = structlog.get_logger(__name__)

LOOK_MS: Final = 10 * 60_000
"""Time between two looks at the catalog, and between the turns of two nodes."""


async def find_abandoned(catalog: Catalog, before_ms: int) -> Sequence[TableInfo]:
    """Return the tables with old snapshots, at rest since a time, whose topic is gone or none. Raises StorageError."""
    found = await catalog.tables.list_at_rest(before_ms)
    configs = await catalog.list_topic_configs() if found else {}
    return [table for table in found if configs.get(table.topic_id, {}).get(ENABLE) != "true"]


class AbandonedTables:
    """Lets old snapshots of abandoned tables expire, for one node."""

    def __init__(self, context: UpkeepContext) -> None:
        self._context: Final = context
        self._look_ms = 0
        self._due_ms: dict[bytes, tuple[int, int]] = {}
        """Version of a table, and the time at which its old snapshots were to go, which its metadata says."""
        self._reasons: dict[bytes, str] = {}
        """Reason why a table's snapshots stay, which was logged."""

    async def look(self) -> bool:
        """Expire what is overdue, if it is time to look; returns whether something was.

        Failures are logged, and repeated. Raises NodeFenced.
        """
        now_ms = self._context.now_ms()
        if now_ms < self._look_ms:
            return False
        self._look_ms = now_ms + LOOK_MS
        before_ms = now_ms - LOOK_MS * (1 + self._context.rank())
        try:
            found = await find_abandoned(self._context.catalog, before_ms)
        except StorageError:
            return False
        return any([await self._look_at(table, before_ms) for table in found])

    async def _look_at(self, table: TableInfo, before_ms: int) -> bool:
        version, due_ms = self._due_ms.get(table.table_id, (0, 0))
        if version == table.version and before_ms < due_ms:
            return False
        try:
            return await self._expire(table, before_ms)
        except NodeFenced:
            raise
        except (TableChanged, NotFound):
            return False  # somebody looks after it, or has dropped it
        except (StorageError, ColumnsError, OSError, MissingExtra) as error:
            reason = " ".join(str(error).split())
            if self._reasons.get(table.table_id) != reason:
                log.warning("old snapshots of a table that nobody commits stay", table=table.name, reason=reason)
            self._reasons[table.table_id] = reason
            return False

    async def _expire(self, table: TableInfo, before_ms: int) -> bool:
        """Let all snapshots but the current one go, if it has replaced them for as long as they were to stay."""
        context = self._context
        view = await TableView.read(context.catalog.tables, table.table_id)
        folder = context.folder / f"abandoned-{table.table_id.hex()}"
        files = TableFiles(context.catalog.tables, context.stores, context.pace)
        commits, draft = TableCommits(context, files, folder), Draft()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            metadata: dict[str, Any] = json.loads(await commits.metadata(view))
            retention_ms = int(metadata["properties"].get(RETENTION_PROPERTY, DEFAULTS[SNAPSHOT_RETENTION_MS]))
            due_ms = view.snapshots[-1].committed_ms + retention_ms
            self._due_ms[table.table_id] = view.info.version, due_ms
            if before_ms < due_ms:
                return False
            try:
                await commits.publish(view, draft, summary=None, snapshot_retention_ms=retention_ms)
            except BaseException:
                await commits.discard(draft)
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        log.info("old snapshots of a table that nobody commits have expired", table=table.name)
        return True
