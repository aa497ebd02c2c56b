"""Read-ahead: a reader that reads on where it stopped finds its next data in the block cache.

A reader is known by where it will read next. From its second read on, up to two windows lie before it: while it takes
the one, the other is on its way (double buffering). Windows double up to their bound; all of them together are bounded,
and readers at work share that bound equally, so that what is loaded ahead is still there when its reader comes.
"""

import asyncio
import math
from collections import OrderedDict
from dataclasses import dataclass, field

import structlog

from s3stream.errors import StorageError
from s3stream.read.io_plan import Priority
from s3stream.read.loader import NeedBlocks, NeedIndex, NeedLocation, ObjectLoader, Spawn, choose_entries
from s3stream.settings import StorageSettings
from s3stream.stats import StorageStats

log = structlog.get_logger(__name__)

READER_IDLE_S = 30
AHEAD_FILLS_MAX = 64
"""Look-ups and indexes that one window may load: where every object holds next to nothing, a window stays short."""
READ_AHEAD_FIRST_BYTES = 4 * 1024 * 1024
"""First window of a reader; the next is twice as long."""


@dataclass(slots=True)
class _Reader:
    """Read-ahead of one sequential reader: what is asked for up to `until`; the next window once `mark` is reached."""

    mark: int
    until: int
    window_bytes: int = READ_AHEAD_FIRST_BYTES
    busy: bool = False
    read_s: float = -math.inf
    """When it last read on, in the loop's time."""


@dataclass(slots=True)
class _Window:
    """One window: the blocks chosen so far."""

    stream_id: int
    at: int
    window_bytes: int
    committed_end: int
    size_bytes: int = 0
    blocks: list[NeedBlocks] = field(default_factory=list)


class ReadAhead:
    """The sequential readers, and the windows before them."""

    def __init__(self, loader: ObjectLoader, settings: StorageSettings, stats: StorageStats, spawn: Spawn) -> None:
        self._loader = loader
        self._settings = settings
        self._stats = stats
        self._spawn = spawn
        self._readers: OrderedDict[tuple[int, int], _Reader] = OrderedDict()
        total = settings.read_ahead_total_bytes
        self._bytes_max = settings.block_cache_bytes // 2 if total is None else total
        self._bytes = 0

    def arrive(self, stream_id: int, offset: int, committed_end: int) -> _Reader | None:
        """A read begins at `offset`: the reader that was expected there, its next window on the way if it is time."""
        ahead = self._readers.pop((stream_id, offset), None)
        if ahead is not None and offset < ahead.until:
            self._extend(stream_id, committed_end, ahead, offset)
        return ahead

    def leave(self, stream_id: int, committed_end: int, ahead: _Reader | None, next_offset: int) -> None:
        """The read that `arrive` was told of ended at `next_offset`: expect the reader there."""
        settings = self._settings
        if settings.read_ahead_bytes_max <= 0:
            return
        if ahead is None:
            ahead = _Reader(mark=next_offset, until=next_offset)
        else:
            ahead.read_s = asyncio.get_running_loop().time()
            self._extend(stream_id, committed_end, ahead, next_offset)
        self._readers[stream_id, next_offset] = ahead
        if len(self._readers) > settings.read_ahead_readers:
            self._readers.popitem(last=False)

    def _extend(self, stream_id: int, committed_end: int, ahead: _Reader, offset: int) -> None:
        """Start the next window when the reader has come to the one before it."""
        start = max(offset, ahead.until)
        if not ahead.busy and offset >= ahead.mark and start < committed_end:
            self._start_ahead(stream_id, committed_end, ahead, start)

    def _start_ahead(self, stream_id: int, committed_end: int, ahead: _Reader, start: int) -> None:
        """Start the next window, if the bound of all windows allows; readers at work share it equally."""
        settings = self._settings
        active = 1 + sum(ahead.read_s - other.read_s < READER_IDLE_S for other in self._readers.values())
        fair = max(self._bytes_max // (2 * active), settings.object_block_bytes)
        window = min(ahead.window_bytes, settings.read_ahead_bytes_max, fair)
        if self._bytes + window <= self._bytes_max:
            plan = _Window(stream_id, start, window, committed_end)
            lacking = self._plan_ahead(plan)
            ahead.mark, ahead.until = start, plan.at
            ahead.busy = lacking is not None
            ahead.window_bytes = min(window * 2, settings.read_ahead_bytes_max)
            self._loader.expect(stream_id, plan.at)
            self._spawn(self._read_ahead(plan, lacking, ahead))
            self._bytes += window

    def _plan_ahead(self, plan: _Window) -> NeedLocation | NeedIndex | None:
        """Choose blocks as far as memory tells which there are; None when the window is full, else what is lacking."""
        while plan.at < plan.committed_end and plan.size_bytes < plan.window_bytes:
            location = self._loader.location(plan.stream_id, plan.at)
            if location is None:
                return NeedLocation(plan.at)
            index = self._loader.indexes.get(location.object.object_id)
            if index is None:
                return NeedIndex(location.object)
            end = location.range.end_offset
            bytes_left = plan.window_bytes - plan.size_bytes
            entries = choose_entries(index, location.stored_stream_id, plan.at, end, bytes_left)
            # A block past the window would be a GET of its own: it is for the next window.
            least = 0 if plan.blocks else 1
            while len(entries) > least and sum(entry.size_bytes for entry in entries) > bytes_left:
                del entries[-1]
            if not entries:
                return None
            plan.blocks.append(NeedBlocks(location.object, entries))
            plan.size_bytes += sum(entry.size_bytes for entry in entries)
            plan.at = min(entries[-1].end_offset, end)
        return None

    async def _read_ahead(self, plan: _Window, lacking: NeedLocation | NeedIndex | None, ahead: _Reader) -> None:
        """Load a window into the block cache. A failure is left to the read that needs the data."""
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
            loads = [self._loader.begin_blocks(need.object, need.entries, Priority.READ_AHEAD) for need in plan.blocks]
            for load in loads:
                await self._loader.end_blocks(load)
        except StorageError as error:
            log.info("read-ahead failed", stream_id=plan.stream_id, reason=str(error))
        finally:
            ahead.busy = False
            self._bytes -= plan.window_bytes
