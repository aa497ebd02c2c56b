"""Carries out a group of the second level: several objects of a stream become one. Knows no catalog.

As in `compaction.sets.execute`, all that goes in and comes out pickles: a group may be joined anywhere between its
planning and its commit.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compaction.blocks import Piece, live_entries, merge_reads, totals_of
from compaction.execution import OutputId, Turn, Workshop, memory_for_blocks
from compaction.joins.plan import Copy, Rewrite, StreamGroup, plan_segments
from compaction.proof import Totals
from s3stream.model import NewObject, ObjectKind
from s3stream.object.format import IndexEntry
from s3stream.object.writer import ObjectWriter


class Join(NamedTuple):
    """A group with the live blocks of its objects, by object in offset order."""

    sources: Sequence[tuple[int, Sequence[IndexEntry]]]


class Joined(NamedTuple):
    """What was made of a group."""

    output: NewObject
    read: Totals
    written: Totals
    copied_bytes: int
    """Joined by the store."""
    rewritten_bytes: int
    """Read and put."""


async def survey_join(group: StreamGroup, workshop: Workshop) -> Join | None:
    """Read the indexes; None when it turns out that there is nothing to gain. Raises BadInput and StoreError."""
    sources: list[tuple[int, Sequence[IndexEntry]]] = []
    dead_bytes = live_bytes = 0
    for location in group.objects:
        index = await workshop.read_index(location.object)
        entries = live_entries(index, group.stream_start)
        sources.append((location.object.object_id, entries))
        size = sum(entry.size_bytes for entry in entries)
        live_bytes += size
        dead_bytes += index.footer.index_position - size
    if not live_bytes or (len(sources) == 1 and dead_bytes < live_bytes * workshop.settings.stream_dead_ratio):
        return None
    return Join(sources)


async def execute_join(join: Join, output: OutputId, workshop: Workshop) -> Joined:
    """Write the one object. Raises BadInput and StoreError; nothing is visible then."""
    copied = rewritten = 0
    async with workshop.writer(output, ObjectKind.SO) as writer:
        for segment in _segments(join, workshop):
            if isinstance(segment, Copy):
                size = segment.entries[-1].end_position - segment.entries[0].position
                await workshop.throttle.spend(size)
                await writer.copy_blocks(segment.entries, workshop.key(segment.object_id))
                copied += size
            else:
                await _rewrite(segment, writer, workshop)
                rewritten += sum(entry.size_bytes for _, entry in segment.blocks)
        made = await writer.close()
        written = totals_of(writer.entries)
    read = totals_of([entry for _, entries in join.sources for entry in entries])
    return Joined(made, read, written, copied, rewritten)


def _segments(join: Join, workshop: Workshop) -> Sequence[Copy | Rewrite]:
    """A store copies only what it holds itself."""
    if workshop.target is None:
        return plan_segments(join.sources)
    return [Rewrite([(object_id, entry) for object_id, entries in join.sources for entry in entries])]


async def _rewrite(segment: Rewrite, writer: ObjectWriter, workshop: Workshop) -> None:
    """Read and put blocks, as many at a time as fit the memory."""
    for batch in _batches(segment.blocks, memory_for_blocks(workshop.settings) // 2):
        blocks = await workshop.read_blocks(merge_reads(Piece(each, entry, entry.stream_id) for each, entry in batch))
        turn = Turn()
        for object_id, entry in batch:
            if done := turn.add(entry.size_bytes):
                await workshop.throttle.spend(done)
            await writer.write_block(entry, blocks[object_id, entry.position])
        await writer.detach_inputs()


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
