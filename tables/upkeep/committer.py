"""The committer of one table: rounds that bring it up to its topic.

A round reads the table and the topic's streams in the catalog, and makes what is due, each kind in a commit of its own:

    departure   files that the topic has left are dropped, those that its start lies inside of are cut
    remake      files whose rows log compaction has removed from the topic are made anew from what it has left
    append      rows between the table's end and the last stable offset
    join        neighbouring files become larger ones
    expiry      a table at rest lets its old snapshots go

A round that fails leaves the table as it was, and the next one begins with what the catalog has then.
"""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from anabranch.s3stream.catalog.table_values import OffsetBounds, TableFile, TableRetention
from anabranch.s3stream.errors import TableChanged
from anabranch.s3stream.model import StreamInfo, StreamRange
from anabranch.tables.process import FALLBACKS_AT_ONCE, ColumnProcess, ColumnsError
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import Finding
from anabranch.tables.snapshots import Join
from anabranch.tables.transactions import SnapshotTransactions, read_transactions
from anabranch.tables.upkeep.commit import Draft
from anabranch.tables.upkeep.context import TableTopic, UpkeepContext
from anabranch.tables.upkeep.data_files import DataFileMaker, MadeFile, WantedRows, fresh_path
from anabranch.tables.upkeep.open_table import OpenTable
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
from anabranch.tables.upkeep.source import BlockSource
from anabranch.tables.upkeep.status import PartitionStatus, TableStatus, UpkeepStats
from anabranch.tables.upkeep.view import TableView

REASONS_MAX: Final = 10
RANGES_PAGE: Final = 1_000
TURN_S: Final = 30.0
"""Time after which a commit of rows gets no more of them: other tables of the node have their turn."""
EXPIRY_PAUSE_MS: Final = 10 * 60_000
"""Time after the last commit of a table at rest, after which old snapshots expire by a commit of their own."""


class Left(NamedTuple):
    """Work that a round has left, because a commit is limited."""

    rows: bool = False
    files: bool = False
    """Files to drop, cut, make anew or join."""
    is_overtaken: bool = False
    """True if another commit was first: somebody else commits this table now."""


class TableCommitter:
    """Commits the table of one topic, one round at a time."""

    def __init__(self, context: UpkeepContext, source: BlockSource, stats: UpkeepStats, topic: TableTopic) -> None:
        self.status = TableStatus(name=topic.name, topic=topic.name)
        self.stats = stats
        self._context = context
        self._folder = context.folder / topic.topic_id.hex()
        self._rows = self._folder / "rows"
        self._table = OpenTable(context, topic, stats, self._folder / "metadata")
        self._maker = DataFileMaker(
            source, context.columns, self._rows, step=context.step, fallbacks_max=FALLBACKS_AT_ONCE
        )
        self._next_idx = 0
        """Partition that the next commit of rows begins with."""

    @property
    def topic(self) -> TableTopic:
        """The topic. Set anew when it changes."""
        return self._table.topic

    @topic.setter
    def topic(self, topic: TableTopic) -> None:
        self._table.topic = topic

    async def run(self, *, append: bool = True) -> Left:
        """Make what is due; without `append`, no rows are added. Returns what is left to do at once.

        Raises StorageError, ColumnsError, OSError, MissingExtra.
        """
        self._clear()
        try:
            left = await self._round(append=append)
        except TableChanged:
            self.stats.conflicts += 1
            self._table.lose()
            return Left(rows=append, files=True, is_overtaken=True)
        except BaseException as error:
            self._table.lose()  # an outcome may be unknown
            if not isinstance(error, ColumnsError) or error.kind != "slow":
                raise
            self.status.last_error = str(error)
            return Left(rows=append, files=True)
        else:
            self.status.last_error = self._table.delayed
            return left
        finally:
            self._clear()

    async def waiting_bytes(self) -> int:
        """Return about how many bytes of blocks the table lacks; 0 before its first round. Raises StorageError."""
        view = self._table.view
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
        shutil.rmtree(self._rows, ignore_errors=True)

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
        self._rows.mkdir(parents=True, exist_ok=True)
        view = await self._table.open()
        files = await self._depart(view, self._facts(view, streams, transactions))
        if self.topic.is_compacted:
            files |= await self._remake(view, await self._with_cleaned(view, streams, transactions), transactions)
        rows = append and await self._append(view, self._facts(view, streams, transactions), transactions)
        if view.metadata is None:
            await self._table.publish_state(view)  # a table without rows can be read, too
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

    def _wanted(
        self, idx: int, bounds: OffsetBounds, finding: Finding, transactions: Mapping[int, SnapshotTransactions]
    ) -> WantedRows:
        topic = self.topic
        return WantedRows(topic.name, idx, topic.streams[idx], bounds, transactions[idx], finding, topic.options.codec)

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
        finding = await self._table.find(schema)
        draft = Draft(schema=finding.schema if finding.schema != schema else "")
        left, size, loop = False, 0, asyncio.get_running_loop()
        until_s = loop.time() + TURN_S
        shown = {idx: set(ids) for idx, ids in self._table.cleaned.items()}
        try:
            for each in behind:
                at = each.missing.start_offset
                while at < each.missing.end_offset:
                    files = len(draft.sent) + len(draft.waiting)
                    if size >= COMMIT_BYTES_MAX or files >= FILES_MAX or (files and loop.time() >= until_s):
                        left = True
                        break
                    self._next_idx = each.idx + 1
                    wanted = self._wanted(each.idx, OffsetBounds(at, each.missing.end_offset), finding, transactions)
                    try:
                        made, copied = await self._maker.make(wanted, bytes_max=SHARE_BYTES_MAX)
                    except ColumnsError as error:
                        if error.kind != "slow" or not files:
                            raise
                        until_s = loop.time()  # what there is is committed, and the next round begins elsewhere
                        continue
                    await self._table.commits.add(view, draft, made)
                    at, size = made.bounds.end_offset, size + copied.size_bytes
                    # All that the table will have of such a range is made of it, not of what was there before.
                    here = shown.setdefault(each.idx, set())
                    here |= {
                        object_id
                        for object_id, bounds in copied.cleaned.items()
                        if bounds.start_offset >= copied.start_offset
                    }
            rows = sum(made.report.rows for _, made in draft.sent) + sum(made.report.rows for made in draft.waiting)
            await self._table.publish(view, draft, shown)
        except BaseException:
            await self._table.commits.discard(draft)
            raise
        self.stats.rows += rows
        for _, made in draft.sent:
            self.stats.errors += made.report.errors
            self.status.errors += made.report.errors
            fresh = [reason for reason in made.report.reasons if reason not in self.status.reasons]
            self.status.reasons = [*self.status.reasons, *fresh][-REASONS_MAX:]
        return left

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
                await self._table.commits.add(view, draft, await self._joined(view.schemas[-1], each))
            await self._table.publish(view, draft)
        except BaseException:
            await self._table.commits.discard(draft)
            raise

    async def _joined(self, schema: str, rewrite: Rewrite) -> MadeFile:
        """Return a file with those rows of a rewrite's files that are within its bounds."""
        sources = []
        for file in rewrite.files:
            sources.append(self._rows / f"{file.file_id:016x}")
            await self._table.files.fetch(file, sources[-1])
        target = fresh_path(self._rows)
        join = Join(
            [str(path) for path in sources],
            schema,
            PartitionRange(self.topic.name, rewrite.idx, *rewrite.bounds),
            str(target),
            self.topic.options.codec,
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
            shown = self._table.cleaned.setdefault(each.idx, set())
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
        finding = await self._table.find(view.schemas[-1])
        draft = Draft(schema=finding.schema if finding.schema != view.schemas[-1] else "")
        chosen = limit_rewrites(planned, COMMIT_BYTES_MAX)
        draft.removed = [file for each in chosen for file in each.files]
        try:
            for each in chosen:
                at, begin = each.bounds.start_offset, each.files[0].start_offset
                if begin < at and view.info.retention is TableRetention.KEEP:
                    lost = replace(each, bounds=OffsetBounds(begin, at))
                    await self._table.commits.add(view, draft, await self._joined(finding.schema, lost))
                while at < each.bounds.end_offset:
                    wanted = self._wanted(each.idx, OffsetBounds(at, each.bounds.end_offset), finding, transactions)
                    made, _ = await self._maker.make(wanted, bytes_max=COMMIT_BYTES_MAX)
                    await self._table.commits.add(view, draft, made)
                    at = made.bounds.end_offset
            done = len(chosen) == len(planned)
            shown = {idx: set(ids) for idx, ids in self._table.cleaned.items()}
            if done:
                for partition in facts:
                    shown[partition.idx] |= partition.cleaned.keys()
            await self._table.publish(view, draft, shown)
        except BaseException:
            await self._table.commits.discard(draft)
            raise
        objects = [object_id for partition in facts for object_id in partition.cleaned]
        self._table.remade |= {(object_id, file.file_id) for file, _ in draft.sent for object_id in objects}
        if done:
            self._table.remade.clear()
        self.stats.remade_files += len(draft.removed)
        return not done

    def _is_remade(self, partition: PartitionFacts, file: TableFile) -> bool:
        return all((object_id, file.file_id) in self._table.remade for object_id in partition.cleaned)

    async def _expire(self, view: TableView) -> None:
        """Let old snapshots of a table at rest go: otherwise the next commit does it."""
        retention_ms = self.topic.options.snapshot_retention_ms
        if len(view.snapshots) < 2:
            return
        now_ms, last_ms = self._context.now_ms(), view.snapshots[-1].committed_ms
        if now_ms >= last_ms + max(retention_ms, EXPIRY_PAUSE_MS):
            await self._table.publish_state(view)

    # status

    def _show(self, view: TableView, facts: Sequence[PartitionFacts], now_ms: int) -> None:
        status, info = self.status, view.info
        files = [file for some in view.files.values() for file in some]
        status.name, status.topic, status.table_id = info.name, self.topic.name, info.table_id.hex()
        status.version, status.snapshot_id, status.schema = info.version, info.snapshot_id, view.schemas[-1]
        status.metadata_location = "" if view.metadata is None else self._table.files.uri(view.metadata)
        status.rows, status.files = sum(file.record_count for file in files), len(files)
        status.bytes, status.snapshots = sum(file.size_bytes for file in files), len(view.snapshots)
        status.partitions = {
            each.idx: PartitionStatus(*each.table, max(each.stream.end_offset, each.table.end_offset)) for each in facts
        }
        if not status.lag:
            status.complete_ms = now_ms


def _part_bytes(span: StreamRange, start: int, end: int) -> int:
    """Return about how many bytes of a range are in [start, end)."""
    low, high = max(start, span.start_offset), min(end, span.end_offset)
    return span.size_bytes * max(0, high - low) // (span.end_offset - span.start_offset)
