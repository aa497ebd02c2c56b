"""Carries out the first level: the stream set objects of a node become at most one (per store) and stream objects.

Data first, then one commit, after a proof that nothing live is lost or doubled. A run that dies before leaves prepared
objects that their deadline reaps, and the inputs as they were.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from compaction.execution import OutputId, memory_for_blocks
from compaction.node import CompactionNode, Progress, ReportProgress
from compaction.outputs import Drafts
from compaction.proof import LiveRanges, Totals, prove_coverage, prove_totals, sum_totals
from compaction.sets.execute import Execution, Ids, Made, Share, divide
from compaction.sets.plan import Iteration, Source, Survey, is_worthwhile, iterations, plan_in_slices, select
from compaction.throttle import Throttle, run_rate, yield_to_uploads
from s3stream.errors import StorageError
from s3stream.model import NewObject, ObjectInfo, ObjectKind
from s3stream.object.format import BLOCK_HEADER
from s3stream.object.writer_id import CompactionWriter
from s3stream.tasks import side_by_side

INDEX_READS_IN_FLIGHT = 8
OBJECTS_PER_QUERY = 4
"""Their ranges are in memory at once: thousands of streams take part in each."""
RANGES_PER_TURN = 1000


class SetChoice(NamedTuple):
    """What a run is about that does not take all."""

    objects: AbstractSet[int]
    """Stream set objects to take, and no others."""
    stream_ids: AbstractSet[int]
    """Streams whose runs become stream objects at any size."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    """What a run would do with the stream set objects of one store."""

    store: str
    inputs: Sequence[ObjectInfo]
    survey: Survey
    starts: Mapping[int, int]
    live: LiveRanges
    """Live ranges of the inputs, as the catalog has them."""
    born_ms: int
    """Birth of the oldest data that stays in a stream set object."""

    def iterations(self, node: CompactionNode) -> "list[Iteration]":
        """All of the plan at once, to be shown."""
        return list(iterations(self.survey, node.settings, memory_for_blocks(node.settings), node.now_ms()))


async def plan_sets(node: CompactionNode, *, full: bool, choice: SetChoice | None = None) -> list[SetPlan]:
    """Read the indexes of the node's stream set objects, or of some, and plan, store by store; changes nothing.

    Raises BadInput for an object that cannot be read.
    """
    infos = await node.catalog.list_node_ssos(node.node_id, limit=node.settings.objects_max)
    by_store: dict[str, list[ObjectInfo]] = {}
    for info in infos:
        is_chosen = choice is None or info.object_id in choice.objects
        if is_chosen and info.object_id not in node.left_alone:
            by_store.setdefault(info.store, []).append(info)
    plans = [
        await _plan_store(node, store, group, full=full, choice=choice) for store, group in sorted(by_store.items())
    ]
    return [plan for plan in plans if plan is not None]


async def _plan_store(
    node: CompactionNode, store: str, infos: Sequence[ObjectInfo], *, full: bool, choice: SetChoice | None
) -> SetPlan | None:
    now_ms = node.now_ms()
    sources = await _read_sources(node, infos)
    if not full and choice is None:
        sources = list(select(sources, node.settings, now_ms))
    live = LiveRanges()
    sources = [each async for each in _note_ranges(node, sources, live)]
    streams = await node.catalog.get_streams(live.streams)
    starts = {stream_id: info.start_offset for stream_id, info in streams.items()}
    # Streams whose data goes elsewhere by now share no object with those that stay; the second level moves them.
    moving = {stream_id for stream_id in starts if node.placement(stream_id) not in {None, store}}
    alone = _wanted_alone(node, full=full) if choice is None else choice.stream_ids
    survey = Survey(starts, alone | moving)
    for source in sources:
        for _ in survey.scan(source):
            await asyncio.sleep(0)
    if not is_worthwhile(survey, node.settings, now_ms):
        return None
    chosen = {source.object_id for source in survey.sources}
    young = [source.born_ms for source in survey.sources if now_ms - source.born_ms < node.settings.force_split_ms]
    inputs = [info for info in infos if info.object_id in chosen]
    return SetPlan(store, inputs, survey, starts, live, min(young, default=now_ms))


async def _note_ranges(node: CompactionNode, sources: Sequence[Source], live: LiveRanges) -> AsyncIterator[Source]:
    """Note what is live in the sources, a few at a time; gives those that are still there, with their clones."""
    for at in range(0, len(sources), OBJECTS_PER_QUERY):
        some = sources[at : at + OBJECTS_PER_QUERY]
        located = await node.catalog.object_ranges([source.object_id for source in some])
        for source in some:
            if source.object_id in located:
                clones: dict[int, list[int]] = {}
                for number, each in enumerate(located[source.object_id], 1):
                    live.add(each.range.stream_id, each.range.start_offset, each.range.end_offset)
                    if each.stored_stream_id != each.range.stream_id:
                        clones.setdefault(each.stored_stream_id, []).append(each.range.stream_id)
                    if number % RANGES_PER_TURN == 0:
                        await asyncio.sleep(0)
                yield source._replace(clones=clones)


def _wanted_alone(node: CompactionNode, *, full: bool) -> set[int]:
    """Streams that do not wait for their size or age: log compaction, which works on stream objects, wants them."""
    if node.cleaning is None:
        return set()
    policies = node.cleaning.policies()
    patience_ms = node.settings.force_split_ms
    return {stream_id for stream_id, policy in policies.items() if full or policy.ripe_ms < patience_ms}


async def _read_sources(node: CompactionNode, infos: Sequence[ObjectInfo]) -> list[Source]:
    """Read indexes, oldest objects first, as many as may be in memory."""
    sources: list[Source] = []
    index_bytes = 0
    for at in range(0, len(infos), INDEX_READS_IN_FLIGHT):
        some = infos[at : at + INDEX_READS_IN_FLIGHT]
        indexes = await side_by_side(node.read_index(info) for info in some)
        for info, index in zip(some, indexes, strict=True):
            index_bytes += index.size_bytes
            if sources and index_bytes > node.settings.index_bytes_max:
                return sources
            sources.append(Source(info.object_id, index, info.oldest_data_ms, info.size_bytes))
    return sources


async def execute_sets(
    node: CompactionNode,
    plan: SetPlan,
    *,
    timed: bool,
    under_pressure: Callable[[], bool],
    report: ReportProgress,
) -> Sequence[NewObject]:
    """Carry out a plan and commit it; returns the outputs. Raises BadInput, StoreError, CatalogError, CoverageError."""
    drafts = Drafts(node, node.stores[plan.store])
    try:
        made = await _write_outputs(node, plan, drafts, timed=timed, under_pressure=under_pressure, report=report)
    except StorageError:
        await drafts.discard()
        raise
    return await commit_sets(node, plan, drafts, made)


async def commit_sets(node: CompactionNode, plan: SetPlan, drafts: Drafts, made: Sequence[Made]) -> Sequence[NewObject]:
    """Prove that what was made holds every live byte of the inputs, and swap them; what is refused is discarded.

    Raises CoverageError and CatalogError.
    """
    outputs = [each.output for each in made]
    survey = plan.survey
    try:
        # Beside the event loop: it may take long, and looks only at what changes no more.
        await asyncio.to_thread(prove_coverage, plan.live, outputs, plan.starts)
        live = Totals(survey.live_blocks, survey.live_records, survey.live_bytes)
        prove_totals(live, sum_totals(each.totals for each in made), BLOCK_HEADER.size)
    except StorageError:
        await drafts.discard()
        raise
    await drafts.commit([info.object_id for info in plan.inputs], outputs)
    node.stats.bytes_written += sum(output.size_bytes for output in outputs)
    return outputs


async def prepare_shares(node: CompactionNode, plan: SetPlan, drafts: Drafts) -> list[Share]:
    """The whole plan in shares that may be carried out anywhere, at the same time, by `execute_share`.

    Each iteration's stream objects are a share; all that goes to the stream set object is one, the last.
    """
    now_ms = node.now_ms()
    shares: list[Share] = []
    set_iterations: list[Iteration] = []
    names = Names(node, plan, drafts)
    for iteration in plan_in_slices(plan.survey, node.settings, memory_for_blocks(node.settings), now_ms):
        if iteration is None:
            await asyncio.sleep(0)
            continue
        own, shared = divide(iteration)
        if own is not None:
            shares.append(Share([own], await names.prepare(own)))
        if shared is not None:
            set_iterations.append(shared)
    if set_iterations:
        shares.append(Share(set_iterations, await names.prepare(set_iterations[0])))
    return shares


class Names:
    """Prepares the ids of a plan's outputs as its iterations come up."""

    def __init__(self, node: CompactionNode, plan: SetPlan, drafts: Drafts) -> None:
        self._drafts = drafts
        unique = node.new_writer_id()
        self._writer = CompactionWriter(unique, min(info.oldest_data_ms for info in plan.inputs))
        self._set_writer = CompactionWriter(unique, plan.born_ms)
        self._set: dict[tuple[ObjectKind, int], OutputId] = {}

    async def prepare(self, iteration: Iteration) -> Ids:
        """Ids for what the iteration writes; the stream set object's stays the same."""
        keys = [(write.kind, write.number) for write in iteration.writes]
        alone = [key for key in keys if key[0] is ObjectKind.SO]
        if len(alone) < len(keys) and not self._set:
            key = next(key for key in keys if key[0] is ObjectKind.SSO)
            (self._set[key],) = await self._drafts.prepare(1, self._set_writer)
        ids = await self._drafts.prepare(len(alone), self._writer) if alone else ()
        return {**self._set, **dict(zip(alone, ids, strict=True))}


async def _write_outputs(
    node: CompactionNode,
    plan: SetPlan,
    drafts: Drafts,
    *,
    timed: bool,
    under_pressure: Callable[[], bool],
    report: ReportProgress,
) -> Sequence[Made]:
    names = Names(node, plan, drafts)
    throttle = Throttle(run_rate(plan.survey.live_bytes, node.settings) if timed else 0, node.sleep)
    execution = Execution(node.workshop(node.stores[plan.store], throttle))
    done_bytes = 0
    report(Progress("stream sets", 0, plan.survey.live_bytes))
    try:
        for iteration in plan_in_slices(plan.survey, node.settings, memory_for_blocks(node.settings), node.now_ms()):
            if iteration is None:
                await asyncio.sleep(0)
                continue
            if timed:
                node.stats.pauses += await yield_to_uploads(under_pressure, node.settings, node.sleep)
            await execution.carry_out(iteration, await names.prepare(iteration))
            node.stats.iteration_bytes_peak = max(node.stats.iteration_bytes_peak, iteration.size_bytes)
            node.stats.iterations += 1
            done_bytes += iteration.size_bytes
            report(Progress("stream sets", done_bytes, plan.survey.live_bytes))
        return await execution.finish()
    finally:
        await execution.abort()
