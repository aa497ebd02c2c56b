"""Loads locations, indexes and blocks of objects into memory, each once for all concurrent readers.

Loads are tasks of the engine: when their reader gives up, they continue into the caches. Objects are immutable, so only
locations go stale, when compaction replaces an object; `invalidate` forgets them. A read or a lookup that began before
`invalidate` is neither shared with later reads nor kept: log compaction removes records, and a read that begins after
its commit must not return them.
"""

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import (
    CorruptObject,
    Discontinuity,
    ObjectDamage,
    OffsetOutOfRange,
    Place,
    StorageError,
    StoreError,
    StreamNotFound,
)
from anabranch.s3stream.model import ObjectInfo, RangeLocation, object_key
from anabranch.s3stream.object.format import IndexEntry, decode_block
from anabranch.s3stream.object.reader import ObjectIndex, expect_object, index_tail_bytes, read_index
from anabranch.s3stream.read.block_cache import BlockCache, BlockKey, ByteLru, CachedBlock
from anabranch.s3stream.read.damage import WHOLE, DamagedObjects
from anabranch.s3stream.read.io_plan import Priority
from anabranch.s3stream.read.io_scheduler import IoScheduler
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.store.interface import ObjectStore

LOCATIONS_PER_LOOKUP = 32
"""Locations that one catalog look-up returns at most."""

Spawn: TypeAlias = Callable[[Coroutine[object, object, None]], None]
"""Starts a task that outlives its caller, or raises StorageError."""


@dataclass(frozen=True, slots=True)
class NeedLocation:
    """The location of a stream's offset must be looked up."""

    offset: int


@dataclass(frozen=True, slots=True)
class NeedIndex:
    """An object's index must be loaded."""

    object: ObjectInfo


@dataclass(frozen=True, slots=True)
class NeedBlocks:
    """Blocks of an object must be loaded."""

    object: ObjectInfo
    entries: Sequence[IndexEntry]


Need: TypeAlias = NeedLocation | NeedIndex | NeedBlocks


class ReadKey(NamedTuple):
    """All arguments of a stream's read: reads of the same key share one load."""

    stream_id: int
    offset: int
    bytes_max: int
    end_offset: int


@dataclass(slots=True, eq=False)
class _LocationLookup:
    """A look-up of locations under way."""

    stream_id: int
    stale: bool = False
    """True if the stream was invalidated after the look-up began: its answer may be outdated."""


class ObjectLoader:
    """Caches of committed data and its locations, and the loads that fill them."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        settings: StorageSettings,
        stats: StorageStats,
        cluster: str,
        spawn: Spawn,
        is_log_writing: Callable[[], bool],
        damaged: DamagedObjects,
    ) -> None:
        """`is_log_writing` returns whether the log is at work on an append: reads of history slow down then."""
        self.cache = BlockCache(settings.block_cache_bytes)
        self.indexes: ByteLru[int, ObjectIndex] = ByteLru(settings.index_cache_bytes)
        self.io = IoScheduler(settings=settings, stats=stats, spawn=spawn, is_log_writing=is_log_writing)
        self._catalog = catalog
        self._stores = stores
        self._settings = settings
        self._stats = stats
        self._cluster = cluster
        self._spawn = spawn
        self._damaged = damaged
        self._locations: OrderedDict[int, list[RangeLocation]] = OrderedDict()
        self._lookups: set[_LocationLookup] = set()
        self._loading: dict[Hashable, asyncio.Future[object]] = {}
        self._detached: set[asyncio.Future[object]] = set()
        """Loads under way that began before an invalidation: no later read joins them."""
        self._answers: dict[BlockKey, asyncio.Future[memoryview]] = {}
        """Reads of the blocks in `_loading`."""

    def abandon_all(self, error: StorageError) -> None:
        """Answer with `error` the callers that wait for a load that was cancelled before it began."""
        for future in (*self._loading.values(), *self._detached):
            if not future.done():
                future.set_exception(error)
                future.exception()
        self.io.abandon_all(error)

    async def loads_done(self) -> None:
        """Return when no load is under way."""
        while loads := [*self._loading.values(), *self._detached]:
            await asyncio.wait(loads)

    def invalidate(self, stream_ids: Sequence[int]) -> None:
        """Forget where the streams' data lies; reads from now on share nothing with those under way."""
        changed = set(stream_ids)
        for stream_id in changed:
            self._locations.pop(stream_id, None)
        for lookup in self._lookups:
            lookup.stale = lookup.stale or lookup.stream_id in changed
        for key in [key for key in self._loading if isinstance(key, ReadKey) and key.stream_id in changed]:
            self._detached.add(self._loading.pop(key))

    def location(self, stream_id: int, offset: int) -> RangeLocation | None:
        """Return the location of the offset, if it is in memory."""
        locations = self._locations.get(stream_id)
        if not locations:
            return None
        self._locations.move_to_end(stream_id)
        at = bisect_right(locations, offset, key=_range_start) - 1
        if at < 0 or offset >= locations[at].range.end_offset:
            return None
        return locations[at]

    def is_newest(self, stream_id: int, offset: int, committed_end: int) -> bool:
        """Return whether the offset is known to lie in the stream's last range."""
        location = self.location(stream_id, offset)
        return location is not None and location.range.end_offset >= committed_end

    async def find_location(self, stream_id: int, offset: int, committed_end: int) -> None:
        """Look the location up, for `location`. Raises StreamNotFound, OffsetOutOfRange when the start has moved."""
        found = await self._find_ranges(stream_id, offset, committed_end)
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

    async def _find_ranges(self, stream_id: int, offset: int, committed_end: int) -> list[RangeLocation]:
        """Look ranges up, again whenever the stream was invalidated during the look-up."""
        while True:
            self._stats.location_lookups += 1
            lookup = _LocationLookup(stream_id)
            self._lookups.add(lookup)
            try:
                found = await self._catalog.find_ranges(stream_id, offset, committed_end, limit=LOCATIONS_PER_LOOKUP)
            finally:
                self._lookups.discard(lookup)
            if not lookup.stale:
                return list(found)

    async def index(self, info: ObjectInfo) -> ObjectIndex:
        """Return the index of an object."""
        index = self.indexes.get(info.object_id)
        if index is None:
            found = await self.load_once(("index", info.object_id), partial(self._read_index, info))
            assert isinstance(found, ObjectIndex)
            index = found
        return index

    def preload_indexes(self, stream_id: int, offset: int) -> None:
        """Start loading the indexes of the object that holds `offset` and of the next one, unless they are cached."""
        location = self.location(stream_id, offset)
        following = self.location(stream_id, location.range.end_offset) if location is not None else None
        for found in (location, following):
            if found is not None:
                info = found.object
                key = ("index", info.object_id)
                if info.object_id not in self.indexes and key not in self._loading:
                    _ = self._start(key, partial(self._read_index, info))

    async def _read_index(self, info: ObjectInfo) -> ObjectIndex:
        self._stats.index_reads += 1
        with self.checking(info, WHOLE):
            index = await read_index(
                self._store(info), self._key(info), index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes
            )
            expect_object(index, info.object_id)
        self.indexes.put(info.object_id, index)
        return index

    async def load_blocks(
        self, info: ObjectInfo, entries: Sequence[IndexEntry], priority: Priority
    ) -> list[CachedBlock]:
        """Return the blocks of the entries; blocks that are being loaded for another reader are not read again."""
        return await self.finish_loading(self.begin_loading(info, entries, priority))

    def begin_loading(
        self, info: ObjectInfo, entries: Sequence[IndexEntry], priority: Priority
    ) -> list["asyncio.Future[object] | CachedBlock"]:
        """Start loading the blocks that are not cached, for `finish_loading`."""
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
                self.io.raise_priority(self._answers[block_key], priority)
            waiting.append(loading)
        return waiting

    @staticmethod
    async def finish_loading(waiting: Sequence["asyncio.Future[object] | CachedBlock"]) -> list[CachedBlock]:
        """Return the blocks of a `begin_loading`, once they are loaded."""
        blocks = []
        for item in waiting:
            block = item if isinstance(item, CachedBlock) else await asyncio.shield(item)
            assert isinstance(block, CachedBlock)
            blocks.append(block)
        return blocks

    async def _decode(self, info: ObjectInfo, entry: IndexEntry, answer: "asyncio.Future[memoryview]") -> CachedBlock:
        block_key = BlockKey(info.object_id, entry.position)
        with self.checking(info, entry.position):
            try:
                data = await answer
            finally:
                del self._answers[block_key]
            block = CachedBlock(decode_block(data, entry, where=f"{info.store}:{self._key(info)}"), data)
        self.cache.put(block_key, block)
        self._stats.block_cache_evicted_bytes = self.cache.evicted_bytes
        return block

    def place(self, info: ObjectInfo, position: int = WHOLE) -> Place:
        """Return the place of part of an object."""
        return Place(info.object_id, info.store, self._key(info), position)

    @contextmanager
    def checking(self, info: ObjectInfo, position: int) -> Iterator[None]:
        """Add the place of part of an object to the damage that the body raises when it reads and checks it."""
        place = self.place(info, position)
        try:
            yield
        except ObjectDamage as error:
            error.place = place
            raise
        self._damaged.mark_readable(place)

    async def load_once(self, key: Hashable, load: Callable[[], Coroutine[object, object, object]]) -> object:
        """Return the result of the load under `key`: the one under way, or a new one that outlives this caller."""
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
            future.exception()  # all callers may be gone
        except BaseException:
            future.set_exception(StoreError(f"the load of {key} was cancelled"))
            future.exception()
            raise
        else:
            future.set_result(result)
        finally:
            if self._loading.get(key) is future:
                del self._loading[key]
            self._detached.discard(future)

    def _store(self, info: ObjectInfo) -> ObjectStore:
        store = self._stores.get(info.store)
        if store is None:
            raise StoreError(f"object {info.object_id} is in the store {info.store!r}, which is not configured")
        return store

    def _key(self, info: ObjectInfo) -> str:
        return object_key(self._cluster, info.object_id)


def choose_entries(
    index: ObjectIndex, stream_id: int, offset: int, end_offset: int, bytes_max: int
) -> list[IndexEntry]:
    """Return contiguous entries from the one that holds `offset`, at least one, enough for `bytes_max` or up to a gap.

    Raises CorruptObject if no block holds `offset`.
    """
    chosen: list[IndexEntry] = []
    expected = offset
    for entry in index.find(stream_id, offset, end_offset, bytes_max=bytes_max):
        if entry.start_offset > expected:
            break
        chosen.append(entry)
        expected = entry.end_offset
    if not chosen:
        raise CorruptObject(f"object {index.key}: stream {stream_id}: no block holds offset {offset}")
    return chosen


def _range_start(location: RangeLocation) -> int:
    return location.range.start_offset
