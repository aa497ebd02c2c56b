"""Executes a join of the second level: several objects of a stream become one. Does not depend on the catalog.

All inputs and results can be pickled, as in `compaction.sets.execute`: a group can be joined in another process than
the one that plans and commits.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anabranch.compaction.blocks import LiveBlock, live_entries, merge_reads, totals_of
from anabranch.compaction.execution import ExecutionContext, OutputId, TurnBudget, memory_for_blocks
from anabranch.compaction.joins.plan import CopySegment, JoinGroup, RewriteSegment, plan_segments
from anabranch.compaction.proof import BlockTotals
from anabranch.s3stream.model import NewObject, ObjectKind
from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.object.writer import ObjectWriter


class JoinInputs(NamedTuple):
    """A group with the live blocks of its objects, by object in offset order."""

    input_objects: Sequence[tuple[int, Sequence[IndexEntry]]]


class JoinedObject(NamedTuple):
    """The output of a join, with totals of what was read and written."""

    output: NewObject
    read: BlockTotals
    written: BlockTotals
    copied_bytes: int
    """Bytes copied by the store itself."""
    rewritten_bytes: int
    """Bytes read and uploaded again."""


async def read_join_inputs(group: JoinGroup, execution: ExecutionContext) -> JoinInputs | None:
    """Read the indexes of a group. Returns None if joining would gain nothing.

    Raises UnreadableInput and StoreError.
    """
    input_objects: list[tuple[int, Sequence[IndexEntry]]] = []
    dead_bytes = live_bytes = 0
    for location in group.objects:
        index = await execution.read_index(location.object)
        entries = live_entries(index, group.stream_start)
        input_objects.append((location.object.object_id, entries))
        size = sum(entry.size_bytes for entry in entries)
        live_bytes += size
        dead_bytes += index.footer.index_position - size
    if not live_bytes or (len(input_objects) == 1 and dead_bytes < live_bytes * execution.settings.stream_dead_ratio):
        return None
    return JoinInputs(input_objects)


async def execute_join(join: JoinInputs, output: OutputId, execution: ExecutionContext) -> JoinedObject:
    """Write the joined object. Raises UnreadableInput and StoreError; nothing is visible then."""
    copied = rewritten = 0
    async with execution.writer(output, ObjectKind.SO) as writer:
        for segment in _segments(join, execution):
            if isinstance(segment, CopySegment):
                size = segment.entries[-1].end_position - segment.entries[0].position
                await execution.throttle.spend(size)
                await writer.copy_blocks(segment.entries, execution.key(segment.object_id))
                copied += size
            else:
                await _rewrite(segment, writer, execution)
                rewritten += sum(entry.size_bytes for _, entry in segment.blocks)
        made = await writer.finish()
        written = totals_of(writer.entries)
    read = totals_of([entry for _, entries in join.input_objects for entry in entries])
    return JoinedObject(made, read, written, copied, rewritten)


def _segments(join: JoinInputs, execution: ExecutionContext) -> Sequence[CopySegment | RewriteSegment]:
    """Return the segments of the output. A store can copy only objects of its own."""
    if execution.target is None:
        return plan_segments(join.input_objects)
    return [RewriteSegment([(object_id, entry) for object_id, entries in join.input_objects for entry in entries])]


async def _rewrite(segment: RewriteSegment, writer: ObjectWriter, execution: ExecutionContext) -> None:
    """Read and upload blocks, as many at a time as fit the memory."""
    for batch in _batches(segment.blocks, memory_for_blocks(execution.settings) // 2):
        blocks = await execution.read_blocks(
            merge_reads(LiveBlock(each, entry, entry.stream_id) for each, entry in batch)
        )
        turn = TurnBudget()
        for object_id, entry in batch:
            if done := turn.add(entry.size_bytes):
                await execution.throttle.spend(done)
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
