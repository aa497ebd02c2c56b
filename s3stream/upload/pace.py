"""Pace of an upload: a sealed block is written over most of the time until the next seal is due.

There is no rate to configure. Two measures say how much of the block should be written by now, and the larger counts:

- Time: the block was filled in some time, and the next one is expected to take as long.
- Level: the share of the room left at the seal that appends have taken since, in the next block, the log and the log
  cache. Whichever fills first is what the upload must be faster than.

Both reach the whole block early, at `PACE_SHARE`. An upload that falls behind, or that has waiters, hurries. All
objects of a block share its pace.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

from anabranch.s3stream.background import HURRIED_PIECE_BYTES, PIECE_BYTES, BackgroundIo

PACE_SHARE: Final = 0.7
"""Share of the time and of the room that an upload may take. The rest is for its commit, and for rising rates."""
BYTES_PER_SECOND_MIN: Final = 8 * 1024 * 1024
"""A slower pace (a piece every 30 ms) would not help other work."""
BEHIND_BYTES: Final = 16 * 1024 * 1024
"""An upload that is this far behind hurries."""
WAIT_S_MAX: Final = 0.05
"""Longest wait before the level is looked at again."""
TURN_S_MAX: Final = 0.5
"""Longest wait for a turn before the level is looked at again: others may hold the turns for as long as a call that
deletes objects from an unreachable store takes."""


class UploadPace:
    """Pace of one sealed block, counted from its creation."""

    def __init__(self, background: BackgroundIo, *, size_bytes: int, fill_s: float, level: Callable[[], float]) -> None:
        """`fill_s` is the time in which the block was filled. `level` is described above; 1 and more: no room left."""
        self._background: Final = background
        self._size_bytes: Final = size_bytes
        self._fill_s: Final = max(fill_s, 1e-3)
        self._level: Final = level
        self._began_s: Final = asyncio.get_running_loop().time()
        self._sent_bytes = 0

    @property
    def piece_bytes(self) -> int:
        """Size of the next piece, at most."""
        return HURRIED_PIECE_BYTES if self._is_behind() else PIECE_BYTES

    @asynccontextmanager
    async def piece(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until the piece is due, and for its turn."""
        self._sent_bytes += size_bytes
        async with AsyncExitStack() as turn:
            if not await self._take_turn(turn, size_bytes):
                await turn.enter_async_context(self._background.hurried_piece())
            yield

    async def _take_turn(self, turn: AsyncExitStack, size_bytes: int) -> bool:
        """Enter the turn of a piece that is due into `turn`; return False once the upload must hurry instead."""
        while not self._is_behind():
            wait_s = self._wait_s()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, WAIT_S_MAX))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_S_MAX):
                    await turn.enter_async_context(self._background.piece(size_bytes))
                return True
        return False

    def _due_share(self) -> float:
        """Share of the block that should be written by now."""
        return max(self._elapsed_s() / self._fill_s, self._level()) / PACE_SHARE

    def _is_behind(self) -> bool:
        due = self._due_share()
        return due >= 1 or self._sent_bytes + BEHIND_BYTES < due * self._size_bytes

    def _wait_s(self) -> float:
        """Time until the bytes sent so far, the next piece included, are due; 0 or less if they are."""
        if self._sent_bytes <= max(PIECE_BYTES, self._due_share() * self._size_bytes):
            return 0
        least_s = self._sent_bytes / BYTES_PER_SECOND_MIN
        planned_s = self._sent_bytes / max(1, self._size_bytes) * self._fill_s * PACE_SHARE
        return min(least_s, planned_s) - self._elapsed_s()

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s
