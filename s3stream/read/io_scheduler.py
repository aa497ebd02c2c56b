"""Runs ranged GETs: queues reads, plans their GETs with `io_plan`, and hands each waiter its bytes.

Reads queued in the same turn of the loop, or while all slots are busy, are merged when they lie close in one object.
Every GET has a deadline. A waiter that gives up leaves the GET running: its bytes go to the other waiters.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass

from anabranch.s3stream.errors import StorageError, StoreError
from anabranch.s3stream.read.io_plan import (
    ByteRange,
    PlannedGet,
    Priority,
    choose_priority,
    plan_gets,
    slots_by_priority,
)
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tasks import side_by_side

HAND_OUT_BYTES_PER_TURN = 1024 * 1024
"""Bytes decoded in one turn of the event loop; their checksums take some 100 us."""
HAND_OUT_PAUSE_S = 0.001
"""Pause between such turns while appends wait for the log: turns back to back would keep the log's threads from the
interpreter. So at most 1 GB/s is decoded while appends are under way."""
OVERSIZE_GETS_IN_FLIGHT = 4
"""Concurrent GETs for one block that is longer than a GET may be; they share one slot."""


@dataclass(slots=True, eq=False)
class _RangeRead:
    """A queued read of a byte range, and the future of its bytes."""

    store: ObjectStore
    key: str
    span: ByteRange
    priority: Priority
    answer: "asyncio.Future[memoryview]"
    context: Context
    """Context of the reader. A GET runs in that of its first one, whichever GET made room for it."""


class IoScheduler:
    """Shares a bounded number of GETs between classes of readers."""

    def __init__(
        self,
        *,
        settings: StorageSettings,
        stats: StorageStats,
        spawn: Callable[[Coroutine[object, object, None]], None],
        is_log_writing: Callable[[], bool],
    ) -> None:
        """`spawn` starts a task that outlives the caller of the read, or raises StorageError.

        `is_log_writing` returns whether the log is at work on an append.
        """
        self._settings = settings
        self._stats = stats
        self._spawn = spawn
        self._is_log_writing = is_log_writing
        self._limits = slots_by_priority(settings.reads_in_flight)
        self._running = dict.fromkeys(Priority, 0)
        self._queue: list[_RangeRead] = []
        self._turn = 0
        self._handed_bytes = 0
        """Bytes handed out in this turn of the loop."""
        self._next_turn: asyncio.Future[None] | None = None
        self._scheduled = False

    def submit(
        self, store: ObjectStore, key: str, start: int, end: int, priority: Priority
    ) -> "asyncio.Future[memoryview]":
        """Queue a read of bytes [start, end); return the future of the bytes, or of StoreError."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        read = _RangeRead(store, key, ByteRange(start, end), priority, answer, copy_context())
        self._queue.append(read)
        self._schedule()
        return answer

    def raise_priority(self, answer: "asyncio.Future[memoryview]", priority: Priority) -> None:
        """Raise the priority of a queued read: a more urgent reader waits for it now."""
        for read in self._queue:
            if read.answer is answer and priority < read.priority:
                read.priority = priority
                self._schedule()

    async def read(self, store: ObjectStore, key: str, start: int, end: int, priority: Priority) -> memoryview:
        """Return bytes [start, end) of an object. Raises StoreError."""
        return await asyncio.shield(self.submit(store, key, start, end, priority))

    def abandon_all(self, error: StorageError) -> None:
        """Answer all queued reads with `error`."""
        queue, self._queue = self._queue, []
        for read in queue:
            _answer_error(read, error)

    def _schedule(self) -> None:
        """Dispatch at the end of this turn, when all reads that begin in it are queued."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._queue:
            free = self._settings.reads_in_flight - sum(self._running.values())
            waiting = {read.priority for read in self._queue}
            priority = choose_priority(waiting, self._running, self._limits, self._turn) if free > 0 else None
            if priority is None:
                return
            self._turn += 1
            first = next(read for read in self._queue if read.priority is priority)
            # A few GETs at a time keep the link busy: the reads of many readers need no cutting.
            idle = min(self._settings.reads_in_flight // 2 - sum(self._running.values()), self._limits[priority])
            # Two windows of a read-ahead are loaded concurrently: the first must not take every slot.
            self._start_get(first, (idle + 1) // 2 if priority is Priority.READ_AHEAD else idle)

    def _start_get(self, first: _RangeRead, idle: int) -> None:
        """Start the GET that covers `first`, together with the other reads it covers."""
        same = [read for read in self._queue if read.key == first.key and read.store is first.store]
        alone = len(same) == len(self._queue)
        settings = self._settings
        gets = plan_gets(
            [read.span for read in same],
            gap_bytes_max=settings.read_gap_bytes_max,
            read_bytes_max=settings.read_bytes_max,
            split_bytes_min=settings.read_split_bytes_min,
            idle=idle if alone else 1,
        )
        at = next(index for index, read in enumerate(same) if read is first)
        get = next(get for get in gets if at in get.members)
        members = [same[index] for index in get.members]
        for read in members:
            self._queue.remove(read)
        try:
            first.context.run(self._spawn, self._get(first, get, members))
        except StorageError as error:
            for read in members:
                _answer_error(read, error)
            return
        self._running[first.priority] += 1
        self._stats.gets_merged += len(members) - 1

    async def _get(self, first: _RangeRead, get: PlannedGet, members: list[_RangeRead]) -> None:
        try:
            data = await self._fetch_counted(first, get)
            await self._hand_out(data, get, members)
        except StoreError as error:
            for read in members:
                _answer_error(read, type(error)(*error.args))
        except BaseException:
            for read in members:
                _answer_error(read, StoreError(f"{first.store.name}:{first.key}: the read was cancelled"))
            raise

    async def _hand_out(self, data: memoryview, get: PlannedGet, members: list[_RangeRead]) -> None:
        """Answer the waiters, a bounded number of bytes per turn: they decode them while appends wait."""
        for read in members:
            if read.priority is not Priority.TAIL:
                while self._handed_bytes >= HAND_OUT_BYTES_PER_TURN:
                    await asyncio.shield(self._turn_over())
                _ = self._turn_over()
                self._handed_bytes += read.span.end - read.span.start
            if not read.answer.done():
                read.answer.set_result(data[read.span.start - get.start : read.span.end - get.start])

    def _turn_over(self) -> "asyncio.Future[None]":
        """Return the future of the next turn: the waiters answered in this one have run, and appends had their turn."""
        if self._next_turn is None:
            loop = asyncio.get_running_loop()
            self._next_turn = loop.create_future()
            if self._is_log_writing():
                loop.call_later(HAND_OUT_PAUSE_S, self._begin_turn)
            else:
                loop.call_soon(self._begin_turn)
        return self._next_turn

    def _begin_turn(self) -> None:
        self._handed_bytes = 0
        waited, self._next_turn = self._next_turn, None
        if waited is not None:
            waited.set_result(None)

    async def _fetch_counted(self, first: _RangeRead, get: PlannedGet) -> memoryview:
        priority = first.priority
        try:
            data = await self._fetch(first, get)
        finally:
            self._running[priority] -= 1
            self._dispatch()
        return data

    async def _fetch(self, first: _RangeRead, get: PlannedGet) -> memoryview:
        """Return the bytes of a GET; one that a single block makes too long is split into concurrent ones."""
        limit = self._settings.read_bytes_max
        if get.end - get.start <= limit:
            return await self._fetch_range(first, get.start, get.end)
        whole = bytearray(get.end - get.start)
        slots = asyncio.Semaphore(OVERSIZE_GETS_IN_FLIGHT)

        async def fetch(start: int, end: int) -> None:
            async with slots:
                whole[start - get.start : end - get.start] = await self._fetch_range(first, start, end)

        await side_by_side(fetch(start, min(start + limit, get.end)) for start in range(get.start, get.end, limit))
        return memoryview(whole).toreadonly()

    async def _fetch_range(self, first: _RangeRead, start: int, end: int) -> memoryview:
        deadline_ms = self._settings.read_deadline_ms
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                data = await first.store.get(first.key, start, end)
        except TimeoutError as error:
            where = f"{first.store.name}:{first.key} bytes [{start}, {end})"
            raise StoreError(f"{where}: no answer within {deadline_ms} ms") from error
        self._stats.gets += 1
        self._stats.get_bytes += len(data)
        return data


def _answer_error(read: _RangeRead, error: StorageError) -> None:
    if not read.answer.done():
        read.answer.set_exception(error)
        read.answer.exception()  # the caller may be gone
