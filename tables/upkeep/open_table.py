"""A table that a committer has open: what the catalog has of it, its next schema, and commits that bring it further.

Several may have the same table open. Each commit names the version that it replaces, so one of them is told to read
the table again: `lose` it, and `open` it anew.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from anabranch.protocol.ids import uuid_text
from anabranch.s3stream.catalog.table_values import NewTable, TableInfo, table_location
from anabranch.tables.process import ColumnsError
from anabranch.tables.requests import Finding, Question
from anabranch.tables.snapshots import CLEANED, OFFSETS, TOPIC_ID
from anabranch.tables.upkeep.commit import Draft, TableCommits
from anabranch.tables.upkeep.context import TableTopic, UpkeepContext
from anabranch.tables.upkeep.options import ENABLE
from anabranch.tables.upkeep.status import UpkeepStats
from anabranch.tables.upkeep.transfers import TableFiles
from anabranch.tables.upkeep.view import TableView, current_summary

log = structlog.get_logger(__name__)


class OpenTable:
    """The table of a topic, created if the topic has none."""

    def __init__(self, context: UpkeepContext, topic: TableTopic, stats: UpkeepStats, folder: Path) -> None:
        """`folder` is scratch space of the table's metadata."""
        self.topic = topic
        """Set anew when the topic changes."""
        self.files: Final = TableFiles(context.catalog.tables, context.stores, context.pace)
        self.commits: Final = TableCommits(context, self.files, folder)
        self.view: TableView | None = None
        """None: it has to be read, as by `open`."""
        self.cleaned: dict[int, set[int]] = {}
        """Ids of objects of log compaction whose rows the table shows, by partition."""
        self.remade: set[tuple[int, int]] = set()
        """Pairs of such an object and a file that was made anew since, while others are not."""
        self.delayed = ""
        """Reason why the newest schemas are not used yet; empty: they are."""
        self._context = context
        self._tables = context.catalog.tables
        self._stats = stats
        self._folder = folder
        self._finding: Finding | None = None

    async def open(self) -> TableView:
        """Return the table as it is now. Raises StorageError, ColumnsError, OSError, MissingExtra."""
        self._folder.mkdir(parents=True, exist_ok=True)
        info = await self._tables.of_topic(self.topic.topic_id)
        view = self.view
        if info is not None and view is not None and view.info == info:
            return view
        if info is None:
            finding = await self.find(None)
            info = await self._create(finding.schema)
        view = await TableView.read(self._tables, info.table_id)
        summary = current_summary(await self.commits.metadata(view)) if view.metadata is not None else {}
        found: dict[str, list[int]] = json.loads(summary.get(CLEANED, "{}"))
        self.cleaned = {int(idx): set(ids) for idx, ids in found.items()}
        self.remade.clear()
        self.view = view
        return view

    def lose(self) -> None:
        """Have the table read again: another commit was first, or an outcome may be unknown."""
        self.view = None

    async def _create(self, schema: str) -> TableInfo:
        topic, table_id = self.topic, self._context.new_uuid()
        wanted = NewTable(
            table_id,
            topic.topic_id,
            topic.name,
            topic.store,
            table_location(self._context.cluster, table_id),
            schema,
            topic.options.retention,
            topic_configs={ENABLE: "true"},  # it may have been dropped, and this node does not know yet
        )
        info = await self._tables.create(wanted, now_ms=self._context.now_ms())
        log.info("a table was created", table=topic.name, location=self.files.store(info.store).uri(info.location))
        return info

    async def find(self, schema: str | None) -> Finding:
        """Return what the next shares are made with. The last one stays if the registry or a schema is at fault.

        A schema may be at fault in any way: it may also take too much memory.
        """
        options, registry = self.topic.options, await self._context.registry()
        before = self._finding
        question = Question(
            options.value.asked(f"{self.topic.name}-value", registry),
            options.key.asked(f"{self.topic.name}-key", registry),
            schema,
            before.value if before is not None else None,
            before.key if before is not None else None,
        )
        try:
            self._finding = await self._context.columns.ask(lambda process: process.find(question))
        except ColumnsError as error:
            if before is None or schema is None or error.kind == "stopped":
                raise
            self.delayed = f"new schemas are not used: {error}"
            return before
        self.delayed = ""
        for path in self._finding.unfit:
            log.warning(
                "values of a field do not fit its column: they become errors", table=self.topic.name, field=path
            )
        return self._finding

    async def publish(self, view: TableView, draft: Draft, cleaned: Mapping[int, set[int]] | None = None) -> None:
        """Commit a draft. `cleaned` are the objects of log compaction that the table shows then, by partition."""
        cleaned = self.cleaned if cleaned is None else cleaned
        files, size = len(draft.sent) + len(draft.waiting), sum(each.report.size_bytes for _, each in draft.sent)
        size += draft.waiting_bytes
        await self.commits.publish(
            view,
            draft,
            summary=_summary(view, draft, cleaned),
            snapshot_retention_ms=self.topic.options.snapshot_retention_ms,
        )
        self.cleaned = dict(cleaned)
        self._stats.commits += 1
        self._stats.files += files
        self._stats.bytes += size

    async def publish_state(self, view: TableView, schema: str = "") -> None:
        """Commit a version without a new snapshot, perhaps with the next version of the schema."""
        draft = Draft(schema=schema)
        try:
            await self.commits.publish(
                view, draft, summary=None, snapshot_retention_ms=self.topic.options.snapshot_retention_ms
            )
        except BaseException:
            await self.commits.discard(draft)
            raise
        self._stats.commits += 1


def _summary(view: TableView, draft: Draft, cleaned: Mapping[int, set[int]]) -> Mapping[str, str]:
    """Return what a snapshot says besides its totals."""
    ends = {idx: bounds.end_offset for idx, bounds in view.bounds.items()}
    for made in [*draft.waiting, *(made for _, made in draft.sent)]:
        ends[made.idx] = max(ends.get(made.idx, 0), made.bounds.end_offset)
    found = {TOPIC_ID: uuid_text(view.info.topic_id), OFFSETS: _json(dict(sorted(ends.items())))}
    shown = {idx: sorted(ids) for idx, ids in sorted(cleaned.items()) if ids}
    return found | {CLEANED: _json(shown)} if shown else found


def _json(value: Mapping[int, object]) -> str:
    return json.dumps(value, separators=(",", ":"))
