"""Tables on Spark: the rows that a table lacks are made by tasks, and committed by the driver.

For a topic with a long history that becomes a table, or a table that is far behind: a node makes the columns of all its
tables in one process. Tasks run the same code as that process does, write data files, and prepare them in the catalog.
The driver commits them as the node does, in the order of offsets, under the epoch that the catalog has for the node
that leads the topic's first partition; so a restart of that node fences the job.

The node may commit the same table meanwhile. A commit names the version that it replaces: one of the two is told to
read the table again. What the job has made of offsets that the table has by then is discarded, and the rest is kept.
Files of lost tasks, and of a killed job, are prepared and never committed: they are collected after their deadline.
Topics that are compacted by key are left to the node, which knows which log compaction its rows are from.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import UUID

from pyspark.sql import SparkSession

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import OffsetBounds, TableRetention
from anabranch.s3stream.catalog.values import TopicInfo
from anabranch.s3stream.errors import StorageError, TableChanged
from anabranch.s3stream.model import NodeIdentity
from anabranch.spark.storage import StorageLocation, opened_catalog, opened_stores
from anabranch.spark.table_shares import MadeShare, SentFile, ShareTask, divide, first_gap, make_files, new_id, now_ms
from anabranch.spark.tasks import TasksFailed, collect
from anabranch.tables.process import ColumnProcess
from anabranch.tables.requests import Finding, Registry
from anabranch.tables.transactions import SnapshotTransactions, read_transactions
from anabranch.tables.upkeep.columns import Columns
from anabranch.tables.upkeep.commit import Draft
from anabranch.tables.upkeep.context import TableTopic, UpkeepContext
from anabranch.tables.upkeep.data_files import WantedRows
from anabranch.tables.upkeep.open_table import OpenTable
from anabranch.tables.upkeep.options import DEFAULTS, TableOptions
from anabranch.tables.upkeep.plan import FILES_MAX, SHARE_BYTES_MAX, PartitionFacts, plan_departure
from anabranch.tables.upkeep.source import BlockSource, RowsGone
from anabranch.tables.upkeep.status import UpkeepStats
from anabranch.tables.upkeep.view import TableView

SHARES_PER_CORE: Final = 4
"""Least number of shares for each core, unless they would be smaller than a node's: then all cores end together."""
TASKS_PER_CORE: Final = 2
"""Tasks that Spark has at a time, so that it has the next one when a core is free."""
COMMIT_S: Final = 30.0
"""Time between two commits."""
PLANS_MAX: Final = 100
"""Times that work is planned again because the topic had lost records of it."""
RANGES_PAGE: Final = 1_000


class NoBacklog(StorageError):
    """The topic is not one whose table Spark can bring up to date. The text says why, and what to do."""


@dataclass(slots=True)
class SparkTableSummary:
    """Result of a run."""

    table: str = ""
    rows: int = 0
    """Rows committed."""
    errors: int = 0
    """Those of them with an error."""
    files: int = 0
    """Data files committed."""
    bytes_read: int = 0
    """Bytes of blocks that rows were made of."""
    bytes_written: int = 0
    """Bytes of data files committed."""
    commits: int = 0
    overtaken: int = 0
    """Files that were made in vain: another committer was faster."""
    cpu_s: float = 0.0
    """CPU time of the tasks, and of their processes that make columns."""
    seconds: float = 0.0


class SparkTable:
    """Brings the table of one topic up to what is committed in the topic when it begins."""

    def __init__(
        self,
        spark: SparkSession,
        location: StorageLocation,
        topic: str,
        *,
        registry: Registry | None = None,
        share_bytes_min: int = SHARE_BYTES_MAX,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        """`progress` is told how many of how many bytes of blocks rows are made of."""
        self._spark = spark
        self._location = location
        self._name = topic
        self._registry = registry
        self._share_bytes_min = share_bytes_min
        self._progress = progress
        self.summary = SparkTableSummary(topic)

    async def run(self) -> SparkTableSummary:
        """Make and commit the rows. Raises StorageError, ColumnsError, MissingExtra, OSError.

        What was committed stays, whatever is raised: the next run goes on from there.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="anabranch-table-")))
            catalog = await stack.enter_async_context(opened_catalog(self._location, read_only=False))
            stores = await stack.enter_async_context(opened_stores(self._location, read_only=False))
            columns = Columns(ColumnProcess)
            stack.push_async_callback(columns.close)
            topic, node = await self._find_topic(catalog)
            context = UpkeepContext(
                catalog=catalog,
                stores=stores,
                cluster=self._location.cluster,
                node=node,
                now_ms=now_ms,
                new_uuid=lambda: UUID(bytes=new_id(), version=4).bytes,
                new_writer_id=lambda: new_id().hex(),
                columns=columns,
                folder=folder,
                registry=self._find_registry,
            )
            cores = self._spark.sparkContext.defaultParallelism
            pool = stack.enter_context(ThreadPoolExecutor(TASKS_PER_CORE * cores, "shares"))
            work = _CatchUp(self._spark, self._location, context, topic, self.summary, pool)
            try:
                await work.run(self._share_bytes_min, cores, self._progress)
            finally:
                self.summary.seconds = loop.time() - begun_s
        return self.summary

    async def _find_registry(self) -> Registry | None:
        return self._registry

    async def _find_topic(self, catalog: Catalog) -> tuple[TableTopic, NodeIdentity]:
        """Return the topic, and the node that commits its table. Raises NoBacklog, CatalogError."""
        name = self._name
        info = next((each for each in await catalog.list_topics() if each.name == name), None)
        if info is None:
            raise NoBacklog(f"topic {name} does not exist in this cluster")
        options = self._options_of(info)
        if await catalog.tables.of_topic(info.topic_id) is None:
            raise NoBacklog(f"topic {name} has no table yet: the node that leads its first partition makes it")
        leader = info.partitions[0].leader
        node = await catalog.get_node(leader)
        if node is None:
            raise NoBacklog(f"topic {name}: its first partition has no leader, and so nobody to commit its table for")
        streams = {each.index: each.stream_id for each in info.partitions}
        return TableTopic(name, info.topic_id, "", options, streams), node.identity

    def _options_of(self, info: TopicInfo) -> TableOptions:
        name, configs = info.name, info.configs
        try:
            options = TableOptions.parse(lambda config: configs.get(config, DEFAULTS[config]))
        except ValueError as error:
            raise NoBacklog(f"topic {name}: {error}") from None
        if options is None:
            raise NoBacklog(f"topic {name} is no table: `anabranch topic alter {name} --table FORMAT` makes it one")
        if "compact" in configs.get("cleanup.policy", ""):
            raise NoBacklog(f"topic {name} is compacted: its node brings its table up to date")
        place = Registry("")
        if self._registry is None and any(part.asked("", place).registry for part in (options.value, options.key)):
            raise NoBacklog(f"topic {name}: its schemas are in a registry: give its URL with --registry")
        return options


class _CatchUp:
    """One run over a table that exists."""

    def __init__(
        self,
        spark: SparkSession,
        location: StorageLocation,
        context: UpkeepContext,
        topic: TableTopic,
        summary: SparkTableSummary,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._spark = spark
        self._location = location.without_password()
        self._context = context
        self._topic = topic
        self._summary = summary
        self._pool = pool
        self._source = BlockSource(context.catalog, context.stores, context.cluster)
        self._table = OpenTable(context, topic, UpkeepStats(), context.folder / "metadata")
        self._group = f"anabranch table {topic.name} {new_id().hex()}"
        self._finding: Finding | None = None
        self._transactions: Mapping[int, SnapshotTransactions] = {}
        """As of the beginning: rows are made up to their last stable offsets."""
        self._partitions: Mapping[int, PartitionFacts] = {}
        """As of the last look."""
        self._held: list[SentFile] = []
        """Files that are in the store and not committed."""
        self._running: dict[asyncio.Future[MadeShare], WantedRows] = {}

    async def run(self, share_bytes_min: int, cores: int, progress: Callable[[int, int], None]) -> None:
        """Catch up."""
        loop = asyncio.get_running_loop()
        streams = await self._context.catalog.get_streams(list(self._topic.streams.values()))
        ids = self._topic.streams.items()
        self._transactions = {idx: read_transactions(streams[each]) for idx, each in ids if each in streams}
        await self._look()
        total = await self._backlog_bytes()
        target = self._topic.options.target_file_bytes
        share_bytes = max(share_bytes_min, min(target, total // (SHARES_PER_CORE * cores)))
        plans = 0
        committed_s = loop.time()
        try:
            while True:
                while len(self._running) < TASKS_PER_CORE * cores:
                    wanted = await self._next(share_bytes)
                    if wanted is None:
                        break
                    self._running[self._start(wanted)] = wanted
                if not self._running:
                    await self._commit()
                    if await self._next(share_bytes) is None:
                        return
                    continue
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    plans += await self._take(self._running.pop(task), await task)
                if plans > PLANS_MAX:
                    raise StorageError(f"topic {self._topic.name} lost records {plans} times before they became rows")
                progress(self._summary.bytes_read, total)
                if loop.time() > committed_s + COMMIT_S:
                    await self._commit()
                    committed_s = loop.time()
        except TasksFailed:
            await self._commit()
            raise
        finally:
            self._spark.sparkContext.cancelJobGroup(self._group)
            if self._running:
                await asyncio.wait(self._running)
            whole = [each.result() for each in self._running if not each.cancelled() and each.exception() is None]
            late = [file for result in whole for file in result.sent]
            await self._discard([*self._held, *late])

    async def _look(self) -> TableView:
        """Return the table as it is now, with what its next rows are made with, and note what it lacks."""
        while True:
            view = await self._table.open()
            schema = view.schemas[-1]
            if self._finding is None or self._finding.schema != schema:
                # Ids of columns that another committer has added meanwhile may be those of other columns here.
                await self._discard(self._held)
                self._held = []
                self._finding = await self._table.find(schema)
                if self._finding.schema != schema:
                    await self._publish_schema(view, self._finding.schema)
                    continue
            streams = await self._context.catalog.get_streams(list(self._topic.streams.values()))
            if not streams:
                raise NoBacklog(f"topic {self._topic.name} was deleted")
            self._partitions = {
                idx: PartitionFacts(
                    idx,
                    OffsetBounds(streams[stream_id].start_offset, self._transactions[idx].stable_offset),
                    view.bounds_of(idx),
                    view.files.get(idx, ()),
                )
                for idx, stream_id in self._topic.streams.items()
                if stream_id in streams and idx in self._transactions
            }
            if not await self._depart(view):
                return view

    async def _publish_schema(self, view: TableView, schema: str) -> None:
        try:
            await self._table.publish_state(view, schema)
        except TableChanged:
            self._table.lose()

    async def _depart(self, view: TableView) -> bool:
        """Drop files that the topic has left, if rows could not follow them otherwise; returns whether it did."""
        left = [
            each
            for each in self._partitions.values()
            if each.files and each.stream.start_offset > each.table.end_offset
        ]
        if not left or view.info.retention is TableRetention.KEEP:
            return False
        draft = Draft(removed=plan_departure(left).dropped)
        await self._publish(view, draft)
        return True

    async def _backlog_bytes(self) -> int:
        """Return about how many bytes of blocks rows are to be made of."""
        size = 0
        for idx, partition in self._partitions.items():
            at, end = partition.missing
            while at < end:
                page = await self._context.catalog.find_ranges(self._topic.streams[idx], at, end, limit=RANGES_PAGE)
                for span in (each.range for each in page):
                    low, high = max(at, span.start_offset), min(end, span.end_offset)
                    size += span.size_bytes * max(0, high - low) // (span.end_offset - span.start_offset)
                if not page:
                    break
                at = page[-1].range.end_offset
        return size

    async def _next(self, share_bytes: int) -> WantedRows | None:
        """Return the next share; None: everything is made or on its way."""
        assert self._finding is not None, "there was a look"
        for _ in range(PLANS_MAX):
            for idx, partition in sorted(self._partitions.items()):
                transactions = self._transactions[idx]
                taken = [each.bounds for each in self._held if each.made.idx == idx]
                taken += [each.bounds for each in self._running.values() if each.idx == idx]
                gap = first_gap(partition, transactions.stable_offset, taken)
                if gap is None:
                    continue
                stream_id = self._topic.streams[idx]
                try:
                    end = await self._source.end_of_share(stream_id, *gap, bytes_max=share_bytes)
                except RowsGone:
                    await self._look()
                    break
                bounds = OffsetBounds(gap.start_offset, end)
                within = replace(transactions, aborted=transactions.aborted_between(*bounds))
                codec = self._topic.options.codec
                return WantedRows(self._topic.name, idx, stream_id, bounds, within, self._finding, codec)
            else:
                return None
        raise StorageError(f"topic {self._topic.name} loses records before they can become rows")

    def _start(self, wanted: WantedRows) -> asyncio.Future[MadeShare]:
        view = self._table.view
        assert view is not None, "there was a look"
        task = ShareTask(wanted, view.info.table_id, self._context.node, self._context.prepare_ttl_ms)
        context, location, group = self._spark.sparkContext, self._location, self._group

        def run() -> MadeShare:
            context.setJobGroup(group, f"rows of the table {wanted.topic}", interruptOnCancel=True)
            (result,) = collect(context.parallelize([task], 1).map(lambda task: make_files(location, task)))
            return result

        return asyncio.get_running_loop().run_in_executor(self._pool, run)

    async def _take(self, wanted: WantedRows, result: MadeShare) -> bool:
        """Take over what a task has made; returns whether its share has to be planned again."""
        self._summary.cpu_s += result.cpu_s
        self._summary.bytes_read += result.bytes_read
        if wanted.finding is self._finding:
            self._held += result.sent
        else:
            await self._discard(result.sent)
        if result.gone:
            await self._look()
        return result.gone

    async def _commit(self) -> None:
        """Commit what follows the table's end."""
        while True:
            view = await self._look()
            standing = divide(self._held, self._partitions, files_max=FILES_MAX)
            await self._discard(standing.overtaken)
            self._summary.overtaken += len(standing.overtaken)
            self._held = [*standing.ready, *standing.waiting]
            if not standing.ready:
                return
            draft = Draft(sent=[*standing.ready], prepared={each.file.file_id: each.file for each in standing.ready})
            if await self._publish(view, draft):
                self._held = list(standing.waiting)
                self._count(standing.ready)

    async def _publish(self, view: TableView, draft: Draft) -> bool:
        """Commit a draft; returns False if another commit was first. Its data files are left to the caller."""
        data = draft.prepared.keys() & {file.file_id for file, _ in draft.sent}
        try:
            await self._table.publish(view, draft)
        except TableChanged:
            self._table.lose()
            others = {file_id: file for file_id, file in draft.prepared.items() if file_id not in data}
            await self._table.commits.discard(Draft(prepared=others))
            return False
        self._summary.commits += 1
        return True

    async def _discard(self, files: Sequence[SentFile]) -> None:
        """Give up files, unless a commit has them."""
        if files:
            prepared = {each.file.file_id: each.file for each in files}
            await self._table.commits.discard(Draft(prepared=prepared))

    def _count(self, files: Sequence[SentFile]) -> None:
        reports: list[Any] = [each.made.report for each in files]
        self._summary.files += len(files)
        self._summary.rows += sum(report.rows for report in reports)
        self._summary.errors += sum(report.errors for report in reports)
        self._summary.bytes_written += sum(report.size_bytes for report in reports)
