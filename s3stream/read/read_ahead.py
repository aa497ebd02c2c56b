"""Read-ahead: a reader that continues where it stopped finds its next data in the block cache.

A reader is identified by the offset of its next read. From its second read on, up to two windows lie before it: while
it reads the first, the second is loaded (double buffering). Windows double up to their bound. All of them together are
bounded too, and active readers share that bound equally, so that the loaded data is still cached when its reader comes.
"""

import asyncio
import math
from collections import OrderedDict
from contextvars import copy_context
from dataclasses import dataclass, field

import structlog

from anabranch.s3stream.errors import ObjectDamage, StorageError
from anabranch.s3stream.read.io_plan import Priority
from anabranch.s3stream.read.loader import NeedBlocks, NeedIndex, NeedLocation, ObjectLoader, Spawn, choose_entries
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats

log = structlog.get_logger(__name__)

READER_IDLE_S = 30
"""Time without a read after which a reader counts as inactive."""
AHEAD_FILLS_MAX = 64
"""Look-ups and indexes that one window may load: where objects hold very little, a window stays short."""
READ_AHEAD_FIRST_BYTES = 4 * 1024 * 1024
"""Size of a reader's first window; the next is twice as long."""


@dataclass(slots=True)
class _SequentialReader:
    """One sequential reader: windows are loaded up to `until`, and the next starts once the reader is at `mark`."""

    mark: int
    until: int
    window_bytes: int = READ_AHEAD_FIRST_BYTES
    busy: bool = False
    read_s: float = -math.inf
    """Loop time of its last read."""


@dataclass(slots=True)
class _ReadAheadWindow:
    """One window and the blocks chosen for it so far."""

    stream_id: int
    at: int
    window_bytes: int
    committed_end: int
    size_bytes: int = 0
    blocks: list[NeedBlocks] = field(default_factory=list)


class ReadAhead:
    """The sequential readers, and the windows loaded ahead of them."""

    def __init__(self, loader: ObjectLoader, settings: StorageSettings, stats: StorageStats, spawn: Spawn) -> None:
        self._loader = loader
        self._settings = settings
        self._stats = stats
        self._spawn = spawn
        self._context = copy_context()
        """Context of the engine, for windows: they are not part of a read, which may be over before them."""
        self._readers: OrderedDict[tuple[int, int], _SequentialReader] = OrderedDict()
        total = settings.read_ahead_total_bytes
        self._bytes_max = settings.block_cache_bytes // 2 if total is None else total
        self._bytes = 0

    def begin_read(self, stream_id: int, offset: int, committed_end: int) -> _SequentialReader | None:
        """Return the reader that was expected at `offset`, if any, and start its next window if that is due."""
        ahead = self._readers.pop((stream_id, offset), None)
        if ahead is not None and offset < ahead.until:
            self._extend(stream_id, committed_end, ahead, offset)
        return ahead

    def end_read(self, stream_id: int, committed_end: int, ahead: _SequentialReader | None, next_offset: int) -> None:
        """Expect the reader of a read that began with `begin_read` at `next_offset` from now on."""
        settings = self._settings
        if settings.read_ahead_bytes_max <= 0:
            return
        if ahead is None:
            ahead = _SequentialReader(mark=next_offset, until=next_offset)
        else:
            ahead.read_s = asyncio.get_running_loop().time()
            self._extend(stream_id, committed_end, ahead, next_offset)
        self._readers[stream_id, next_offset] = ahead
        if len(self._readers) > settings.read_ahead_readers:
            self._readers.popitem(last=False)

    def _extend(self, stream_id: int, committed_end: int, ahead: _SequentialReader, offset: int) -> None:
        """Start the next window when the reader has reached the one before it."""
        start = max(offset, ahead.until)
        if not ahead.busy and offset >= ahead.mark and start < committed_end:
            self._context.run(self._start_ahead, stream_id, committed_end, ahead, start)

    def _start_ahead(self, stream_id: int, committed_end: int, ahead: _SequentialReader, start: int) -> None:
        """Start the next window, if the bound of all windows allows; active readers share it equally."""
        settings = self._settings
        active = 1 + sum(ahead.read_s - other.read_s < READER_IDLE_S for other in self._readers.values())
        fair = max(self._bytes_max // (2 * active), settings.object_block_bytes)
        window = min(ahead.window_bytes, settings.read_ahead_bytes_max, fair)
        if self._bytes + window <= self._bytes_max:
            plan = _ReadAheadWindow(stream_id, start, window, committed_end)
            lacking = self._plan_ahead(plan)
            ahead.mark, ahead.until = start, plan.at
            ahead.busy = lacking is not None
            ahead.window_bytes = min(window * 2, settings.read_ahead_bytes_max)
            self._loader.preload_indexes(stream_id, plan.at)
            self._spawn(self._read_ahead(plan, lacking, ahead))
            self._bytes += window

    def _plan_ahead(self, plan: _ReadAheadWindow) -> NeedLocation | NeedIndex | None:
        """Choose blocks as far as indexes are in memory; return None when the window is full, else what to load."""
        while plan.at < plan.committed_end and plan.size_bytes < plan.window_bytes:
            location = self._loader.location(plan.stream_id, plan.at)
            if location is None:
                return NeedLocation(plan.at)
            index = self._loader.indexes.get(location.object.object_id)
            if index is None:
                return NeedIndex(location.object)
            end = location.range.end_offset
            bytes_left = plan.window_bytes - plan.size_bytes
            try:
                entries = choose_entries(index, location.stored_stream_id, plan.at, end, bytes_left)
            except ObjectDamage:
                return None  # the read that needs the data reports it
            # A block past the window would take a separate GET: it belongs to the next window.
            least = 0 if plan.blocks else 1
            while len(entries) > least and sum(entry.size_bytes for entry in entries) > bytes_left:
                del entries[-1]
            if not entries:
                return None
            plan.blocks.append(NeedBlocks(location.object, entries))
            plan.size_bytes += sum(entry.size_bytes for entry in entries)
            plan.at = min(entries[-1].end_offset, end)
        return None

    async def _read_ahead(
        self, plan: _ReadAheadWindow, lacking: NeedLocation | NeedIndex | None, ahead: _SequentialReader
    ) -> None:
        """Load a window into the block cache. A failure is only logged: the read that needs the data reports it."""
        try:
            fills = 0
            while lacking is not None and fills < AHEAD_FILLS_MAX:
                fills += 1
                if isinstance(lacking, NeedLocation):
                    await self._loader.find_location(plan.stream_id, lacking.offset, plan.committed_end)
                else:
                    await self._loader.index(lacking.object)
                lacking = self._plan_ahead(plan)
            ahead.until = max(ahead.until, plan.at)
            ahead.busy = False
            self._stats.read_aheads += 1
            self._stats.read_ahead_bytes += plan.size_bytes
            loads = [self._loader.begin_loading(need.object, need.entries, Priority.READ_AHEAD) for need in plan.blocks]
            for load in loads:
                await self._loader.finish_loading(load)
        except StorageError as error:
            log.info("read-ahead failed", stream_id=plan.stream_id, reason=str(error))
        finally:
            ahead.busy = False
            self._bytes -= plan.window_bytes
