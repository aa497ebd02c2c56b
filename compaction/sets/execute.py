"""Carries out a share of the first level's plan: reads blocks, checks them, writes the outputs. Knows no catalog.

A share is a value that pickles: what to read and write, and the ids of the outputs. So a run is planned, carried out
and committed in places of their own: the node does all three, a cluster of workers can carry out the shares of a plan
made elsewhere. Whoever plans prepares the ids before and commits after, once, what all shares have made.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from compaction.blocks import merge_reads, renumber_block, totals_of
from compaction.execution import ExecutionContext, OutputId, TurnBudget
from compaction.proof import BlockTotals
from compaction.sets.plan import BlockWrite, Iteration
from compaction.throttle import Throttle
from s3stream.model import NewObject, ObjectKind
from s3stream.object.writer import ObjectWriter
from s3stream.tasks import side_by_side

Blocks = Mapping[tuple[int, int], memoryview]
"""By object id and position."""
OutputIds = Mapping[tuple[ObjectKind, int], OutputId]
"""By the kind and number of the plan's writes."""


class PlanShare(NamedTuple):
    """Part of a plan that is carried out by itself; its iterations go in order, each fits the memory. It pickles."""

    iterations: Sequence[Iteration]
    ids: OutputIds

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(each.size_bytes for each in self.iterations)


class WrittenObject(NamedTuple):
    """An output that is whole in the store, and what went into it. It pickles."""

    output: NewObject
    totals: BlockTotals


class IterationExecutor:
    """Carries out iterations one after the other; the stream set object's writer goes on from one to the next."""

    def __init__(self, execution: ExecutionContext) -> None:
        self._execution = execution
        self._set_writer: ObjectWriter | None = None
        self.made: list[WrittenObject] = []

    async def execute(self, iteration: Iteration, ids: OutputIds) -> None:
        """Read, check and write. Raises BadInput and StoreError; then call `abort`."""
        blocks = await self._execution.read_blocks(iteration.reads)
        alone = [write for write in iteration.writes if write.kind is ObjectKind.SO]
        await self._write_stream_objects(alone, blocks, ids)
        for write in iteration.writes:
            if write.kind is ObjectKind.SSO:
                if self._set_writer is None:
                    self._set_writer = self._execution.writer(ids[write.kind, write.number], write.kind)
                await _write_pieces(self._set_writer, write, blocks, self._execution.throttle)
                await self._set_writer.detach_inputs()

    async def finish(self) -> Sequence[WrittenObject]:
        """End the stream set object, if there is one; returns all that was made."""
        if self._set_writer is not None:
            output = await self._set_writer.close()
            self.made.append(WrittenObject(output, totals_of(self._set_writer.entries)))
        return self.made

    async def abort(self) -> None:
        """Give up what is not finished; whatever ended the work counts more than how this ends."""
        if self._set_writer is not None:
            await self._set_writer.abandon()

    async def _write_stream_objects(self, writes: Sequence[BlockWrite], blocks: Blocks, ids: OutputIds) -> None:
        slots = asyncio.Semaphore(self._execution.in_flight)

        async def write_one(write: BlockWrite) -> WrittenObject:
            async with slots, self._execution.writer(ids[write.kind, write.number], write.kind) as writer:
                await _write_pieces(writer, write, blocks, self._execution.throttle)
                output = await writer.close()
                return WrittenObject(output, totals_of(writer.entries))

        self.made += await side_by_side(write_one(write) for write in writes)


async def execute_share(share: PlanShare, execution: ExecutionContext) -> Sequence[WrittenObject]:
    """Carry out a share. Raises BadInput and StoreError; what was written by then stays for who prepared its ids."""
    executor = IterationExecutor(execution)
    try:
        for iteration in share.iterations:
            await executor.execute(iteration, share.ids)
        return await executor.finish()
    finally:
        await executor.abort()


def split_by_kind(iteration: Iteration) -> tuple[Iteration | None, Iteration | None]:
    """What an iteration does for stream objects, and what for the stream set object: they can be apart."""

    def only(kind: ObjectKind) -> Iteration | None:
        writes = [write for write in iteration.writes if write.kind is kind]
        blocks = [block for write in writes for block in write.blocks]
        if not blocks:
            return None
        return Iteration(merge_reads(blocks), writes, sum(block.entry.size_bytes for block in blocks))

    return only(ObjectKind.SO), only(ObjectKind.SSO)


async def _write_pieces(writer: ObjectWriter, write: BlockWrite, blocks: Blocks, throttle: Throttle) -> None:
    turn = TurnBudget()
    for block in write.blocks:
        if done := turn.add(block.entry.size_bytes):
            await throttle.spend(done)
        data = blocks[block.object_id, block.entry.position]
        if block.stream_id == block.entry.stream_id:
            await writer.write_block(block.entry, data)
        else:
            await writer.write_block(*renumber_block(block.entry, data, block.stream_id))
