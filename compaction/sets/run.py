"""Runs the first level: a node's stream set objects become stream objects and at most one stream set object per store.

The outputs are written first. They are committed in one transaction, after a proof that no live data is lost or
duplicated. If a run dies before the commit, the inputs are unchanged and the prepared objects are reaped after their
deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.compaction.context import CompactionContext, CompactionProgress, ReportProgress
from anabranch.compaction.execution import OutputId, memory_for_blocks
from anabranch.compaction.outputs import PreparedOutputs
from anabranch.compaction.proof import BlockTotals, LiveRanges, prove_coverage, prove_totals, sum_totals
from anabranch.compaction.sets.execute import IterationExecutor, OutputIds, PlanShare, WrittenObject
from anabranch.compaction.sets.plan import (
    InputObject,
    Iteration,
    Survey,
    is_worthwhile,
    iterations,
    plan_in_slices,
    select_inputs,
)
from anabranch.compaction.sets.shares import plan_shares
from anabranch.compaction.throttle import Throttle, run_rate, yield_to_uploads
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import NewObject, ObjectInfo, ObjectKind
from anabranch.s3stream.object.format import BLOCK_HEADER
from anabranch.s3stream.object.writer_id import CompactionWriter
from anabranch.s3stream.tasks import side_by_side

INDEX_READS_IN_FLIGHT = 8
OBJECTS_PER_QUERY = 4
"""Objects whose ranges are in memory at once. Each can hold thousands of streams."""
RANGES_PER_TURN = 1000


class SetSelection(NamedTuple):
    """Restricts a run to some objects and streams."""

    objects: AbstractSet[int]
    """Stream set objects to compact."""
    stream_ids: AbstractSet[int]
    """Streams whose runs become stream objects at any size."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    """Plan for the stream set objects of one store."""

    store: str
    inputs: Sequence[ObjectInfo]
    survey: Survey
    starts: Mapping[int, int]
    live: LiveRanges
    """Live ranges of the inputs according to the catalog."""
    oldest_data_ms: int
    """Time of the oldest data that stays in a stream set object."""

    def iterations(self, context: CompactionContext) -> "list[Iteration]":
        """Return the whole plan at once, for display."""
        return list(iterations(self.survey, context.settings, memory_for_blocks(context.settings), context.now_ms()))


async def plan_sets(context: CompactionContext, *, full: bool, selection: SetSelection | None = None) -> list[SetPlan]:
    """Read the indexes of the node's stream set objects, or of a selection, and return a plan for each store.

    Changes nothing. Raises UnreadableInput for an object that cannot be read.
    """
    infos = await context.catalog.list_node_ssos(context.identity.node_id, limit=context.settings.objects_max)
    by_store: dict[str, list[ObjectInfo]] = {}
    for info in infos:
        is_chosen = selection is None or info.object_id in selection.objects
        if is_chosen and info.object_id not in context.left_alone:
            by_store.setdefault(info.store, []).append(info)
    plans = [
        await _plan_store(context, store, group, full=full, selection=selection)
        for store, group in sorted(by_store.items())
    ]
    return [plan for plan in plans if plan is not None]


async def _plan_store(
    context: CompactionContext, store: str, infos: Sequence[ObjectInfo], *, full: bool, selection: SetSelection | None
) -> SetPlan | None:
    now_ms = context.now_ms()
    input_objects = await _read_inputs(context, infos)
    if not full and selection is None:
        input_objects = list(select_inputs(input_objects, context.settings, now_ms))
    live = LiveRanges()
    input_objects = [each async for each in _note_ranges(context, input_objects, live)]
    streams = await context.catalog.get_streams(live.streams)
    starts = {stream_id: info.start_offset for stream_id, info in streams.items()}
    # Streams that move to another store must not share an object with those that stay. The second level moves them.
    moving = {stream_id for stream_id in starts if context.placement(stream_id) not in {None, store}}
    alone = _streams_to_split(context, full=full) if selection is None else selection.stream_ids
    survey = Survey(starts, alone | moving)
    for item in input_objects:
        for _ in survey.scan(item):
            await asyncio.sleep(0)
    if not is_worthwhile(survey, context.settings, now_ms):
        return None
    chosen = {item.object_id for item in survey.inputs}
    recent_ms = [
        item.oldest_data_ms for item in survey.inputs if now_ms - item.oldest_data_ms < context.settings.force_split_ms
    ]
    inputs = [info for info in infos if info.object_id in chosen]
    return SetPlan(store, inputs, survey, starts, live, min(recent_ms, default=now_ms))


async def _note_ranges(
    context: CompactionContext, input_objects: Sequence[InputObject], live: LiveRanges
) -> AsyncIterator[InputObject]:
    """Add the live ranges of the inputs to `live`, a few inputs at a time.

    Yields the inputs that still exist, with their clones.
    """
    for at in range(0, len(input_objects), OBJECTS_PER_QUERY):
        some = input_objects[at : at + OBJECTS_PER_QUERY]
        located = await context.catalog.object_ranges([item.object_id for item in some])
        for item in some:
            if item.object_id in located:
                clones: dict[int, list[int]] = {}
                for number, each in enumerate(located[item.object_id], 1):
                    live.add(each.range.stream_id, each.range.start_offset, each.range.end_offset)
                    if each.stored_stream_id != each.range.stream_id:
                        clones.setdefault(each.stored_stream_id, []).append(each.range.stream_id)
                    if number % RANGES_PER_TURN == 0:
                        await asyncio.sleep(0)
                yield item._replace(clones=clones)


def _streams_to_split(context: CompactionContext, *, full: bool) -> set[int]:
    """Return the streams whose runs become stream objects at any size and age.

    Log compaction needs them there: it works on stream objects only.
    """
    if context.cleaning is None:
        return set()
    policies = context.cleaning.policies()
    patience_ms = context.settings.force_split_ms
    return {stream_id for stream_id, policy in policies.items() if full or policy.cleanable_age_ms < patience_ms}


async def _read_inputs(context: CompactionContext, infos: Sequence[ObjectInfo]) -> list[InputObject]:
    """Read indexes, oldest objects first, up to the memory limit."""
    input_objects: list[InputObject] = []
    index_bytes = 0
    for at in range(0, len(infos), INDEX_READS_IN_FLIGHT):
        some = infos[at : at + INDEX_READS_IN_FLIGHT]
        indexes = await side_by_side(context.read_index(info) for info in some)
        for info, index in zip(some, indexes, strict=True):
            index_bytes += index.size_bytes
            if input_objects and index_bytes > context.settings.index_bytes_max:
                return input_objects
            input_objects.append(InputObject(info.object_id, index, info.oldest_data_ms, info.size_bytes))
    return input_objects


async def run_sets(
    context: CompactionContext,
    plan: SetPlan,
    *,
    timed: bool,
    under_pressure: Callable[[], bool],
    report: ReportProgress,
) -> Sequence[NewObject]:
    """Execute a plan and commit it. Returns the outputs.

    Raises UnreadableInput, StoreError, CatalogError, CoverageError.
    """
    prepared = PreparedOutputs(context, context.stores[plan.store])
    try:
        made = await _write_outputs(context, plan, prepared, timed=timed, under_pressure=under_pressure, report=report)
    except StorageError:
        await prepared.discard()
        raise
    return await commit_sets(context, plan, prepared, made)


async def commit_sets(
    context: CompactionContext, plan: SetPlan, prepared: PreparedOutputs, made: Sequence[WrittenObject]
) -> Sequence[NewObject]:
    """Prove that the outputs contain every live byte of the inputs, and commit them. Refused outputs are discarded.

    Raises CoverageError and CatalogError.
    """
    outputs = [each.output for each in made]
    survey = plan.survey
    try:
        # In a thread: it may take long. Nothing that it reads changes any more.
        await asyncio.to_thread(prove_coverage, plan.live, outputs, plan.starts)
        live = BlockTotals(survey.live_blocks, survey.live_records, survey.live_bytes)
        prove_totals(live, sum_totals(each.totals for each in made), BLOCK_HEADER.size)
    except StorageError:
        await prepared.discard()
        raise
    await prepared.commit([info.object_id for info in plan.inputs], outputs)
    context.stats.bytes_written += sum(output.size_bytes for output in outputs)
    return outputs


async def prepare_shares(context: CompactionContext, plan: SetPlan, prepared: PreparedOutputs) -> list[PlanShare]:
    """Divide the plan into shares for `execute_share`, the most expensive first, and prepare their ids.

    The shares can be executed anywhere and concurrently. `compaction.sets.shares` says how they are divided.
    """
    memory = memory_for_blocks(context.settings)
    planned = await asyncio.to_thread(plan_shares, plan.survey, context.settings, memory, context.now_ms())
    shares: list[PlanShare] = []
    for some in planned:
        names = OutputIdAllocator(context, plan, prepared)
        ids: dict[tuple[ObjectKind, int], OutputId] = {}
        for iteration in some:
            ids |= await names.prepare(iteration)
        shares.append(PlanShare(some, ids))
    return shares


class OutputIdAllocator:
    """Prepares the ids of a plan's outputs, iteration by iteration."""

    def __init__(self, context: CompactionContext, plan: SetPlan, prepared: PreparedOutputs) -> None:
        self._prepared = prepared
        unique = context.new_writer_id()
        self._writer = CompactionWriter(unique, min(info.oldest_data_ms for info in plan.inputs))
        self._set_writer = CompactionWriter(unique, plan.oldest_data_ms)
        self._set: dict[tuple[ObjectKind, int], OutputId] = {}

    async def prepare(self, iteration: Iteration) -> OutputIds:
        """Return ids for the writes of an iteration. The stream set object keeps its id throughout."""
        keys = [(write.kind, write.number) for write in iteration.writes]
        alone = [key for key in keys if key[0] is ObjectKind.SO]
        if len(alone) < len(keys) and not self._set:
            key = next(key for key in keys if key[0] is ObjectKind.SSO)
            (self._set[key],) = await self._prepared.prepare(1, self._set_writer)
        ids = await self._prepared.prepare(len(alone), self._writer) if alone else ()
        return {**self._set, **dict(zip(alone, ids, strict=True))}


async def _write_outputs(
    context: CompactionContext,
    plan: SetPlan,
    prepared: PreparedOutputs,
    *,
    timed: bool,
    under_pressure: Callable[[], bool],
    report: ReportProgress,
) -> Sequence[WrittenObject]:
    names = OutputIdAllocator(context, plan, prepared)
    throttle = Throttle(run_rate(plan.survey.live_bytes, context.settings) if timed else 0, context.sleep)
    executor = IterationExecutor(context.execution_context(context.stores[plan.store], throttle))
    done_bytes = 0
    report(CompactionProgress("stream sets", 0, plan.survey.live_bytes))
    try:
        for iteration in plan_in_slices(
            plan.survey, context.settings, memory_for_blocks(context.settings), context.now_ms()
        ):
            if iteration is None:
                await asyncio.sleep(0)
                continue
            if timed:
                context.stats.pauses += await yield_to_uploads(under_pressure, context.settings, context.sleep)
            await executor.execute(iteration, await names.prepare(iteration))
            context.stats.iteration_bytes_peak = max(context.stats.iteration_bytes_peak, iteration.size_bytes)
            context.stats.iterations += 1
            done_bytes += iteration.size_bytes
            report(CompactionProgress("stream sets", done_bytes, plan.survey.live_bytes))
        return await executor.finish()
    finally:
        await executor.abort()
