"""The committer of one table: rounds that bring it up to its topic.

A round reads the table and the topic's streams in the catalog, and makes what is due, each kind in a commit of its own:

    departure   files that the topic has left are dropped, those that its start lies inside of are cut
    remake      files whose rows log compaction has removed from the topic are made anew from what it has left
    append      rows between the table's end and the last stable offset
    join        neighbouring files become larger ones
    expiry      a table at rest lets its old snapshots go

A round that fails leaves the table as it was, and the next one begins with what the catalog has then.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from anabranch.protocol.ids import uuid_text
from anabranch.s3stream.catalog.table_values import (
    NewTable,
    OffsetBounds,
    TableFile,
    TableInfo,
    TableRetention,
    table_location,
)
from anabranch.s3stream.errors import NotFound, TableChanged
from anabranch.s3stream.model import StreamInfo, StreamRange
from anabranch.tables.process import ColumnProcess, ColumnsError
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import Finding, Question, Share
from anabranch.tables.snapshots import CLEANED, OFFSETS, TOPIC_ID, Join
from anabranch.tables.transactions import SnapshotTransactions, read_transactions
from anabranch.tables.upkeep.commit import Draft, MadeFile, TableCommits
from anabranch.tables.upkeep.context import TableTopic, UpkeepContext
from anabranch.tables.upkeep.options import ENABLE
from anabranch.tables.upkeep.plan import (
    COMMIT_BYTES_MAX,
    FILES_MAX,
    SHARE_BYTES_MAX,
    PartitionFacts,
    Rewrite,
    limit_rewrites,
    plan_departure,
    plan_joins,
    plan_remakes,
)
from anabranch.tables.upkeep.source import BlockSource, CopiedBlocks
from anabranch.tables.upkeep.status import PartitionStatus, TableStatus, UpkeepStats
from anabranch.tables.upkeep.transfers import TableFiles
from anabranch.tables.upkeep.view import TableView, current_summary

log = structlog.get_logger(__name__)

REASONS_MAX: Final = 10
SMALLER: Final = 4
"""Part of the blocks whose rows have taken too much memory that is tried next."""
RANGES_PAGE: Final = 1_000
EXPIRY_PAUSE_MS: Final = 10 * 60_000
"""Time after the last commit of a table at rest, after which old snapshots expire by a commit of their own."""


class Left(NamedTuple):
    """Work that a round has left, because a commit is limited."""

    rows: bool = False
    files: bool = False
    """Files to drop, cut, make anew or join."""


class TableCommitter:
    """Commits the table of one topic, one round at a time."""

    def __init__(self, context: UpkeepContext, source: BlockSource, stats: UpkeepStats, topic: TableTopic) -> None:
        self.topic = topic
        """Set anew when the topic changes."""
        self.status = TableStatus(name=topic.name, topic=topic.name)
        self._context = context
        self._source = source
        self.stats = stats
        self._tables = context.catalog.tables
        self._folder = context.folder / topic.topic_id.hex()
        self._files = TableFiles(self._tables, context.stores, context.pace)
        self._commits = TableCommits(context, self._files, self._folder / "metadata")
        self._view: TableView | None = None
        self._finding: Finding | None = None
        self._cleaned: dict[int, set[int]] = {}
        """Ids of objects of log compaction whose rows the table shows, by partition."""
        self._remade: set[tuple[int, int]] = set()
        """Pairs of such an object and a file that was made anew since, while others are not."""
        self._next_idx = 0
        """Partition that the next commit of rows begins with."""
        self._delayed = ""
        """Reason why the newest schemas are not used yet."""

    async def run(self, *, append: bool = True) -> Left:
        """Make what is due; without `append`, no rows are added. Returns what is left to do at once.

        Raises StorageError, ColumnsError, OSError, MissingExtra.
        """
        self._clear()
        try:
            left = await self._round(append=append)
        except TableChanged:
            self.stats.conflicts += 1
            self._view = None
            return Left(rows=append, files=True)
        except BaseException:
            self._view = None  # an outcome may be unknown
            raise
        else:
            self.status.last_error = self._delayed
            return left
        finally:
            self._clear()

    async def waiting_bytes(self) -> int:
        """Return about how many bytes of blocks the table lacks; 0 before its first round. Raises StorageError."""
        view = self._view
        if view is None:
            return 0
        size = 0
        streams = await self._context.catalog.get_streams(list(self.topic.streams.values()))
        for idx, stream_id in self.topic.streams.items():
            if stream_id in streams:
                start, end = view.bounds_of(idx).end_offset, read_transactions(streams[stream_id]).stable_offset
                if start < end:
                    found = await self._context.catalog.find_ranges(stream_id, start, end, limit=RANGES_PAGE)
                    size += sum(_part_bytes(each.range, start, end) for each in found)
        return size

    def forget(self) -> None:
        """Remove what the committer has on this machine."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _clear(self) -> None:
        shutil.rmtree(self._folder / "rows", ignore_errors=True)

    def _make_folders(self) -> Path:
        (self._folder / "metadata").mkdir(parents=True, exist_ok=True)
        rows = self._folder / "rows"
        rows.mkdir(exist_ok=True)
        return rows

    async def _round(self, *, append: bool) -> Left:
        now_ms = self._context.now_ms()
        streams = await self._context.catalog.get_streams(list(self.topic.streams.values()))
        if not streams:
            return Left()  # the topic is being deleted
        transactions = {
            idx: read_transactions(streams[stream_id])
            for idx, stream_id in self.topic.streams.items()
            if stream_id in streams
        }
        self._make_folders()
        view = await self._opened()
        files = await self._depart(view, self._facts(view, streams, transactions))
        if self.topic.is_compacted:
            files |= await self._remake(view, await self._with_cleaned(view, streams, transactions), transactions)
        rows = append and await self._append(view, self._facts(view, streams, transactions), transactions)
        if view.metadata is None:
            await self._publish_state(view)  # a table without rows can be read, too
        files |= await self._join(view, self._facts(view, streams, transactions))
        await self._expire(view)
        self._show(view, self._facts(view, streams, transactions), now_ms)
        return Left(rows, files)

    def _facts(
        self,
        view: TableView,
        streams: Mapping[int, StreamInfo],
        transactions: Mapping[int, SnapshotTransactions],
    ) -> Sequence[PartitionFacts]:
        return [
            PartitionFacts(
                idx,
                OffsetBounds(streams[self.topic.streams[idx]].start_offset, found.stable_offset),
                view.bounds_of(idx),
                view.files.get(idx, ()),
                deleted_offset=streams[self.topic.streams[idx]].deleted_offset,
            )
            for idx, found in sorted(transactions.items())
        ]

    # the table

    async def _opened(self) -> TableView:
        """Return the table as it is now, created if the topic has none."""
        info = await self._tables.of_topic(self.topic.topic_id)
        view = self._view
        if info is not None and view is not None and view.info == info:
            return view
        if info is None:
            finding = await self._find(None)
            info = await self._create(finding.schema)
        view = await TableView.read(self._tables, info.table_id)
        summary = current_summary(await self._commits.metadata(view)) if view.metadata is not None else {}
        found: dict[str, list[int]] = json.loads(summary.get(CLEANED, "{}"))
        self._cleaned = {int(idx): set(ids) for idx, ids in found.items()}
        self._remade.clear()
        self._view = view
        return view

    async def _create(self, schema: str) -> TableInfo:
        topic, table_id = self.topic, self._context.new_uuid()
        configs = await self._context.catalog.list_topic_configs()
        if configs.get(topic.topic_id, {}).get(ENABLE) != "true":  # it was dropped, and this node does not know yet
            raise NotFound(f"{ENABLE} of topic {topic.name} is no longer true: no table is made")
        wanted = NewTable(
            table_id,
            topic.topic_id,
            topic.name,
            topic.store,
            table_location(self._context.cluster, table_id),
            schema,
            topic.options.retention,
        )
        info = await self._tables.create(wanted, now_ms=self._context.now_ms())
        log.info("a table was created", table=topic.name, location=self._files.store(info.store).uri(info.location))
        return info

    async def _find(self, schema: str | None) -> Finding:
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
            self._delayed = f"new schemas are not used: {error}"
            return before
        self._delayed = ""
        for path in self._finding.unfit:
            log.warning(
                "values of a field do not fit its column: they become errors", table=self.topic.name, field=path
            )
        return self._finding

    # kinds of commits

    async def _append(
        self,
        view: TableView,
        facts: Sequence[PartitionFacts],
        transactions: Mapping[int, SnapshotTransactions],
    ) -> bool:
        """Append rows; returns whether some are left."""
        behind = [each for each in facts if each.missing.start_offset < each.missing.end_offset]
        if not behind:
            return False
        # A commit is limited, and by the next one the same partitions may have new rows: they take turns.
        behind.sort(key=lambda each: (each.idx < self._next_idx, each.idx))
        schema = view.schemas[-1]
        finding = await self._find(schema)
        draft = Draft(schema=finding.schema if finding.schema != schema else "")
        left, size = False, 0
        shown = {idx: set(ids) for idx, ids in self._cleaned.items()}
        try:
            for each in behind:
                at = each.missing.start_offset
                while at < each.missing.end_offset:
                    if size >= COMMIT_BYTES_MAX or len(draft.sent) + len(draft.waiting) >= FILES_MAX:
                        left = True
                        break
                    wanted = OffsetBounds(at, each.missing.end_offset)
                    made, copied = await self._make(each.idx, wanted, finding, transactions, bytes_max=SHARE_BYTES_MAX)
                    await self._commits.add(view, draft, made)
                    at, size = made.bounds.end_offset, size + copied.size_bytes
                    self._next_idx = each.idx + 1
                    # All that the table will have of such a range is made of it, not of what was there before.
                    here = shown.setdefault(each.idx, set())
                    here |= {
                        object_id
                        for object_id, bounds in copied.cleaned.items()
                        if bounds.start_offset >= copied.start_offset
                    }
            rows = sum(made.report.rows for _, made in draft.sent) + sum(made.report.rows for made in draft.waiting)
            await self._publish(view, draft, shown)
        except BaseException:
            await self._commits.discard(draft)
            raise
        self.stats.rows += rows
        for _, made in draft.sent:
            self.stats.errors += made.report.errors
            self.status.errors += made.report.errors
            fresh = [reason for reason in made.report.reasons if reason not in self.status.reasons]
            self.status.reasons = [*self.status.reasons, *fresh][-REASONS_MAX:]
        return left

    async def _make(
        self,
        idx: int,
        wanted: OffsetBounds,
        finding: Finding,
        transactions: Mapping[int, SnapshotTransactions],
        *,
        bytes_max: int,
    ) -> tuple[MadeFile, CopiedBlocks]:
        """Make a data file of the first rows of a range; returns it, and the blocks.

        Rows that take too much memory are made in smaller files.
        """
        while True:
            copied = await self._source.copy(
                self.topic.streams[idx], *wanted, self._folder / "rows" / "blocks", bytes_max=bytes_max
            )
            await self._context.step("blocks copied")
            try:
                return await self._make_of(idx, copied, finding, transactions), copied
            except ColumnsError as error:
                if error.kind not in {"memory", "ended"} or len(copied.entries) == 1:
                    raise
                bytes_max = max(1, copied.size_bytes // SMALLER)
                log.warning("rows of a table are made in smaller files", table=self.topic.name, reason=str(error))

    async def _make_of(
        self, idx: int, copied: CopiedBlocks, finding: Finding, transactions: Mapping[int, SnapshotTransactions]
    ) -> MadeFile:
        rows = self._folder / "rows"
        blocks, target = rows / "blocks", rows / _fresh_name(rows)
        aborted = transactions[idx].aborted_between(copied.start_offset, copied.end_offset)
        share = Share(
            str(blocks),
            copied.entries,
            PartitionRange(self.topic.name, idx, copied.start_offset, copied.end_offset, aborted),
            finding.schema,
            finding.value,
            finding.key,
            str(target),
        )
        report = await self._context.columns.ask(lambda process: process.make(share))
        blocks.unlink()
        await self._context.step("rows made")
        return MadeFile(target, idx, OffsetBounds(copied.start_offset, copied.end_offset), report)

    async def _depart(self, view: TableView, facts: Sequence[PartitionFacts]) -> bool:
        """Drop and cut files of records that the topic has lost; returns whether some are left."""
        if view.info.retention is TableRetention.KEEP:
            return False
        departure = plan_departure(facts)
        if not departure.dropped and not departure.cut:
            return False
        cuts = limit_rewrites(departure.cut, COMMIT_BYTES_MAX)
        draft = Draft(removed=[*departure.dropped, *(file for each in cuts for file in each.files)])
        await self._rewrite(view, draft, cuts)
        self.stats.dropped_files += len(departure.dropped)
        self.stats.cut_files += len(cuts)
        return len(cuts) < len(departure.cut) or len(departure.dropped) >= FILES_MAX

    async def _join(self, view: TableView, facts: Sequence[PartitionFacts]) -> bool:
        """Join neighbouring files; returns whether more can be joined."""
        target = self.topic.options.target_file_bytes
        planned = [each for partition in facts for each in plan_joins(view.files.get(partition.idx, ()), target)]
        if not planned:
            return False
        chosen = limit_rewrites(planned, COMMIT_BYTES_MAX)
        draft = Draft(removed=[file for each in chosen for file in each.files])
        await self._rewrite(view, draft, chosen)
        self.stats.joined_files += len(draft.removed)
        return True

    async def _rewrite(self, view: TableView, draft: Draft, rewrites: Sequence[Rewrite]) -> None:
        """Commit a draft with the rows of files in others."""
        try:
            for each in rewrites:
                await self._commits.add(view, draft, await self._joined(view.schemas[-1], each))
            await self._publish(view, draft)
        except BaseException:
            await self._commits.discard(draft)
            raise

    async def _joined(self, schema: str, rewrite: Rewrite) -> MadeFile:
        """Return a file with those rows of a rewrite's files that are within its bounds."""
        rows = self._folder / "rows"
        sources = []
        for file in rewrite.files:
            sources.append(rows / f"{file.file_id:016x}")
            await self._files.fetch(file, sources[-1])
        target = rows / _fresh_name(rows)
        join = Join(
            [str(path) for path in sources],
            schema,
            PartitionRange(self.topic.name, rewrite.idx, *rewrite.bounds),
            str(target),
        )
        report = await self._context.columns.ask(partial(ColumnProcess.join, join=join))
        for path in sources:
            path.unlink()
        await self._context.step("files joined")
        return MadeFile(target, rewrite.idx, rewrite.bounds, report)

    async def _with_cleaned(
        self,
        view: TableView,
        streams: Mapping[int, StreamInfo],
        transactions: Mapping[int, SnapshotTransactions],
    ) -> Sequence[PartitionFacts]:
        """Return the facts with the ranges of log compaction that the table does not show."""
        found = []
        for each in self._facts(view, streams, transactions):
            cleaned = await self._cleaned_ranges(each)
            shown = self._cleaned.setdefault(each.idx, set())
            shown &= cleaned.keys()
            # What lies past the table's end is shown by what is appended.
            fresh = {
                object_id: bounds
                for object_id, bounds in cleaned.items()
                if object_id not in shown and bounds.start_offset < each.table.end_offset
            }
            found.append(replace(each, cleaned=fresh))
        return found

    async def _cleaned_ranges(self, partition: PartitionFacts) -> dict[int, OffsetBounds]:
        found: dict[int, OffsetBounds] = {}
        at, end = partition.stream.start_offset, partition.table.end_offset
        while at < end:
            page = await self._context.catalog.find_ranges(
                self.topic.streams[partition.idx], at, end, limit=RANGES_PAGE
            )
            for each in page:
                if each.object.cleaned:
                    found[each.object.object_id] = OffsetBounds(each.range.start_offset, each.range.end_offset)
            if not page:
                break
            at = page[-1].range.end_offset
        return found

    async def _remake(
        self,
        view: TableView,
        facts: Sequence[PartitionFacts],
        transactions: Mapping[int, SnapshotTransactions],
    ) -> bool:
        """Make files anew whose rows log compaction has removed from the topic; returns whether some are left."""
        planned = [
            each
            for partition in facts
            for each in plan_remakes(partition)
            if not self._is_remade(partition, each.files[0])
        ]
        if not planned:
            return False
        finding = await self._find(view.schemas[-1])
        draft = Draft(schema=finding.schema if finding.schema != view.schemas[-1] else "")
        chosen = limit_rewrites(planned, COMMIT_BYTES_MAX)
        draft.removed = [file for each in chosen for file in each.files]
        try:
            for each in chosen:
                at, begin = each.bounds.start_offset, each.files[0].start_offset
                if begin < at and view.info.retention is TableRetention.KEEP:
                    lost = replace(each, bounds=OffsetBounds(begin, at))
                    await self._commits.add(view, draft, await self._joined(finding.schema, lost))
                while at < each.bounds.end_offset:
                    wanted = OffsetBounds(at, each.bounds.end_offset)
                    made, _ = await self._make(each.idx, wanted, finding, transactions, bytes_max=COMMIT_BYTES_MAX)
                    await self._commits.add(view, draft, made)
                    at = made.bounds.end_offset
            done = len(chosen) == len(planned)
            shown = {idx: set(ids) for idx, ids in self._cleaned.items()}
            if done:
                for partition in facts:
                    shown[partition.idx] |= partition.cleaned.keys()
            await self._publish(view, draft, shown)
        except BaseException:
            await self._commits.discard(draft)
            raise
        objects = [object_id for partition in facts for object_id in partition.cleaned]
        self._remade |= {(object_id, file.file_id) for file, _ in draft.sent for object_id in objects}
        if done:
            self._remade.clear()
        self.stats.remade_files += len(draft.removed)
        return not done

    def _is_remade(self, partition: PartitionFacts, file: TableFile) -> bool:
        return all((object_id, file.file_id) in self._remade for object_id in partition.cleaned)

    async def _expire(self, view: TableView) -> None:
        """Let old snapshots of a table at rest go: otherwise the next commit does it."""
        retention_ms = self.topic.options.snapshot_retention_ms
        if len(view.snapshots) < 2:
            return
        now_ms, last_ms = self._context.now_ms(), view.snapshots[-1].committed_ms
        if now_ms >= last_ms + max(retention_ms, EXPIRY_PAUSE_MS):
            await self._publish_state(view)

    async def _publish_state(self, view: TableView) -> None:
        """Commit a version without a new snapshot."""
        draft = Draft()
        try:
            await self._commits.publish(
                view, draft, summary=None, snapshot_retention_ms=self.topic.options.snapshot_retention_ms
            )
        except BaseException:
            await self._commits.discard(draft)
            raise
        self.stats.commits += 1

    async def _publish(self, view: TableView, draft: Draft, cleaned: Mapping[int, set[int]] | None = None) -> None:
        """Commit a draft. `cleaned` are the objects of log compaction that the table shows then, by partition."""
        cleaned = self._cleaned if cleaned is None else cleaned
        files, size = len(draft.sent) + len(draft.waiting), sum(each.report.size_bytes for _, each in draft.sent)
        size += draft.waiting_bytes
        await self._commits.publish(
            view,
            draft,
            summary=_summary(view, draft, cleaned),
            snapshot_retention_ms=self.topic.options.snapshot_retention_ms,
        )
        self._cleaned = dict(cleaned)
        self.stats.commits += 1
        self.stats.files += files
        self.stats.bytes += size

    # status

    def _show(self, view: TableView, facts: Sequence[PartitionFacts], now_ms: int) -> None:
        status, info = self.status, view.info
        files = [file for some in view.files.values() for file in some]
        status.name, status.topic, status.table_id = info.name, self.topic.name, info.table_id.hex()
        status.version, status.snapshot_id, status.schema = info.version, info.snapshot_id, view.schemas[-1]
        status.metadata_location = "" if view.metadata is None else self._files.uri(view.metadata)
        status.rows, status.files = sum(file.record_count for file in files), len(files)
        status.bytes, status.snapshots = sum(file.size_bytes for file in files), len(view.snapshots)
        status.partitions = {
            each.idx: PartitionStatus(*each.table, max(each.stream.end_offset, each.table.end_offset)) for each in facts
        }
        if not status.lag:
            status.complete_ms = now_ms


def _summary(view: TableView, draft: Draft, cleaned: Mapping[int, set[int]]) -> Mapping[str, str]:
    """Return what a snapshot says besides its totals."""
    ends = {idx: bounds.end_offset for idx, bounds in view.bounds.items()}
    for made in [*draft.waiting, *(made for _, made in draft.sent)]:
        ends[made.idx] = max(ends.get(made.idx, 0), made.bounds.end_offset)
    found = {TOPIC_ID: uuid_text(view.info.topic_id), OFFSETS: _json(dict(sorted(ends.items())))}
    shown = {idx: sorted(ids) for idx, ids in sorted(cleaned.items()) if ids}
    return found | {CLEANED: _json(shown)} if shown else found


def _part_bytes(span: StreamRange, start: int, end: int) -> int:
    """Return about how many bytes of a range are in [start, end)."""
    low, high = max(start, span.start_offset), min(end, span.end_offset)
    return span.size_bytes * max(0, high - low) // (span.end_offset - span.start_offset)


def _fresh_name(folder: Path) -> str:
    return next(name for at in count() if not (folder / (name := f"{at}.parquet")).exists())


def _json(value: Mapping[int, object]) -> str:
    return json.dumps(value, separators=(",", ":"))
