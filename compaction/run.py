"""Carries out the first level: the stream set objects of a node become at most one (per store) and stream objects.

Data first, then one commit, after a proof that nothing live is lost or doubled. A run that dies before leaves prepared
objects that their deadline reaps, and the inputs as they were.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compaction.node import BadInput, CompactionNode, Drafts, Progress, ReportProgress, born_ms, labelled_writer_id
from compaction.plan import (
    SLICE_BLOCKS,
    Iteration,
    Source,
    Survey,
    Write,
    is_worthwhile,
    iterations,
    plan_in_slices,
    select,
)
from compaction.proof import Totals, prove_coverage, prove_totals
from compaction.throttle import Throttle, run_rate, yield_to_uploads
from s3stream.errors import StorageError
from s3stream.model import NewObject, ObjectInfo, ObjectKind, RangeLocation, StreamRange
from s3stream.object.format import BLOCK_HEADER, IndexEntry
from s3stream.object.writer import ObjectWriter
from s3stream.store.interface import ObjectStore

WRITER_RESERVE_PARTS = 3
"""Parts that the writer of the stream set object may hold from one iteration to the next."""
INDEX_READS_IN_FLIGHT = 8

Blocks = Mapping[tuple[int, int], memoryview]


@dataclass(frozen=True, slots=True)
class SetPlan:
    """What a run would do with the stream set objects of one store."""

    store: str
    inputs: Sequence[ObjectInfo]
    survey: Survey
    starts: Mapping[int, int]
    live: Sequence[StreamRange]
    """Live ranges of the inputs, as the catalog has them."""
    born_ms: int
    """Birth of the oldest data that stays in a stream set object."""

    def iterations(self, node: CompactionNode) -> "list[Iteration]":
        """All of the plan at once, to be shown."""
        return list(iterations(self.survey, node.settings, memory_for_blocks(node), node.now_ms()))


@dataclass(slots=True)
class _Run:
    """What a run has made so far."""

    outputs: list[NewObject] = field(default_factory=list)
    blocks: int = 0
    records: int = 0
    size_bytes: int = 0

    def add(self, made: NewObject, entries: Sequence[IndexEntry]) -> None:
        self.outputs.append(made)
        self.blocks += len(entries)
        self.records += sum(entry.record_count for entry in entries)
        self.size_bytes += sum(entry.size_bytes for entry in entries)


def memory_for_blocks(node: CompactionNode) -> int:
    """What the blocks of an iteration may take of the memory."""
    memory = node.settings.memory_bytes
    return max(memory // 2, memory - WRITER_RESERVE_PARTS * node.settings.part_bytes)


async def plan_sets(node: CompactionNode, *, full: bool) -> list[SetPlan]:
    """Read the indexes of the node's stream set objects and plan, store by store; changes nothing.

    Raises BadInput for an object that cannot be read.
    """
    infos = await node.catalog.list_node_ssos(node.node_id, limit=node.settings.objects_max)
    by_store: dict[str, list[ObjectInfo]] = {}
    for info in infos:
        if info.object_id not in node.left_alone:
            by_store.setdefault(info.store, []).append(info)
    plans = [await _plan_store(node, store, group, full=full) for store, group in sorted(by_store.items())]
    return [plan for plan in plans if plan is not None]


async def _plan_store(node: CompactionNode, store: str, infos: Sequence[ObjectInfo], *, full: bool) -> SetPlan | None:
    now_ms = node.now_ms()
    sources = await _read_sources(node, infos)
    if not full:
        sources = list(select(sources, node.settings, now_ms))
    located = await node.catalog.object_ranges([source.object_id for source in sources])
    live, stream_ids = await asyncio.to_thread(_live_ranges, located)
    streams = await node.catalog.get_streams(stream_ids)
    starts = {stream_id: info.start_offset for stream_id, info in streams.items()}
    # Log compaction works on stream objects: when all is wanted, its streams do not wait for their size or age.
    by_key = node.cleaning.policies() if full and node.cleaning is not None else {}
    survey = Survey(starts, by_key)
    for source in sources:
        # An object may have been destroyed since it was listed.
        if source.object_id in located:
            for _ in survey.scan(source):
                await asyncio.sleep(0)
    if not is_worthwhile(survey, node.settings, now_ms):
        return None
    chosen = {source.object_id for source in survey.sources}
    young = [source.born_ms for source in survey.sources if now_ms - source.born_ms < node.settings.force_split_ms]
    inputs = [info for info in infos if info.object_id in chosen]
    return SetPlan(store, inputs, survey, starts, live, min(young, default=now_ms))


def _live_ranges(located: Mapping[int, Sequence[RangeLocation]]) -> tuple[list[StreamRange], list[int]]:
    """All ranges, and the streams they are of."""
    live = [location.range for ranges in located.values() for location in ranges]
    return live, sorted({each.stream_id for each in live})


async def _read_sources(node: CompactionNode, infos: Sequence[ObjectInfo]) -> list[Source]:
    """Read indexes, oldest objects first, as many as may be in memory."""
    sources: list[Source] = []
    index_bytes = 0
    for at in range(0, len(infos), INDEX_READS_IN_FLIGHT):
        some = infos[at : at + INDEX_READS_IN_FLIGHT]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(node.read_index(info)) for info in some]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        for info, task in zip(some, tasks, strict=True):
            index = task.result()
            index_bytes += index.size_bytes
            if sources and index_bytes > node.settings.index_bytes_max:
                return sources
            sources.append(Source(info.object_id, index, born_ms(info), info.size_bytes))
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
    store = node.stores[plan.store]
    run = _Run()
    drafts = Drafts(node, store)
    try:
        await _write_outputs(node, plan, drafts, run, timed=timed, under_pressure=under_pressure, report=report)
        # Beside the event loop: it may take long, and looks only at what changes no more.
        await asyncio.to_thread(prove_coverage, plan.live, run.outputs, plan.starts)
        survey = plan.survey
        prove_totals(
            Totals(survey.live_blocks, survey.live_records, survey.live_bytes),
            Totals(run.blocks, run.records, run.size_bytes),
            BLOCK_HEADER.size,
        )
    except StorageError:
        await drafts.discard()
        raise
    await drafts.commit([info.object_id for info in plan.inputs], run.outputs)
    node.stats.bytes_written += sum(output.size_bytes for output in run.outputs)
    return run.outputs


async def _write_outputs(
    node: CompactionNode,
    plan: SetPlan,
    drafts: Drafts,
    run: _Run,
    *,
    timed: bool,
    under_pressure: Callable[[], bool],
    report: ReportProgress,
) -> None:
    store = node.stores[plan.store]
    writer_id = node.new_writer_id()
    set_writer_id = labelled_writer_id(writer_id, plan.born_ms)
    throttle = Throttle(run_rate(plan.survey.live_bytes, node.settings) if timed else 0, node.sleep)
    set_writer: ObjectWriter | None = None
    done_bytes = 0
    report(Progress("stream sets", 0, plan.survey.live_bytes))
    try:
        for iteration in plan_in_slices(plan.survey, node.settings, memory_for_blocks(node), node.now_ms()):
            if iteration is None:
                await asyncio.sleep(0)
                continue
            if timed:
                node.stats.pauses += await yield_to_uploads(under_pressure, node.settings, node.sleep)
            blocks = await node.read_blocks(iteration.reads, store, throttle)
            node.stats.iteration_bytes_peak = max(node.stats.iteration_bytes_peak, iteration.size_bytes)
            alone = [write for write in iteration.writes if write.kind is ObjectKind.SO]
            await _write_stream_objects(node, store, drafts, writer_id, alone, blocks, run)
            for write in iteration.writes:
                if write.kind is ObjectKind.SSO:
                    if set_writer is None:
                        (object_id,) = await drafts.prepare(1, set_writer_id)
                        set_writer = node.writer(store, object_id, ObjectKind.SSO, set_writer_id)
                    await _write_pieces(set_writer, write, blocks)
                    await set_writer.settle()
            del blocks
            node.stats.iterations += 1
            done_bytes += iteration.size_bytes
            report(Progress("stream sets", done_bytes, plan.survey.live_bytes))
        if set_writer is not None:
            run.add(await set_writer.close(), set_writer.entries)
    finally:
        if set_writer is not None:
            await set_writer.abort()


async def _write_stream_objects(
    node: CompactionNode,
    store: ObjectStore,
    drafts: Drafts,
    writer_id: str,
    writes: Sequence[Write],
    blocks: Blocks,
    run: _Run,
) -> None:
    if not writes:
        return
    object_ids = await drafts.prepare(len(writes), writer_id)
    slots = asyncio.Semaphore(node.settings.reads_in_flight)

    async def write_one(write: Write, object_id: int) -> tuple[NewObject, Sequence[IndexEntry]]:
        async with slots, node.writer(store, object_id, ObjectKind.SO, writer_id) as writer:
            await _write_pieces(writer, write, blocks)
            return await writer.close(), writer.entries

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(write_one(write, object_id))
                for write, object_id in zip(writes, object_ids, strict=True)
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    for task in tasks:
        run.add(*task.result())


async def _write_pieces(writer: ObjectWriter, write: Write, blocks: Blocks) -> None:
    for at, piece in enumerate(write.pieces, 1):
        if at % SLICE_BLOCKS == 0:
            await asyncio.sleep(0)
        await writer.write_block(piece.entry, blocks[piece.source.object_id, piece.entry.position])


__all__ = ["BadInput", "SetPlan", "execute_sets", "memory_for_blocks", "plan_sets"]
