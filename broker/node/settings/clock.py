"""A wall clock that ignores a forward jump until it has lasted an hour: for work that destroys data by its age.

A clock set wrong by hand, by a bad time server or by the host would make retention drop everything in one pass. So a
jump ahead of the monotonic clock is ignored for a while, with a warning, and time continues from before the jump. If
the clock returns within that time, nothing has happened. A backward jump takes effect at once, since it drops nothing.
The time at the start is accepted as it is: the node may have been down for any length of time.
"""

from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger("clock")

JUMP_MS_MIN: Final = 10 * 60_000
"""Least difference to the monotonic clock that counts as a jump; gradual corrections stay below it."""
JUMP_IGNORED_MS: Final = 60 * 60_000
"""Time for which a jump is ignored, so that a person or a time server can correct the clock."""


class CautiousClock:
    """Wall clock with delayed forward jumps. It notices a jump only when `now_ms` is called regularly."""

    def __init__(self, wall_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._last_wall_ms, self._last_monotonic_ms = wall_ms(), monotonic_ms()
        self._ahead_since_ms: int | None = None

    def now_ms(self) -> int:
        """Return ms since 1970; during an ignored jump, the time without the jump."""
        wall_ms, monotonic_ms = self._wall_ms(), self._monotonic_ms()
        expected_ms = self._last_wall_ms + monotonic_ms - self._last_monotonic_ms
        if wall_ms - expected_ms > JUMP_MS_MIN:
            if self._ahead_since_ms is None:
                self._ahead_since_ms = monotonic_ms
                log.warning(
                    "the wall clock jumped forward: nothing expires by the new time for a while",
                    jump_ms=wall_ms - expected_ms,
                    ignored_for_ms=JUMP_IGNORED_MS,
                )
            if monotonic_ms - self._ahead_since_ms < JUMP_IGNORED_MS:
                return expected_ms
        self._last_wall_ms, self._last_monotonic_ms = wall_ms, monotonic_ms
        self._ahead_since_ms = None
        return wall_ms
