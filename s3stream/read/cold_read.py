"""Reads data that is not in the log cache: from the block cache, which it fills from objects.

A read walks the locations, indexes and blocks that are in memory and stops at the first that is missing. That one is
loaded, and the walk continues from there. So the walk is plain code, a read that finds everything in memory costs no
task, and concurrent loads of the same thing are one. A reader that gives up leaves its load running into the caches: a
Fetch whose wait ended finds the data there next time.

Locations may be stale, because compaction replaces objects under a running engine. A missing object is looked up again
in the catalog. If it is still missing or corrupt, it is damaged: reads of that position fail, and data before it is
served.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import ObjectDamage, ObjectNotFound
from anabranch.s3stream.model import ObjectInfo, StreamBatch
from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.object.reader import ObjectIndex
from anabranch.s3stream.read.block_cache import BlockKey, CachedBlock
from anabranch.s3stream.read.io_plan import Priority
from anabranch.s3stream.read.loader import (
    Need,
    NeedBlocks,
    NeedIndex,
    NeedLocation,
    ObjectLoader,
    ReadKey,
    Spawn,
    choose_entries,
)
from anabranch.s3stream.read.read_ahead import ReadAhead
from anabranch.s3stream.read.time_lookup import find_first
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats

STALE_RETRIES = 3
"""Attempts, each with a new look-up of the location, after which an object counts as missing."""
CORRUPT_RETRIES = 2
"""Attempts after which an object counts as corrupt: once may be an error of the transfer."""


@dataclass(slots=True)
class _ColdRead:
    """A read and its progress. It keeps what was loaded for it, so that it ends however small the caches are."""

    stream_id: int
    offset: int
    bytes_max: int
    end_offset: int
    committed_end: int
    priority: Priority
    batches: list[StreamBatch] = field(default_factory=list)
    size_bytes: int = 0
    index: ObjectIndex | None = None
    """Index loaded last."""
    held: dict[BlockKey, CachedBlock] = field(default_factory=dict)
    """Loaded blocks of the object at `at`."""

    @property
    def at(self) -> int:
        """Offset at which the walk continues."""
        return self.batches[-1].end_offset if self.batches else self.offset


class ColdReader:
    """Serves reads of committed data."""

    def __init__(
        self, loader: ObjectLoader, catalog: Catalog, settings: StorageSettings, stats: StorageStats, spawn: Spawn
    ) -> None:
        self.loader = loader
        self._catalog = catalog
        self._stats = stats
        self._ahead = ReadAhead(loader, settings, stats, spawn)
        # One bound for each class, so that a read of the tail never queues behind catch-up reads.
        self._slots = {
            priority: asyncio.Semaphore(settings.cold_reads_in_flight)
            for priority in (Priority.TAIL, Priority.CATCH_UP)
        }

    async def read(
        self, stream_id: int, offset: int, bytes_max: int, end_offset: int, committed_end: int
    ) -> list[StreamBatch]:
        """Return contiguous batches from the one that holds `offset`, at least one; all begin before `end_offset`.

        `offset` lies before `end_offset`, which is at most `committed_end`. Raises OffsetOutOfRange when the start
        moved past `offset` meanwhile, StreamNotFound, CorruptObject, StoreError.
        """
        newest = self.loader.is_newest(stream_id, offset, committed_end)
        priority = Priority.TAIL if newest else Priority.CATCH_UP
        request = _ColdRead(stream_id, offset, bytes_max, end_offset, committed_end, priority)
        batches = request.batches
        ahead = self._ahead.begin_read(stream_id, offset, committed_end)
        need = self._walk(request)
        if need is not None:
            # Shared by all its arguments, so that a client that repeats a read starts no second load.
            key = ReadKey(stream_id, offset, bytes_max, end_offset)
            found = await self.loader.load_once(key, lambda: self._complete(request, need))
            assert isinstance(found, list)
            batches = found
        self._ahead.end_read(stream_id, committed_end, ahead, batches[-1].end_offset)
        return list(batches)

    async def find_time(
        self, stream_id: int, timestamp_ms: int, start_offset: int, committed_end: int
    ) -> StreamBatch | None:
        """Return the first committed batch past `start_offset` whose max timestamp is at or after `timestamp_ms`."""
        for attempt in range(STALE_RETRIES):
            try:
                self._stats.location_lookups += 1
                return await find_first(self._catalog, self, stream_id, timestamp_ms, start_offset, committed_end)
            except ObjectDamage as error:
                is_missing = isinstance(error, ObjectNotFound)
                if attempt + 1 >= (STALE_RETRIES if is_missing else CORRUPT_RETRIES):
                    raise
                self._stats.stale_locations += is_missing
        raise AssertionError("the last attempt returns or raises")

    async def index(self, info: ObjectInfo) -> ObjectIndex:
        """Return an object's index, through the cache. For `find_first`."""
        return await self.loader.index(info)

    async def batches(self, info: ObjectInfo, entry: IndexEntry, from_offset: int) -> Iterable[StreamBatch]:
        """Return a block's batches, through the cache. For `find_first`."""
        blocks = await self.loader.load_blocks(info, [entry], Priority.CATCH_UP)
        return blocks[0].from_offset(from_offset)

    # the walk

    def _walk(self, request: _ColdRead) -> Need | None:
        """Continue the read as far as memory allows; return None when it is complete, else what to load next."""
        while request.at < request.end_offset and (request.size_bytes < request.bytes_max or not request.batches):
            location = self.loader.location(request.stream_id, request.at)
            if location is None:
                return NeedLocation(request.at)
            object_id = location.object.object_id
            index = self.loader.indexes.get(object_id)
            if index is None and request.index is not None and request.index.object_id == object_id:
                index = request.index
            if index is None:
                return NeedIndex(location.object)
            end = min(request.end_offset, location.range.end_offset)
            bytes_left = request.bytes_max - request.size_bytes
            try:
                entries = choose_entries(index, location.stored_stream_id, request.at, end, bytes_left)
            except ObjectDamage as error:
                if request.batches:
                    return None  # serve what lies before the damage; the next read raises it
                error.place = self.loader.place(location.object)
                raise
            blocks = [self._block(request, object_id, entry) for entry in entries]
            missing = [entry for entry, block in zip(entries, blocks, strict=True) if block is None]
            if missing:
                return NeedBlocks(location.object, missing)
            if not _take(request, [block for block in blocks if block is not None], end):
                break
            request.held.clear()
        return None

    def _block(self, request: _ColdRead, object_id: int, entry: IndexEntry) -> CachedBlock | None:
        key = BlockKey(object_id, entry.position)
        block = request.held.get(key)
        if block is None:
            block = self.loader.cache.get(key)
            if block is not None:
                self._stats.block_cache_hits += 1
                request.held[key] = block
        return block

    async def _complete(self, request: _ColdRead, need: Need | None) -> list[StreamBatch]:
        """Load what the walk needs until it ends."""
        async with self._slots[request.priority]:
            return await self._load_all(request, need)

    async def _load_all(self, request: _ColdRead, need: Need | None) -> list[StreamBatch]:
        failures = 0
        while need is not None:
            try:
                await self._fill(request, need)
            except ObjectDamage as error:
                failures += 1
                is_missing = isinstance(error, ObjectNotFound)
                if failures >= (STALE_RETRIES if is_missing else CORRUPT_RETRIES):
                    if request.batches:
                        break  # serve what lies before the damage; the next read raises it
                    if is_missing or not isinstance(need, NeedBlocks) or request.bytes_max <= 1:
                        raise
                    # Perhaps only a later block is damaged: read one alone.
                    request.bytes_max, failures = 1, 0
                self._stats.stale_locations += is_missing
                self.loader.invalidate((request.stream_id,))
                request.index = None
                if isinstance(need, NeedIndex | NeedBlocks):
                    self.loader.indexes.remove(need.object.object_id)
            need = self._walk(request)
        return request.batches

    async def _fill(self, request: _ColdRead, need: Need) -> None:
        if isinstance(need, NeedLocation):
            await self.loader.find_location(request.stream_id, need.offset, request.committed_end)
        elif isinstance(need, NeedIndex):
            request.index = await self.loader.index(need.object)
        else:
            blocks = await self.loader.load_blocks(need.object, need.entries, request.priority)
            for entry, block in zip(need.entries, blocks, strict=True):
                request.held[BlockKey(need.object.object_id, entry.position)] = block


def _take(request: _ColdRead, blocks: Sequence[CachedBlock], end_offset: int) -> bool:
    """Move batches that begin before `end_offset` into the answer; return False when it is full."""
    for block in blocks:
        for batch in block.from_offset(request.at):
            if batch.base_offset >= end_offset:
                return True
            size = request.size_bytes + len(batch.payload)
            if request.batches and size > request.bytes_max:
                return False
            request.batches.append(batch)
            request.size_bytes = size
    return True
