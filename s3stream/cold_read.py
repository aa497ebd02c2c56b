"""Reads what the log cache does not hold: from the block cache, and from objects into it.

A read walks what is known (locations, indexes, blocks) and stops at the first thing missing; the missing thing is
loaded, and the walk goes on from there. So the walk is plain code, a read that finds everything in memory costs no
task, and loads of the same thing are shared. Loads are tasks of the engine: a reader that gives up leaves them running
into the caches (a Fetch whose wait ends finds the data there next time).

Locations may be stale: compaction replaces objects under a running engine. An object that is gone is looked up afresh.
"""

import asyncio
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import structlog

from s3stream.block_cache import BlockKey, ByteLru, CachedBlock
from s3stream.catalog.interface import Catalog
from s3stream.errors import (
    CorruptObject,
    Discontinuity,
    ObjectNotFound,
    OffsetOutOfRange,
    StorageError,
    StoreError,
    StreamNotFound,
)
from s3stream.io_plan import Priority
from s3stream.io_scheduler import IoScheduler
from s3stream.model import ObjectInfo, RangeLocation, StreamBatch, object_key
from s3stream.object.format import IndexEntry
from s3stream.object.reader import ObjectIndex, decode_block, index_tail_bytes, read_index
from s3stream.settings import StorageSettings
from s3stream.stats import StorageStats
from s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)

LOCATIONS_PER_LOOKUP = 32
STALE_RETRIES = 3
READER_IDLE_S = 30
AHEAD_FILLS_MAX = 64
"""Look-ups and indexes that one window may load: where every object holds next to nothing, a window stays short."""
READ_AHEAD_FIRST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _NeedLocation:
    offset: int


@dataclass(frozen=True, slots=True)
class _NeedIndex:
    object: ObjectInfo


@dataclass(frozen=True, slots=True)
class _NeedBlocks:
    object: ObjectInfo
    entries: Sequence[IndexEntry]


_Need: TypeAlias = _NeedLocation | _NeedIndex | _NeedBlocks


@dataclass(slots=True)
class _Request:
    """A read and how far it got. What it was given stays its own, so that it ends however small the caches are."""

    stream_id: int
    offset: int
    bytes_max: int
    end_offset: int
    committed_end: int
    priority: Priority
    batches: list[StreamBatch] = field(default_factory=list)
    size_bytes: int = 0
    index: ObjectIndex | None = None
    """Index asked for last."""
    held: dict[BlockKey, CachedBlock] = field(default_factory=dict)
    """Blocks of the object under the walk."""

    @property
    def at(self) -> int:
        """Where the walk goes on."""
        return self.batches[-1].end_offset if self.batches else self.offset


@dataclass(slots=True)
class _Ahead:
    """Read-ahead of one sequential reader: what is asked for up to `until`; the next window once `mark` is reached."""

    mark: int
    until: int
    window_bytes: int = READ_AHEAD_FIRST_BYTES
    busy: bool = False
    read_s: float = -math.inf
    """When it last read on, in the loop's time."""


@dataclass(slots=True)
class _AheadPlan:
    """One window: the blocks chosen so far."""

    stream_id: int
    at: int
    window_bytes: int
    committed_end: int
    size_bytes: int = 0
    blocks: list[_NeedBlocks] = field(default_factory=list)


class ColdReader:
    """Serves reads of committed data."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        settings: StorageSettings,
        stats: StorageStats,
        cluster: str,
        spawn: Callable[[Coroutine[object, object, None]], None],
    ) -> None:
        """`spawn` starts a task that outlives whoever asked, or raises StorageError."""
        self.cache: ByteLru[BlockKey, CachedBlock] = ByteLru(settings.block_cache_bytes)
        self.io = IoScheduler(settings=settings, stats=stats, spawn=spawn)
        self._catalog = catalog
        self._stores = stores
        self._settings = settings
        self._stats = stats
        self._cluster = cluster
        self._spawn = spawn
        self._indexes: ByteLru[int, ObjectIndex] = ByteLru(settings.index_cache_bytes)
        self._locations: OrderedDict[int, list[RangeLocation]] = OrderedDict()
        self._loading: dict[Hashable, asyncio.Future[object]] = {}
        self._answers: dict[BlockKey, asyncio.Future[memoryview]] = {}
        """The reads behind the blocks in `_loading`."""
        self._readers: OrderedDict[tuple[int, int], _Ahead] = OrderedDict()
        total = settings.read_ahead_total_bytes
        self._ahead_bytes_max = settings.block_cache_bytes // 4 if total is None else total
        self._ahead_bytes = 0

    async def read(
        self, stream_id: int, offset: int, bytes_max: int, end_offset: int, committed_end: int
    ) -> list[StreamBatch]:
        """Contiguous batches from the one that holds `offset`, at least one, none that begins at or past `end_offset`.

        `offset` lies before `end_offset`, which is at most `committed_end`. Raises OffsetOutOfRange when the start
        moved past `offset` meanwhile, StreamNotFound, CorruptObject, StoreError.
        """
        newest = self._is_newest(stream_id, offset, committed_end)
        priority = Priority.TAIL if newest else Priority.CATCH_UP
        request = _Request(stream_id, offset, bytes_max, end_offset, committed_end, priority)
        batches = request.batches
        ahead = self._readers.pop((stream_id, offset), None)
        if ahead is not None and offset < ahead.until:
            self._extend(request, ahead, offset)
        need = self._walk(request)
        if need is not None:
            # Shared by its whole meaning, so that a client that asks again and again starts no second load.
            key = ("read", stream_id, offset, bytes_max, end_offset)
            found = await self._shared(key, lambda: self._complete(request, need))
            assert isinstance(found, list)
            batches = found
        self._remember(request, ahead, batches[-1].end_offset)
        return list(batches)

    async def find_time(
        self, stream_id: int, timestamp_ms: int, start_offset: int, committed_end: int
    ) -> StreamBatch | None:
        """The first committed batch past `start_offset` whose max timestamp is at or after `timestamp_ms`."""
        for attempt in range(STALE_RETRIES):
            try:
                return await self._find_time(stream_id, timestamp_ms, start_offset, committed_end)
            except ObjectNotFound:
                if attempt + 1 == STALE_RETRIES:
                    raise
                self._stats.stale_locations += 1
        raise AssertionError("the last attempt returns or raises")

    def close(self, error: StorageError) -> None:
        """Answer whoever waits for a load that was cancelled before it began."""
        for future in self._loading.values():
            if not future.done():
                future.set_exception(error)
                future.exception()
        self.io.close(error)

    async def loads_done(self) -> None:
        """Return when no load is under way."""
        while self._loading:
            await asyncio.wait(list(self._loading.values()))

    def invalidate(self, stream_ids: Sequence[int]) -> None:
        """Forget where the streams' data lies."""
        for stream_id in stream_ids:
            self._locations.pop(stream_id, None)

    async def _find_time(
        self, stream_id: int, timestamp_ms: int, start_offset: int, committed_end: int
    ) -> StreamBatch | None:
        location = await self._catalog.find_time(stream_id, timestamp_ms)
        self._stats.location_lookups += 1
        while location is not None:
            index = await self._index(location.object)
            span = location.range
            for entry in index.find(stream_id, max(start_offset, span.start_offset), span.end_offset):
                if entry.max_timestamp_ms >= timestamp_ms:
                    blocks = await self._load_blocks(location.object, [entry], Priority.CATCH_UP)
                    for batch in blocks[0].from_offset(start_offset):
                        if batch.max_timestamp_ms >= timestamp_ms:
                            return batch
            # The batch that made the range look late enough lies before the stream's start: look behind the range.
            following = await self._catalog.find_ranges(stream_id, span.end_offset, committed_end, limit=1)
            location = following[0] if following else None
        return None

    # the walk

    def _walk(self, request: _Request) -> _Need | None:
        """Go on with the request as far as memory allows; None when it is complete, else what it lacks."""
        while request.at < request.end_offset and (request.size_bytes < request.bytes_max or not request.batches):
            location = self._location(request.stream_id, request.at)
            if location is None:
                return _NeedLocation(request.at)
            object_id = location.object.object_id
            index = self._indexes.get(object_id)
            if index is None and request.index is not None and request.index.object_id == object_id:
                index = request.index
            if index is None:
                return _NeedIndex(location.object)
            end = min(request.end_offset, location.range.end_offset)
            bytes_left = request.bytes_max - request.size_bytes
            entries = self._choose(index, request.stream_id, request.at, end, bytes_left)
            blocks = [self._block(request, object_id, entry) for entry in entries]
            missing = [entry for entry, block in zip(entries, blocks, strict=True) if block is None]
            if missing:
                return _NeedBlocks(location.object, missing)
            if not _take(request, [block for block in blocks if block is not None], end):
                break
            request.held.clear()
        return None

    def _choose(
        self, index: ObjectIndex, stream_id: int, offset: int, end_offset: int, bytes_max: int
    ) -> list[IndexEntry]:
        """Entries from the one that holds `offset`, contiguous, as many as `bytes_max` needs, at least one."""
        chosen: list[IndexEntry] = []
        size, expected = 0, offset
        for entry in index.find(stream_id, offset, end_offset):
            if entry.start_offset > expected:
                raise CorruptObject(
                    f"object {index.key}: stream {stream_id}: expected a block at offset {expected}, "
                    f"found [{entry.start_offset}, {entry.end_offset})"
                )
            chosen.append(entry)
            size += entry.size_bytes
            expected = entry.end_offset
            if size >= bytes_max:
                break
        if not chosen:
            raise CorruptObject(f"object {index.key}: stream {stream_id}: no block holds offset {offset}")
        return chosen

    def _block(self, request: _Request, object_id: int, entry: IndexEntry) -> CachedBlock | None:
        key = BlockKey(object_id, entry.position)
        block = request.held.get(key)
        if block is None:
            block = self.cache.get(key)
            if block is not None:
                self._stats.block_cache_hits += 1
                request.held[key] = block
        return block

    def _location(self, stream_id: int, offset: int) -> RangeLocation | None:
        locations = self._locations.get(stream_id)
        if not locations:
            return None
        self._locations.move_to_end(stream_id)
        at = bisect_right(locations, offset, key=_range_start) - 1
        if at < 0 or offset >= locations[at].range.end_offset:
            return None
        return locations[at]

    def _is_newest(self, stream_id: int, offset: int, committed_end: int) -> bool:
        location = self._location(stream_id, offset)
        return location is not None and location.range.end_offset >= committed_end

    # loads

    async def _complete(self, request: _Request, need: _Need | None) -> list[StreamBatch]:
        """Load what the walk lacks until it ends."""
        stale = 0
        while need is not None:
            try:
                await self._fill(request, need)
            except ObjectNotFound:
                stale += 1
                self._stats.stale_locations += 1
                self.invalidate((request.stream_id,))
                request.index = None
                if isinstance(need, _NeedIndex | _NeedBlocks):
                    self._indexes.remove(need.object.object_id)
                if stale >= STALE_RETRIES:
                    raise
            need = self._walk(request)
        return request.batches

    async def _fill(self, request: _Request, need: _Need) -> None:
        if isinstance(need, _NeedLocation):
            await self._find_location(request.stream_id, need.offset, request.committed_end)
        elif isinstance(need, _NeedIndex):
            request.index = await self._index(need.object)
        else:
            blocks = await self._load_blocks(need.object, need.entries, request.priority)
            for entry, block in zip(need.entries, blocks, strict=True):
                request.held[BlockKey(need.object.object_id, entry.position)] = block

    async def _find_location(self, stream_id: int, offset: int, committed_end: int) -> None:
        self._stats.location_lookups += 1
        found = list(await self._catalog.find_ranges(stream_id, offset, committed_end, limit=LOCATIONS_PER_LOOKUP))
        if not found or not found[0].range.start_offset <= offset < found[0].range.end_offset:
            info = (await self._catalog.get_streams((stream_id,))).get(stream_id)
            if info is None:
                raise StreamNotFound(f"stream {stream_id} is deleted")
            if offset < info.start_offset:
                raise OffsetOutOfRange(f"stream {stream_id}: offset {offset} is before the start {info.start_offset}")
            raise Discontinuity(f"stream {stream_id}: no object holds offset {offset}, before the end {committed_end}")
        self._locations[stream_id] = found
        self._locations.move_to_end(stream_id)
        if len(self._locations) > self._settings.location_cache_streams:
            self._locations.popitem(last=False)

    async def _index(self, info: ObjectInfo) -> ObjectIndex:
        index = self._indexes.get(info.object_id)
        if index is None:
            found = await self._shared(("index", info.object_id), lambda: self._read_index(info))
            assert isinstance(found, ObjectIndex)
            index = found
        return index

    async def _read_index(self, info: ObjectInfo) -> ObjectIndex:
        self._stats.index_reads += 1
        index = await read_index(
            self._store(info), self._key(info), index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes
        )
        self._indexes.put(info.object_id, index)
        return index

    async def _load_blocks(
        self, info: ObjectInfo, entries: Sequence[IndexEntry], priority: Priority
    ) -> list[CachedBlock]:
        """The blocks of the entries; those under way for somebody else are waited for, not read again."""
        return await self._end_blocks(self._begin_blocks(info, entries, priority))

    def _begin_blocks(
        self, info: ObjectInfo, entries: Sequence[IndexEntry], priority: Priority
    ) -> list["asyncio.Future[object] | CachedBlock"]:
        """Have the blocks loaded that are not in the cache."""
        store, key = self._store(info), self._key(info)
        waiting: list[asyncio.Future[object] | CachedBlock] = []
        for entry in entries:
            block_key = BlockKey(info.object_id, entry.position)
            cached = self.cache.get(block_key)
            if cached is not None:
                waiting.append(cached)
                continue
            loading = self._loading.get(block_key)
            if loading is None:
                self._stats.block_cache_misses += 1
                answer = self.io.submit(store, key, entry.position, entry.end_position, priority)
                self._answers[block_key] = answer
                loading = self._start(block_key, partial(self._decode, info, entry, answer))
            else:
                self._stats.reads_joined += 1
                self.io.urge(self._answers[block_key], priority)
            waiting.append(loading)
        return waiting

    @staticmethod
    async def _end_blocks(waiting: Sequence["asyncio.Future[object] | CachedBlock"]) -> list[CachedBlock]:
        blocks = []
        for item in waiting:
            block = item if isinstance(item, CachedBlock) else await asyncio.shield(item)
            assert isinstance(block, CachedBlock)
            blocks.append(block)
        return blocks

    async def _decode(self, info: ObjectInfo, entry: IndexEntry, answer: "asyncio.Future[memoryview]") -> CachedBlock:
        block_key = BlockKey(info.object_id, entry.position)
        try:
            # A copy, because a merged GET brings many blocks in one buffer, and each leaves the cache at its own time.
            data = bytes(await answer)
        finally:
            del self._answers[block_key]
        block = CachedBlock(decode_block(data, entry, where=f"{info.store}:{self._key(info)}"), len(data))
        self.cache.put(block_key, block)
        self._stats.block_cache_evicted_bytes = self.cache.evicted_bytes
        return block

    async def _shared(self, key: Hashable, load: Callable[[], Coroutine[object, object, object]]) -> object:
        """The result of the load under `key`: of the one under way, or of a new one that outlives this caller."""
        future = self._loading.get(key)
        if future is None:
            future = self._start(key, load)
        return await asyncio.shield(future)

    def _start(self, key: Hashable, load: Callable[[], Coroutine[object, object, object]]) -> "asyncio.Future[object]":
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._spawn(self._run_load(key, future, load))
        self._loading[key] = future
        return future

    async def _run_load(
        self,
        key: Hashable,
        future: "asyncio.Future[object]",
        load: Callable[[], Coroutine[object, object, object]],
    ) -> None:
        try:
            result = await load()
        except StorageError as error:
            future.set_exception(error)
            future.exception()  # everybody who asked may be gone
        except BaseException:
            future.set_exception(StoreError(f"the load of {key} was given up"))
            future.exception()
            raise
        else:
            future.set_result(result)
        finally:
            del self._loading[key]

    def _store(self, info: ObjectInfo) -> ObjectStore:
        store = self._stores.get(info.store)
        if store is None:
            raise StoreError(f"object {info.object_id} lies in the store {info.store!r}, which is not configured")
        return store

    def _key(self, info: ObjectInfo) -> str:
        return object_key(self._cluster, info.object_id)

    # read-ahead

    def _remember(self, request: _Request, ahead: _Ahead | None, next_offset: int) -> None:
        """Know the reader by where it will read next; from its second read on, keep up to two windows before it."""
        settings = self._settings
        if settings.read_ahead_bytes_max <= 0:
            return
        if ahead is None:
            ahead = _Ahead(mark=next_offset, until=next_offset)
        else:
            ahead.read_s = asyncio.get_running_loop().time()
            self._extend(request, ahead, next_offset)
        self._readers[request.stream_id, next_offset] = ahead
        if len(self._readers) > settings.read_ahead_readers:
            self._readers.popitem(last=False)

    def _extend(self, request: _Request, ahead: _Ahead, offset: int) -> None:
        """Start the next window when the reader has come to the one before it."""
        start = max(offset, ahead.until)
        if not ahead.busy and offset >= ahead.mark and start < request.committed_end:
            self._start_ahead(request, ahead, start)

    def _start_ahead(self, request: _Request, ahead: _Ahead, start: int) -> None:
        """Start the next window, if the bound of all windows allows; readers at work share it equally."""
        settings = self._settings
        active = 1 + sum(ahead.read_s - other.read_s < READER_IDLE_S for other in self._readers.values())
        fair = max(self._ahead_bytes_max // (2 * active), settings.object_block_bytes)
        window = min(ahead.window_bytes, settings.read_ahead_bytes_max, fair)
        if self._ahead_bytes + window <= self._ahead_bytes_max:
            plan = _AheadPlan(request.stream_id, start, window, request.committed_end)
            lacking = self._plan_ahead(plan)
            ahead.mark, ahead.until = start, plan.at
            ahead.busy = lacking is not None
            ahead.window_bytes = min(window * 2, settings.read_ahead_bytes_max)
            self._spawn(self._read_ahead(plan, lacking, ahead))
            self._ahead_bytes += window

    def _plan_ahead(self, plan: _AheadPlan) -> _NeedLocation | _NeedIndex | None:
        """Choose blocks as far as memory tells which there are; None when the window is full, else what is lacking."""
        while plan.at < plan.committed_end and plan.size_bytes < plan.window_bytes:
            location = self._location(plan.stream_id, plan.at)
            if location is None:
                return _NeedLocation(plan.at)
            index = self._indexes.get(location.object.object_id)
            if index is None:
                return _NeedIndex(location.object)
            end = location.range.end_offset
            entries = self._choose(index, plan.stream_id, plan.at, end, plan.window_bytes - plan.size_bytes)
            plan.blocks.append(_NeedBlocks(location.object, entries))
            plan.size_bytes += sum(entry.size_bytes for entry in entries)
            plan.at = min(entries[-1].end_offset, end)
        return None

    async def _read_ahead(self, plan: _AheadPlan, lacking: _NeedLocation | _NeedIndex | None, ahead: _Ahead) -> None:
        """Load a window into the block cache. A failure is left to the read that needs the data."""
        try:
            fills = 0
            while lacking is not None and fills < AHEAD_FILLS_MAX:
                fills += 1
                if isinstance(lacking, _NeedLocation):
                    await self._find_location(plan.stream_id, lacking.offset, plan.committed_end)
                else:
                    await self._index(lacking.object)
                lacking = self._plan_ahead(plan)
            ahead.until = max(ahead.until, plan.at)
            ahead.busy = False
            self._stats.read_aheads += 1
            self._stats.read_ahead_bytes += plan.size_bytes
            loads = [self._begin_blocks(need.object, need.entries, Priority.READ_AHEAD) for need in plan.blocks]
            for load in loads:
                await self._end_blocks(load)
        except StorageError as error:
            log.info("read-ahead failed", stream_id=plan.stream_id, reason=str(error))
        finally:
            ahead.busy = False
            self._ahead_bytes -= plan.window_bytes


def _take(request: _Request, blocks: Sequence[CachedBlock], end_offset: int) -> bool:
    """Move batches that begin before `end_offset` into the answer; False when it is full."""
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


def _range_start(location: RangeLocation) -> int:
    return location.range.start_offset
