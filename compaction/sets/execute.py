"""Carries out the first level's plans: reads and checks blocks, writes the outputs. Does not depend on the catalog.

A share is part of a plan as a value that can be pickled: what to read and write, and the ids of the outputs. Planning,
execution and commit can therefore happen in different processes. A node does all three; workers of a cluster can
execute the shares of a plan made elsewhere. The planner prepares the ids first, and commits the outputs of all shares
once at the end.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.compaction.blocks import renumber_block, totals_of
from anabranch.compaction.execution import ExecutionContext, OutputId, TurnBudget
from anabranch.compaction.proof import BlockTotals
from anabranch.compaction.sets.plan import BlockWrite, Iteration
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.model import NewObject, ObjectKind
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.tasks import side_by_side

Blocks = Mapping[tuple[int, int], memoryview]
"""Block data by object id and position."""
OutputIds = Mapping[tuple[ObjectKind, int], OutputId]
"""Prepared ids by kind and number of the plan's writes."""


class PlanShare(NamedTuple):
    """Part of a plan that can be executed separately. Its iterations run in order, and each fits the memory limit.

    It can be pickled.
    """

    iterations: Sequence[Iteration]
    ids: OutputIds

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(each.size_bytes for each in self.iterations)


class WrittenObject(NamedTuple):
    """An output that is complete in the store, with the totals of its blocks. It can be pickled."""

    output: NewObject
    totals: BlockTotals


class IterationExecutor:
    """Executes iterations in order. The writer of the stream set object stays open from one to the next."""

    def __init__(self, execution: ExecutionContext) -> None:
        self._execution = execution
        self._set_writer: ObjectWriter | None = None
        self.made: list[WrittenObject] = []

    async def execute(self, iteration: Iteration, ids: OutputIds) -> None:
        """Read and check the blocks, and write the outputs.

        Raises UnreadableInput and StoreError; call `abort` then.
        """
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
        """Finish the stream set object, if there is one, and return all outputs."""
        if self._set_writer is not None:
            output = await self._set_writer.finish()
            self.made.append(WrittenObject(output, totals_of(self._set_writer.entries)))
        return self.made

    async def abort(self) -> None:
        """Abandon an unfinished output. Errors of this step are not raised: the error before it matters more."""
        if self._set_writer is not None:
            await self._set_writer.abandon()

    async def _write_stream_objects(self, writes: Sequence[BlockWrite], blocks: Blocks, ids: OutputIds) -> None:
        slots = asyncio.Semaphore(self._execution.in_flight)

        async def write_one(write: BlockWrite) -> WrittenObject:
            async with slots, self._execution.writer(ids[write.kind, write.number], write.kind) as writer:
                await _write_pieces(writer, write, blocks, self._execution.throttle)
                output = await writer.finish()
                return WrittenObject(output, totals_of(writer.entries))

        self.made += await side_by_side(write_one(write) for write in writes)


async def execute_share(share: PlanShare, execution: ExecutionContext) -> Sequence[WrittenObject]:
    """Execute a share. Raises UnreadableInput and StoreError.

    After an error the outputs written so far stay; the caller that prepared their ids discards them.
    """
    executor = IterationExecutor(execution)
    try:
        for iteration in share.iterations:
            await executor.execute(iteration, share.ids)
        return await executor.finish()
    finally:
        await executor.abort()


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
