"""Executes a plan of log compaction: reads a stream's objects twice and writes what is kept. Commits nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from enum import Enum
from typing import NamedTuple

from anabranch.compaction.blocks import BlockRead, cut_read, live_entries
from anabranch.compaction.cleaning.cleaner import Cleaner, KeyMap
from anabranch.compaction.cleaning.plan import CleanPlan
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.interface import AbortedRange, BatchCodec, BatchInfo, BatchTooLarge
from anabranch.compaction.outputs import PreparedOutputs
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.model import NewObject, ObjectKind, StreamBatch
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.object.reader import ObjectIndex
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.object.writer_id import CompactionWriter
from anabranch.s3stream.store.interface import ObjectStore

BYTES_PER_TURN = 128 * 1024
"""Batches that take more memory than this are decoded and rewritten in a thread."""


class CleaningResult(NamedTuple):
    """Results of a cleaning besides its outputs."""

    vacated: Sequence[AbortedRange]
    """Aborted transactions of which only the marker is left."""
    records_removed: int
    too_large: Sequence[StreamBatch]
    """Batches, without their payload, that were kept unchanged because they take too much memory."""


class _BatchSize(Enum):
    SMALL = 0
    LARGE = 1
    """To be processed in a thread."""
    TOO_LARGE = 2
    """Kept unchanged."""


async def _describe(
    context: CompactionContext, codec: BatchCodec, batch: StreamBatch
) -> tuple[_BatchSize, BatchInfo | None]:
    """Decode a batch without blocking the event loop for long and within the memory limit."""
    try:
        info = codec.describe(batch.payload, BYTES_PER_TURN)
    except BatchTooLarge:
        pass
    else:
        await asyncio.sleep(0)
        return _BatchSize.SMALL, info
    try:
        return _BatchSize.LARGE, await asyncio.to_thread(codec.describe, batch.payload, context.settings.memory_bytes)
    except BatchTooLarge:
        return _BatchSize.TOO_LARGE, None


async def _batches(
    context: CompactionContext,
    plan: CleanPlan,
    indexes: Sequence[ObjectIndex],
    throttle: Throttle,
    *,
    from_offset: int,
) -> AsyncIterator[StreamBatch]:
    """Yield the stream's batches in order, from the block that contains `from_offset` on."""
    for location, index in zip(plan.objects, indexes, strict=True):
        store = context.store_of(location.object)
        object_id = location.object.object_id
        entries = live_entries(index, from_offset)
        if not entries:
            continue
        whole = BlockRead(object_id, entries[0].position, entries[-1].end_position, entries)
        for read in cut_read(whole, context.settings.read_bytes_max):
            blocks = await context.execution_context(store, throttle).read_blocks([read])
            for entry in read.entries:
                where = f"{store.name}:{context.key(object_id)}"
                for batch in decode_block(blocks[object_id, entry.position], entry, where=where):
                    if batch.end_offset > from_offset:
                        yield batch._replace(stream_id=plan.stream_id)


async def read_newest_keys(
    context: CompactionContext, plan: CleanPlan, indexes: Sequence[ObjectIndex], codec: BatchCodec, throttle: Throttle
) -> KeyMap:
    """Return the newest offset of each key in the dirty part, as far as memory allows.

    Raises UnreadableInput, StoreError.
    """
    newest = KeyMap(context.settings.clean_keys_bytes_max, plan.history.aborted)
    async for batch in _batches(context, plan, indexes, throttle, from_offset=plan.dirty_start):
        _, info = await _describe(context, codec, batch)
        if info is not None and not newest.add(batch, info):
            break
    return newest


async def write_cleaned(
    context: CompactionContext,
    plan: CleanPlan,
    indexes: Sequence[ObjectIndex],
    newest: KeyMap,
    outputs: "CleanedOutputs",
    *,
    codec: BatchCodec,
    throttle: Throttle,
) -> CleaningResult:
    """Write what is kept of all the stream's batches to the outputs.

    Raises UnreadableInput, StoreError, CatalogError.
    """
    end_offset = newest.end_offset if newest.end_offset >= 0 else plan.objects[-1].range.end_offset
    cleaner = Cleaner(plan, newest, codec, end_offset=end_offset, now_ms=context.now_ms())
    too_large: list[StreamBatch] = []
    async for batch in _batches(context, plan, indexes, throttle, from_offset=plan.stream_start):
        size, info = await _describe(context, codec, batch)
        if size is _BatchSize.TOO_LARGE:
            too_large.append(batch._replace(payload=b""))
        is_small = size is _BatchSize.SMALL
        kept = cleaner.clean(batch, info) if is_small else await asyncio.to_thread(cleaner.clean, batch, info)
        if kept is not None:
            await outputs.write(kept, cleaned=kept.end_offset <= end_offset)
    await outputs.finish()
    return CleaningResult(cleaner.vacated, cleaner.records_removed, too_large)


class CleanedOutputs:
    """Output objects of a cleaning. A new one begins at the size limit, and where the cleaned part ends."""

    def __init__(self, context: CompactionContext, store: ObjectStore, throttle: Throttle) -> None:
        self._context = context
        self._throttle = throttle
        self._store = store
        self.prepared = PreparedOutputs(context, self._store)
        self._writer_id = context.new_writer_id()
        self._writer: ObjectWriter | None = None
        self._cleaned = True
        self._unsettled_bytes = 0
        self.made: list[NewObject] = []

    async def write(self, batch: StreamBatch, *, cleaned: bool) -> None:
        """Add a batch. `cleaned`: no key occurs twice up to the batch's end."""
        full = self._writer is not None and self._writer.size_bytes >= self._context.settings.stream_object_bytes_max
        if full or cleaned != self._cleaned:
            await self.finish()
        self._cleaned = cleaned
        if self._writer is None:
            (output,) = await self.prepared.prepare(1, CompactionWriter(self._writer_id, cleaned=cleaned))
            self._writer = self._context.execution_context(self._store, self._throttle).writer(output, ObjectKind.SO)
        await self._writer.write(batch)
        self._unsettled_bytes += batch.size_bytes
        if self._unsettled_bytes >= self._context.settings.read_bytes_max:
            await self._throttle.spend(self._unsettled_bytes)
            self._unsettled_bytes = 0
            await self._writer.detach_inputs()

    async def finish(self) -> None:
        """Finish the current object."""
        writer = self._writer
        if writer is not None:
            made = await writer.finish()
            self._writer = None
            self.made.append(made)
            self._context.stats.bytes_written += made.size_bytes

    async def discard(self) -> None:
        """Discard all objects."""
        await self.abort()
        await self.prepared.discard()

    async def abort(self) -> None:
        """Abandon the current object, if there is one."""
        if self._writer is not None:
            await self._writer.abandon()
