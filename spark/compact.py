"""Compaction on Spark: plans of `compaction`, executed by tasks and committed by the driver.

For a backlog that is too large for a node's own memory and bandwidth. The job acts for a node under the epoch that the
catalog has for it, so a restart of the node fences the job. The catalog refuses inputs that the node's own compaction
has replaced in the meantime: if two work on the same objects, one commits, and the job plans again. Planner, proof and
commit are the node's.

Each attempt at a task writes under separate ids, so that late writes of a lost executor cannot touch another attempt's
output. Dead tasks, a failed job or a killed driver leave prepared objects, which are reaped after their deadline. The
inputs stay unchanged, and the next run does the work. Topics that are compacted by key are left to the node, which can
decode their batches.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from pyspark import TaskContext
from pyspark.sql import SparkSession

from anabranch.compaction.context import CompactionContext
from anabranch.compaction.execution import ExecutionContext, OutputId, UnreadableInput
from anabranch.compaction.joins.execute import JoinedObject, execute_join, read_join_inputs
from anabranch.compaction.joins.plan import JoinGroup, batch_groups
from anabranch.compaction.joins.run import commit_join, plan_joins
from anabranch.compaction.outputs import PreparedOutputs
from anabranch.compaction.sets.execute import OutputIds, PlanShare, WrittenObject, execute_share
from anabranch.compaction.sets.run import SetPlan, commit_sets, plan_sets, prepare_shares
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo
from anabranch.s3stream.errors import CatalogError, ObjectNotFound, StorageError
from anabranch.s3stream.model import NewObject
from anabranch.s3stream.object.writer_id import CompactionWriter
from anabranch.s3stream.tasks import side_by_side
from anabranch.spark.storage import StorageLocation, opened_catalog, opened_stores
from anabranch.spark.tasks import TasksFailed, collect

log = structlog.get_logger(__name__)

ATTEMPTS_DEFAULT: Final = 4
"""Spark's default of `spark.task.maxFailures`."""
PLANS_MAX: Final = 100
"""Limit of plans made again because an input could not be read or the node's own compaction was faster."""
MIB: Final = 1 << 20


@dataclass(slots=True)
class SparkCompactionSummary:
    """Result of a run."""

    objects_in: int = 0
    objects_out: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    tasks: int = 0
    commits: int = 0
    refused: list[str] = field(default_factory=list)
    """Errors of failed work, and refusals by the catalog or the proof. Its inputs stay unchanged."""
    left_alone: list[int] = field(default_factory=list)
    """Objects that could not be read."""
    overtaken: int = 0
    """Plans whose inputs the node's own compaction had replaced when they were to be read or committed."""

    def add(self, inputs: int, outputs: Sequence[NewObject]) -> None:
        """Count a commit."""
        self.commits += 1
        self.objects_in += inputs
        self.objects_out += len(outputs)
        self.bytes_written += sum(output.size_bytes for output in outputs)


class _ShareTask(NamedTuple):
    """A share of a plan, with ids for each attempt at it."""

    share: PlanShare
    ids: Sequence[OutputIds]
    store: str


class _Join(NamedTuple):
    """A group to join, with an id for each attempt at it."""

    group: JoinGroup
    ids: Sequence[OutputId]


class _JoinTask(NamedTuple):
    """Groups to join, all in one store. Several together fit the memory."""

    joins: Sequence[_Join]
    store: str


class _ShareResult(NamedTuple):
    """Outputs of a share, or the input that could not be read."""

    attempt: int
    made: Sequence[WrittenObject] = ()
    bad: UnreadableInput | None = None


class _JoinResult(NamedTuple):
    """Output of a group, or what could not be read. Neither, if joining would gain nothing."""

    attempt: int
    joined: JoinedObject | None = None
    bad: UnreadableInput | None = None
    gone: ObjectNotFound | None = None
    """Error of the store while it copied an input; it does not name the input."""


Task = TypeVar("Task", _ShareTask, _JoinTask)
Result = TypeVar("Result")


# in tasks


def run_share(location: StorageLocation, settings: CompactionSettings, task: _ShareTask) -> _ShareResult:
    """Execute a share. Damage in an input is a result; other errors are raised for Spark to retry."""
    attempt = _attempt(task.ids)
    share = task.share._replace(ids=task.ids[attempt])

    async def run() -> _ShareResult:
        async with _execution(location, settings, task.store) as execution:
            try:
                return _ShareResult(attempt, await execute_share(share, execution))
            except UnreadableInput as error:
                return _ShareResult(attempt, bad=error)

    return asyncio.run(run())


def run_joins(location: StorageLocation, settings: CompactionSettings, task: _JoinTask) -> list[_JoinResult]:
    """Join groups, several at a time. Damage in an input ends its group only; other errors are for Spark to retry."""
    attempt = _attempt(task.joins[0].ids)

    async def run() -> list[_JoinResult]:
        slots = asyncio.Semaphore(settings.reads_in_flight)

        async def join(each: _Join) -> _JoinResult:
            async with slots:
                try:
                    inputs = await read_join_inputs(each.group, execution)
                    if inputs is None:
                        return _JoinResult(attempt)
                    return _JoinResult(attempt, await execute_join(inputs, each.ids[attempt], execution))
                except UnreadableInput as error:
                    return _JoinResult(attempt, bad=error)
                except ObjectNotFound as error:
                    return _JoinResult(attempt, gone=error)

        async with _execution(location, settings, task.store) as execution:
            return await side_by_side(join(each) for each in task.joins)

    return asyncio.run(run())


def _attempt(ids: Sequence[object]) -> int:
    """Return the number of this attempt at a task, from 0. Raises TasksFailed if there are no ids for it."""
    context = TaskContext.get()
    attempt = context.attemptNumber() if context is not None else 0
    if attempt >= len(ids):
        raise TasksFailed(f"attempt {attempt} at a task that has ids for {len(ids)}: spark.task.maxFailures was raised")
    return attempt


@asynccontextmanager
async def _execution(
    location: StorageLocation, settings: CompactionSettings, store: str
) -> AsyncIterator[ExecutionContext]:
    async with opened_stores(location, read_only=False) as stores:

        async def note(object_id: int, upload_id: str) -> None:
            async with opened_catalog(location, read_only=False) as catalog:
                await catalog.note_multipart(object_id, upload_id)

        yield ExecutionContext(stores[store], location.cluster, settings, on_multipart=note)


# on the driver


class SparkCompaction:
    """One run over the nodes of a cluster."""

    def __init__(
        self,
        spark: SparkSession,
        location: StorageLocation,
        settings: CompactionSettings,
        *,
        now_ms: Callable[[], int],
        new_writer_id: Callable[[], str],
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._spark = spark
        self._location = location
        self._settings = settings
        self._now_ms = now_ms
        self._new_writer_id = new_writer_id
        self._report = report
        conf = spark.sparkContext.getConf()
        self._attempts = int(conf.get("spark.task.maxFailures", None) or ATTEMPTS_DEFAULT)
        self.summary = SparkCompactionSummary()

    async def run(self, *, node_ids: Sequence[int] = (), full: bool = True) -> SparkCompactionSummary:
        """Compact both levels, node by node. Raises CatalogError and StoreError."""
        async with AsyncExitStack() as stack:
            catalog = await stack.enter_async_context(opened_catalog(self._location, read_only=False))
            stores = await stack.enter_async_context(opened_stores(self._location, read_only=False))
            for info in await catalog.list_nodes():
                if not node_ids or info.node_id in node_ids:
                    node = self._node(catalog, stores, info)
                    for level in (self._join_sets, self._join_streams):
                        for _ in range(PLANS_MAX):
                            if not await level(node, full=full):
                                break
                    self.summary.left_alone += sorted(node.left_alone)
        return self.summary

    def _node(self, catalog: Catalog, stores: Mapping[str, Any], info: NodeInfo) -> CompactionContext:
        return CompactionContext(
            catalog=catalog,
            stores=stores,
            settings=self._settings,
            cluster=self._location.cluster,
            identity=info.identity,
            now_ms=self._now_ms,
            new_writer_id=self._new_writer_id,
        )

    async def _join_sets(self, node: CompactionContext, *, full: bool) -> bool:
        """Run the first level. Returns True if it is to be planned again."""
        try:
            plans = await plan_sets(node, full=full)
        except UnreadableInput as error:
            await self._leave_out(node, [error.object_id])
            return True
        return any([await self._execute(node, plan) for plan in plans])

    async def _leave_out(self, node: CompactionContext, object_ids: Sequence[int]) -> None:
        """Exclude a plan's unreadable inputs from later plans, unless they are no longer in use."""
        replaced = {object_id for object_id in object_ids if await node.any_replaced([object_id])}
        node.left_alone.update(set(object_ids) - replaced)
        self.summary.overtaken += bool(replaced)

    async def _refuse(self, node: CompactionContext, inputs: Sequence[int], error: StorageError) -> bool:
        """Report work that was not committed. Returns True if its inputs were replaced: it is to be planned again."""
        if await node.any_replaced(inputs):
            self.summary.overtaken += 1
            return True
        self.summary.refused.append(str(error))
        return False

    async def _execute(self, node: CompactionContext, plan: SetPlan) -> bool:
        """Execute and commit a plan. Returns True if it is to be made again."""
        prepared = PreparedOutputs(node, node.stores[plan.store])
        shares = await prepare_shares(node, plan, prepared)
        tasks = [_ShareTask(share, await self._share_ids(prepared, share), plan.store) for share in shares]
        self._report(f"node {node.identity.node_id}: {len(plan.inputs)} stream set objects in {len(tasks)} tasks")
        try:
            done = await self._run_tasks(tasks, run_share)
        except TasksFailed as error:
            self.summary.refused.append(str(error))
            return False
        bad = [each.bad for each in done if each.bad is not None]
        if bad:
            await self._leave_out(node, [error.object_id for error in bad])
            await prepared.discard()
            return True
        self.summary.bytes_read += sum(task.share.size_bytes for task in tasks)
        made = [made for each in done for made in each.made]
        try:
            self.summary.add(len(plan.inputs), await commit_sets(node, plan, prepared, made))
        except StorageError as error:
            return await self._refuse(node, [info.object_id for info in plan.inputs], error)
        unused = [
            output.object_id
            for task, each in zip(tasks, done, strict=True)
            for ids in task.ids[each.attempt + 1 :]
            for output in ids.values()
        ]
        await self._forget_unused(node, unused)
        return False

    async def _share_ids(self, prepared: PreparedOutputs, share: PlanShare) -> list[OutputIds]:
        """Return ids for each attempt: those of the share, and new ones for each retry."""
        writer = next(iter(share.ids.values())).writer
        ids: list[OutputIds] = [share.ids]
        for _ in range(self._attempts - 1):
            again = await prepared.prepare(len(share.ids), writer)
            ids.append(dict(zip(share.ids, again, strict=True)))
        return ids

    async def _join_streams(self, node: CompactionContext, *, full: bool) -> bool:
        """Run the second level. Returns True if it is to be planned again."""
        by_key = await self._compacted_by_key(node.catalog)
        groups = [group for group in await plan_joins(node, full=full) if group.stream_id not in by_key]
        tasks: list[_JoinTask] = []
        prepared: list[PreparedOutputs] = []
        for batch in batch_groups(groups, self._settings):
            store = node.store_of(batch[0].objects[0].object)
            joins: list[_Join] = []
            for group in batch:
                own = PreparedOutputs(node, store)
                oldest_ms = min(location.object.oldest_data_ms for location in group.objects)
                writer = CompactionWriter(self._new_writer_id(), oldest_ms)
                joins.append(_Join(group, await own.prepare(self._attempts, writer)))
                prepared.append(own)
            tasks.append(_JoinTask(joins, store.name))
        if not tasks:
            return False
        self._report(f"node {node.identity.node_id}: {len(groups)} groups of stream objects in {len(tasks)} tasks")
        try:
            done = await self._run_tasks(tasks, run_joins)
        except TasksFailed as error:
            self.summary.refused.append(str(error))
            return False
        joins = [join for task in tasks for join in task.joins]
        results = zip(joins, prepared, chain.from_iterable(done), strict=True)
        return any([await self._commit_join(node, *each) for each in results])

    async def _commit_join(
        self, node: CompactionContext, join: _Join, prepared: PreparedOutputs, done: _JoinResult
    ) -> bool:
        """Commit the output of a join. Returns True if the group must be planned again."""
        inputs = [each.object.object_id for each in join.group.objects]
        if done.joined is None:
            await prepared.discard()
        if done.bad is not None:
            await self._leave_out(node, [done.bad.object_id])
            return True
        if done.gone is not None:
            return await self._refuse(node, inputs, done.gone)
        if done.joined is None:
            return False
        self.summary.bytes_read += done.joined.rewritten_bytes
        try:
            output = await commit_join(node, join.group, prepared, done.joined)
        except StorageError as error:
            return await self._refuse(node, inputs, error)
        self.summary.add(len(inputs), [output])
        await self._forget_unused(node, [unused.object_id for unused in join.ids[done.attempt + 1 :]])
        return False

    async def _compacted_by_key(self, catalog: Catalog) -> set[int]:
        return {
            partition.stream_id
            for topic in await catalog.list_topics()
            if topic.internal or "compact" in topic.configs.get("cleanup.policy", "")
            for partition in topic.partitions
        }

    async def _run_tasks(
        self, tasks: Sequence[Task], run: Callable[[StorageLocation, CompactionSettings, Task], Result]
    ) -> list[Result]:
        """Run tasks on Spark, and return their results in order. Raises TasksFailed.

        After a failure tasks may still be writing, so their outputs are left to the deadline.
        """
        location, settings = self._location.without_password(), self._settings
        self.summary.tasks += len(tasks)
        if not tasks:
            return []
        # A partition for each task: a lost executor costs only its current one. Spark starts them in order.
        job = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(lambda task: run(location, settings, task))
        return await asyncio.to_thread(collect, job)

    async def _forget_unused(self, node: CompactionContext, object_ids: Sequence[int]) -> None:
        """Remove ids that no attempt has used.

        With speculation a late attempt may still use them: they are left to the deadline then.
        """
        if self._spark.sparkContext.getConf().get("spark.speculation", "false") == "true":
            return
        try:
            await node.catalog.forget_objects(object_ids)
        except CatalogError as error:
            log.warning("unused object ids stay until their deadline", error=str(error))
