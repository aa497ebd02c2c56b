"""Runs ranged GETs: queues what is wanted, asks `io_plan` what to do, and hands each waiter its bytes.

Reads queued in the same turn of the loop, or while all slots are busy, are merged when they lie close in one object.
Every GET has a deadline. A waiter that gives up leaves the GET running: its bytes go to whoever else wants them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from s3stream.errors import StorageError, StoreError
from s3stream.read.io_plan import Piece, Priority, Span, choose, plan_pieces, slots_by_priority
from s3stream.settings import StorageSettings
from s3stream.stats import StorageStats
from s3stream.store.interface import ObjectStore
from s3stream.tasks import side_by_side

HAND_OUT_BYTES_PER_TURN = 1024 * 1024
"""What is decoded in one turn of the event loop; its check sums take some 100 us."""
HAND_OUT_PAUSE_S = 0.001
"""While appends wait for the log the next such turn comes this much later: turns back to back would keep the log's
threads from the interpreter. So 1 GB/s is the most that is decoded beside appends."""
LONG_PIECE_GETS = 4
"""GETs at a time for one block that is longer than a GET may be; they share one slot."""


@dataclass(slots=True, eq=False)
class _Wanted:
    store: ObjectStore
    key: str
    span: Span
    priority: Priority
    answer: "asyncio.Future[memoryview]"


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
        """`spawn` starts a task that outlives whoever asked for the read, or raises StorageError.

        `is_log_writing` tells whether the log is at work on an append.
        """
        self._settings = settings
        self._stats = stats
        self._spawn = spawn
        self._is_log_writing = is_log_writing
        self._limits = slots_by_priority(settings.reads_in_flight)
        self._running = dict.fromkeys(Priority, 0)
        self._queue: list[_Wanted] = []
        self._turn = 0
        self._handed_bytes = 0
        """Handed out in this turn of the loop."""
        self._next_turn: asyncio.Future[None] | None = None
        self._scheduled = False

    def submit(
        self, store: ObjectStore, key: str, start: int, end: int, priority: Priority
    ) -> "asyncio.Future[memoryview]":
        """Queue a read of bytes [start, end); the answer, or StoreError, comes as a future."""
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        wanted = _Wanted(store, key, Span(start, end), priority, answer)
        self._queue.append(wanted)
        self._schedule()
        return answer

    def urge(self, answer: "asyncio.Future[memoryview]", priority: Priority) -> None:
        """Somebody waits now for a read that was queued as less urgent."""
        for wanted in self._queue:
            if wanted.answer is answer and priority < wanted.priority:
                wanted.priority = priority
                self._schedule()

    async def read(self, store: ObjectStore, key: str, start: int, end: int, priority: Priority) -> memoryview:
        """Bytes [start, end) of an object. Raises StoreError."""
        return await asyncio.shield(self.submit(store, key, start, end, priority))

    def close(self, error: StorageError) -> None:
        """Answer whoever still waits in the queue."""
        queue, self._queue = self._queue, []
        for wanted in queue:
            _answer_error(wanted, error)

    def _schedule(self) -> None:
        """Dispatch at the end of this turn, when all that is wanted in it is queued."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._queue:
            free = self._settings.reads_in_flight - sum(self._running.values())
            waiting = {wanted.priority for wanted in self._queue}
            priority = choose(waiting, self._running, self._limits, self._turn) if free > 0 else None
            if priority is None:
                return
            self._turn += 1
            first = next(wanted for wanted in self._queue if wanted.priority is priority)
            # A few GETs at a time keep the link busy: what many readers want needs no cutting.
            idle = min(self._settings.reads_in_flight // 2 - sum(self._running.values()), self._limits[priority])
            # Two windows of a read-ahead go side by side: the first must not take every slot.
            self._start(first, (idle + 1) // 2 if priority is Priority.READ_AHEAD else idle)

    def _start(self, first: _Wanted, idle: int) -> None:
        """Start the GET that brings `first`, together with what else it covers."""
        same = [wanted for wanted in self._queue if wanted.key == first.key and wanted.store is first.store]
        alone = len(same) == len(self._queue)
        settings = self._settings
        pieces = plan_pieces(
            [wanted.span for wanted in same],
            gap_bytes_max=settings.read_gap_bytes_max,
            read_bytes_max=settings.read_bytes_max,
            split_bytes_min=settings.read_split_bytes_min,
            idle=idle if alone else 1,
        )
        at = next(index for index, wanted in enumerate(same) if wanted is first)
        piece = next(piece for piece in pieces if at in piece.members)
        members = [same[index] for index in piece.members]
        for wanted in members:
            self._queue.remove(wanted)
        try:
            self._spawn(self._get(first, piece, members))
        except StorageError as error:
            for wanted in members:
                _answer_error(wanted, error)
            return
        self._running[first.priority] += 1
        self._stats.gets_merged += len(members) - 1

    async def _get(self, first: _Wanted, piece: Piece, members: list[_Wanted]) -> None:
        try:
            data = await self._fetch_counted(first, piece)
            await self._hand_out(data, piece, members)
        except StoreError as error:
            for wanted in members:
                _answer_error(wanted, type(error)(*error.args))
        except BaseException:
            for wanted in members:
                _answer_error(wanted, StoreError(f"{first.store.name}:{first.key}: the read was given up"))
            raise

    async def _hand_out(self, data: memoryview, piece: Piece, members: list[_Wanted]) -> None:
        """Answer the waiters, so many bytes a turn: each decodes what it gets, and appends must not wait for it all."""
        for wanted in members:
            if wanted.priority is not Priority.TAIL:
                while self._handed_bytes >= HAND_OUT_BYTES_PER_TURN:
                    await asyncio.shield(self._turn_over())
                _ = self._turn_over()
                self._handed_bytes += wanted.span.end - wanted.span.start
            if not wanted.answer.done():
                wanted.answer.set_result(data[wanted.span.start - piece.start : wanted.span.end - piece.start])

    def _turn_over(self) -> "asyncio.Future[None]":
        """Done when whoever was answered in this turn has run, and appends had their turn."""
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

    async def _fetch_counted(self, first: _Wanted, piece: Piece) -> memoryview:
        priority = first.priority
        try:
            data = await self._fetch(first, piece)
        finally:
            self._running[priority] -= 1
            self._dispatch()
        return data

    async def _fetch(self, first: _Wanted, piece: Piece) -> memoryview:
        """The piece; one that a single block makes longer than a GET may be comes in several, side by side."""
        limit = self._settings.read_bytes_max
        if piece.end - piece.start <= limit:
            return await self._fetch_range(first, piece.start, piece.end)
        whole = bytearray(piece.end - piece.start)
        slots = asyncio.Semaphore(LONG_PIECE_GETS)

        async def fetch(start: int, end: int) -> None:
            async with slots:
                whole[start - piece.start : end - piece.start] = await self._fetch_range(first, start, end)

        await side_by_side(
            fetch(start, min(start + limit, piece.end)) for start in range(piece.start, piece.end, limit)
        )
        return memoryview(whole).toreadonly()

    async def _fetch_range(self, first: _Wanted, start: int, end: int) -> memoryview:
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


def _answer_error(wanted: _Wanted, error: StorageError) -> None:
    if not wanted.answer.done():
        wanted.answer.set_exception(error)
        wanted.answer.exception()  # whoever asked may be gone
