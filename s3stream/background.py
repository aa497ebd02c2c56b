"""Turns for background work (uploads, compaction, collection), so that appends do not wait for it.

Objects are written to the disk that the log flushes to, or are sent by the event loop that answers clients. Both are
fast enough for all, but not at the same moment: a burst of an upload would hold up each append behind it. So this work
is done in pieces, one at a time, over all objects of a node. A piece begins when the log is idle, and afterwards the
disk is left to the log for as long as the piece took. Work that is behind its deadline hurries: its pieces wait for
nothing, and other pieces wait for them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, Protocol

from anabranch.wal.interface import Durable, WalError

PIECE_BYTES: Final = 1024 * 1024
"""A disk writes a piece in about a millisecond, the longest time that a flush of the log waits for it. Smaller pieces
disturb hardly less, and each costs a millisecond of CPU time."""
HURRIED_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Pieces of work in a hurry: a thread is asked less often."""
REST_S_MAX: Final = 0.05
"""Longest pause after a piece: a slow disk must not stop the work."""
YIELD_S: Final = 0.01
YIELDS_MAX: Final = 100
"""Number of such pauses for work in a hurry, before a piece is written all the same."""


class Pace(Protocol):
    """Pace at which the bytes of an object are written or sent."""

    @property
    def piece_bytes(self) -> int:
        """Size of the next piece, at most."""
        ...

    def piece(self, size_bytes: int, /) -> AbstractAsyncContextManager[None]:
        """Wait for the piece's turn, then yield: write or send the piece inside the `async with` block."""
        ...


class TimedPace:
    """A pace that also measures the waiting: the time in which a slow write is not the store's fault."""

    def __init__(self, pace: Pace) -> None:
        self._pace: Final = pace
        self._waited_s = 0.0
        self._waiting_since: float | None = None

    @property
    def piece_bytes(self) -> int:
        """Size of the next piece, at most."""
        return self._pace.piece_bytes

    @property
    def waited_s(self) -> float:
        """Time spent waiting so far, a wait under way included."""
        since = self._waiting_since
        return self._waited_s + (0.0 if since is None else asyncio.get_running_loop().time() - since)

    @asynccontextmanager
    async def piece(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for the piece's turn, then yield to its write."""
        self._waiting_since = asyncio.get_running_loop().time()
        try:
            async with self._pace.piece(size_bytes):
                self._end_wait()
                yield
        finally:
            self._end_wait()

    def _end_wait(self) -> None:
        self._waited_s = self.waited_s
        self._waiting_since = None


class BackgroundIo:
    """The turns of one node's background work. It is itself the pace of work without a deadline."""

    piece_bytes: Final = PIECE_BYTES

    def __init__(self, log_write: Callable[[], Durable | None]) -> None:
        """`log_write` returns the completion of the log's newest write, None if there was none."""
        self._log_write: Final = log_write
        self._turn: Final = asyncio.Lock()
        self._hurried = 0
        """Pieces in a hurry that are being written."""
        self._rest_until = 0.0
        """Loop time."""

    @asynccontextmanager
    async def piece(self, _size_bytes: int) -> AsyncIterator[None]:
        """Wait for a turn, then yield to the write of a piece. The disk's time counts, not the size."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            for _ in range(YIELDS_MAX):
                if not self._hurried:
                    break
                await asyncio.sleep(YIELD_S)
            await asyncio.sleep(self._rest_until - loop.time())
            await self._log_idle()
            began = loop.time()
            try:
                yield
            finally:
                now = loop.time()
                self._rest_until = now + min(now - began, REST_S_MAX)

    @asynccontextmanager
    async def hurried_piece(self) -> AsyncIterator[None]:
        """Yield at once to the write of a piece that is behind its deadline."""
        self._hurried += 1
        try:
            yield
        finally:
            self._hurried -= 1

    async def _log_idle(self) -> None:
        """Wait for the log's write under way, if there is one. The next one may begin at any time."""
        durable = self._log_write()
        if durable is not None and not durable.done:
            with suppress(WalError):  # the log's owner handles it
                await durable
