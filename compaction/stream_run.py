"""Carries out the second level: groups of a stream's objects become one each, group by group, a commit for each."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from compaction.node import BadInput, CompactionNode, Drafts
from compaction.plan import Piece, Source, merge_reads
from compaction.proof import Totals, prove_coverage, prove_totals
from compaction.run import memory_for_blocks
from compaction.stream_plan import Copy, Rewrite, live_entries, plan_groups, plan_segments
from compaction.throttle import Throttle, yield_to_uploads
from s3stream.errors import StorageError
from s3stream.model import NewObject, ObjectKind, RangeLocation
from s3stream.object.format import BLOCK_HEADER, IndexEntry
from s3stream.object.writer import ObjectWriter


class StreamGroup(NamedTuple):
    """Objects of a stream that become one."""

    stream_id: int
    stream_start: int
    objects: Sequence[RangeLocation]


async def plan_streams(node: CompactionNode, *, full: bool) -> list[StreamGroup]:
    """What the second level would join now; reads only the catalog."""
    settings = node.settings
    # A lone object may be worth rewriting for what lies before the stream's start.
    stream_ids = await node.catalog.list_compactable_streams(node.node_id, objects_min=1, limit=settings.streams_max)
    # Log compaction joins what it cleans.
    by_key = node.cleaning.policies() if node.cleaning is not None else {}
    stream_ids = [stream_id for stream_id in stream_ids if stream_id not in by_key]
    groups: list[StreamGroup] = []
    streams = await node.catalog.get_streams(stream_ids)
    for stream_id in stream_ids:
        if stream_id not in streams:
            continue
        start = streams[stream_id].start_offset
        for objects in _readable(await node.catalog.list_stream_objects(stream_id), node.left_alone):
            groups += [
                StreamGroup(stream_id, start, group) for group in plan_groups(objects, start, settings, full=full)
            ]
        await asyncio.sleep(0)
    return groups


def _readable(objects: Sequence[RangeLocation], left_alone: set[int]) -> Iterator[Sequence[RangeLocation]]:
    """Divide the objects at those that are left alone."""
    some: list[RangeLocation] = []
    for each in objects:
        if each.object.object_id in left_alone:
            yield some
            some = []
        else:
            some.append(each)
    yield some


async def execute_group(
    node: CompactionNode, group: StreamGroup, *, throttle: Throttle, under_pressure: Callable[[], bool]
) -> NewObject | None:
    """Join a group and commit; None when it turns out that there is nothing to gain.

    Raises BadInput, StoreError, CatalogError, CoverageError.
    """
    sources: list[tuple[int, Sequence[IndexEntry]]] = []
    dead_bytes = live_bytes = 0
    for location in group.objects:
        index = await node.read_index(location.object)
        entries = live_entries(index, group.stream_start)
        sources.append((location.object.object_id, entries))
        size = sum(entry.size_bytes for entry in entries)
        live_bytes += size
        dead_bytes += index.footer.index_position - size
    if not live_bytes or (len(sources) == 1 and dead_bytes < live_bytes * node.settings.stream_dead_ratio):
        return None
    node.stats.pauses += await yield_to_uploads(under_pressure, node.settings, node.sleep)
    store = node.store_of(group.objects[0].object)
    writer_id = node.new_writer_id()
    drafts = Drafts(node, store)
    (object_id,) = await drafts.prepare(1, writer_id)
    try:
        async with node.writer(store, object_id, ObjectKind.SO, writer_id) as writer:
            for segment in plan_segments(sources):
                if isinstance(segment, Copy):
                    await writer.copy_blocks(segment.entries, node.key(segment.object_id))
                    node.stats.bytes_copied += segment.entries[-1].end_position - segment.entries[0].position
                else:
                    await _rewrite(node, group, segment, writer, throttle)
            made = await writer.close()
        await _prove(group, sources, made, writer.entries)
    except StorageError:
        await drafts.discard()
        raise
    await drafts.commit([location.object.object_id for location in group.objects], [made])
    return made


async def _rewrite(
    node: CompactionNode, group: StreamGroup, segment: Rewrite, writer: ObjectWriter, throttle: Throttle
) -> None:
    """Read and put blocks, as many at a time as fit the memory."""
    store = node.store_of(group.objects[0].object)
    for batch in _batches(segment.blocks, memory_for_blocks(node) // 2):
        pieces = [Piece(Source(object_id, (), 0, 0), entry) for object_id, entry in batch]
        blocks = await node.read_blocks(merge_reads(pieces), store, throttle)
        for object_id, entry in batch:
            await writer.write_block(entry, blocks[object_id, entry.position])
            node.stats.bytes_written += entry.size_bytes
        await writer.settle()


def _batches(blocks: Sequence[tuple[int, IndexEntry]], bytes_max: int) -> Iterator[Sequence[tuple[int, IndexEntry]]]:
    batch: list[tuple[int, IndexEntry]] = []
    size = 0
    for object_id, entry in blocks:
        if batch and size + entry.size_bytes > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append((object_id, entry))
        size += entry.size_bytes
    if batch:
        yield batch


async def _prove(
    group: StreamGroup,
    sources: Sequence[tuple[int, Sequence[IndexEntry]]],
    made: NewObject,
    written: Sequence[IndexEntry],
) -> None:
    live = [location.range for location in group.objects]
    prove_coverage(live, [made], {group.stream_id: group.stream_start})
    read = [entry for _, entries in sources for entry in entries]
    prove_totals(_totals(read), _totals(written), BLOCK_HEADER.size)


def _totals(entries: Sequence[IndexEntry]) -> Totals:
    return Totals(
        len(entries), sum(entry.record_count for entry in entries), sum(entry.size_bytes for entry in entries)
    )


__all__ = ["BadInput", "StreamGroup", "execute_group", "plan_streams"]
