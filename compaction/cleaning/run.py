"""Carries out log compaction: reads a stream's objects twice, writes what stays, one commit."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from enum import Enum

import structlog

from compaction.cleaning.cleaner import (
    CLEANED,
    BatchCodec,
    BatchInfo,
    Cleaner,
    Cleaning,
    CleanPlan,
    KeyMap,
    TakesTooMuch,
    plan_cleaning,
)
from compaction.joins.plan import live_entries
from compaction.node import CompactionNode, Drafts, born_ms
from compaction.proof import prove_coverage
from compaction.sets.plan import Read, cut_read
from compaction.throttle import Throttle, yield_to_uploads
from s3stream.errors import StorageError
from s3stream.model import NewObject, ObjectKind, StreamBatch
from s3stream.object.format import decode_block
from s3stream.object.reader import ObjectIndex
from s3stream.object.writer import ObjectWriter
from s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)

BYTES_PER_TURN = 128 * 1024
"""Batches that take more memory than this to look into are decoded and rewritten beside the event loop."""


async def plan_cleanings(
    node: CompactionNode, cleaning: Cleaning, *, full: bool, stream_ids: Collection[int] | None = None
) -> list[CleanPlan]:
    """The streams of the node that are due, or `full`: have anything dirty. Reads only the catalog.

    Looked at are `stream_ids`, or all.
    """
    policies = cleaning.policies()
    wanted = policies.keys() if stream_ids is None else policies.keys() & set(stream_ids)
    streams = await node.catalog.get_streams(sorted(wanted))
    plans = []
    for stream_id, info in streams.items():
        if info.node_id != node.node_id:
            continue
        # After the stream's state: what is not in that yet lies past its end, and is not cleaned.
        objects = await node.catalog.list_stream_objects(stream_id)
        if any(each.object.object_id in node.left_alone for each in objects):
            continue
        policy = replace(policies[stream_id], dirty_ratio_min=0.0) if full else policies[stream_id]
        try:
            history = cleaning.history(info)
        except StorageError as error:
            log.warning("compaction by key leaves a stream alone", stream_id=stream_id, error=str(error))
            continue
        plan = plan_cleaning(info, objects, policy, history, node.now_ms(), born_ms=lambda each: born_ms(each.object))
        if plan is not None:
            plans.append(plan)
    return plans


async def execute_cleaning(
    node: CompactionNode,
    plan: CleanPlan,
    cleaning: Cleaning,
    *,
    throttle: Throttle,
    under_pressure: Callable[[], bool],
) -> Sequence[NewObject]:
    """Clean and commit; returns the outputs. Raises BadInput, StoreError, CatalogError, CoverageError."""
    node.stats.pauses += await yield_to_uploads(under_pressure, node.settings, node.sleep)
    codec = cleaning.codec
    indexes = [await node.read_index(location.object) for location in plan.objects]
    newest = KeyMap(node.settings.clean_keys_bytes_max, plan.history.aborted)
    async for batch in _batches(node, plan, indexes, throttle, from_offset=plan.dirty_start):
        _, info = await _describe(node, codec, batch)
        if info is not None and not newest.add(batch, info):
            break
    end_offset = newest.end_offset if newest.end_offset >= 0 else plan.objects[-1].range.end_offset
    cleaner = Cleaner(plan, newest, codec, end_offset=end_offset, now_ms=node.now_ms())
    outputs = _Outputs(node, node.store_for(plan.stream_id, node.store_of(plan.objects[0].object)), throttle)
    too_large: list[StreamBatch] = []
    try:
        async for batch in _batches(node, plan, indexes, throttle, from_offset=plan.stream_start):
            size, info = await _describe(node, codec, batch)
            if size is _Size.TOO_LARGE:
                too_large.append(batch._replace(payload=b""))
            is_small = size is _Size.SMALL
            kept = cleaner.clean(batch, info) if is_small else await asyncio.to_thread(cleaner.clean, batch, info)
            if kept is not None:
                await outputs.write(kept, cleaned=kept.end_offset <= end_offset)
        await outputs.finish()
        live = [location.range for location in plan.objects]
        prove_coverage(live, outputs.made, {plan.stream_id: plan.stream_start})
    except Exception:
        await outputs.discard()
        raise
    finally:
        await outputs.abort()
    # A clone of the topic may refer to the same objects: it goes on doing so.
    inputs = [location.object.object_id for location in plan.objects]
    try:
        await outputs.drafts.commit(inputs, outputs.made, {plan.stream_id})
    finally:
        cleaning.on_cleaned(plan.stream_id, plan.objects[-1].range.end_offset)
    if cleaner.vacated:
        cleaning.on_vacated(plan.stream_id, cleaner.vacated)
    node.stats.streams_cleaned += 1
    node.stats.records_removed += cleaner.records_removed
    if too_large:
        node.stats.batches_too_large += len(too_large)
        log.warning(
            "batches that unfold to too much were kept as they are by compaction by key",
            stream_id=plan.stream_id,
            batches=len(too_large),
            first_offset=too_large[0].base_offset,
            memory_bytes=node.settings.memory_bytes,
        )
    return outputs.made


class _Size(Enum):
    SMALL = 0
    LARGE = 1
    """For a thread."""
    TOO_LARGE = 2
    """Stays as it is."""


async def _describe(node: CompactionNode, codec: BatchCodec, batch: StreamBatch) -> tuple[_Size, BatchInfo | None]:
    """What a batch holds, found out so that neither the event loop waits long for it nor memory runs out."""
    try:
        info = codec.describe(batch.payload, BYTES_PER_TURN)
    except TakesTooMuch:
        pass
    else:
        await asyncio.sleep(0)
        return _Size.SMALL, info
    try:
        return _Size.LARGE, await asyncio.to_thread(codec.describe, batch.payload, node.settings.memory_bytes)
    except TakesTooMuch:
        return _Size.TOO_LARGE, None


async def _batches(
    node: CompactionNode,
    plan: CleanPlan,
    indexes: Sequence[ObjectIndex],
    throttle: Throttle,
    *,
    from_offset: int,
) -> AsyncIterator[StreamBatch]:
    """The stream's batches in order, from the block that holds `from_offset` on."""
    for location, index in zip(plan.objects, indexes, strict=True):
        store = node.store_of(location.object)
        object_id = location.object.object_id
        entries = live_entries(index, from_offset)
        if not entries:
            continue
        whole = Read(object_id, entries[0].position, entries[-1].end_position, entries)
        for read in cut_read(whole, node.settings.read_bytes_max):
            blocks = await node.workshop(store, throttle).read_blocks([read])
            for entry in read.entries:
                where = f"{store.name}:{node.key(object_id)}"
                for batch in decode_block(blocks[object_id, entry.position], entry, where=where):
                    if batch.end_offset > from_offset:
                        yield batch._replace(stream_id=plan.stream_id)


class _Outputs:
    """The objects being written: another begins at the size limit, and where the cleaned part ends."""

    def __init__(self, node: CompactionNode, store: ObjectStore, throttle: Throttle) -> None:
        self._node = node
        self._throttle = throttle
        self._store = store
        self.drafts = Drafts(node, self._store)
        self._writer_id = node.new_writer_id()
        self._writer: ObjectWriter | None = None
        self._cleaned = True
        self._unsettled_bytes = 0
        self.made: list[NewObject] = []

    async def write(self, batch: StreamBatch, *, cleaned: bool) -> None:
        """Add a batch. `cleaned` says that each key is there once, up to its end."""
        full = self._writer is not None and self._writer.size_bytes >= self._node.settings.stream_object_bytes_max
        if full or cleaned != self._cleaned:
            await self.finish()
        self._cleaned = cleaned
        if self._writer is None:
            writer_id = self._writer_id + CLEANED if cleaned else self._writer_id
            (output,) = await self.drafts.prepare(1, writer_id)
            self._writer = self._node.workshop(self._store, self._throttle).writer(output, ObjectKind.SO)
        await self._writer.write(batch)
        self._unsettled_bytes += batch.size_bytes
        if self._unsettled_bytes >= self._node.settings.read_bytes_max:
            await self._throttle.spend(self._unsettled_bytes)
            self._unsettled_bytes = 0
            await self._writer.settle()

    async def finish(self) -> None:
        """Close the object being written."""
        writer = self._writer
        if writer is not None:
            made = await writer.close()
            self._writer = None
            self.made.append(made)
            self._node.stats.bytes_written += made.size_bytes

    async def discard(self) -> None:
        """Delete what was written."""
        await self.abort()
        await self.drafts.discard()

    async def abort(self) -> None:
        """Give up the object being written, if there is one."""
        if self._writer is not None:
            await self._writer.abandon()
