"""A wall clock that does not believe a leap forward at once: for what destroys data by its age.

A clock set wrong by hand, by a bad time server or by a host that gives a wrong one would make retention drop everything
in one look. So a leap (against the monotonic clock) is doubted for a while, with a warning; until it is believed, time
goes on from where it was. If the clock comes back within that while, nothing has happened. A leap back needs no doubt:
it drops nothing. What the clock says when the node starts is believed: a node may have been down for any time.
"""

from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger("clock")

LEAP_MS: Final = 10 * 60_000
"""Further ahead of the monotonic clock than this no slow correction goes."""
DOUBT_MS: Final = 60 * 60_000
"""How long a leap must stand before it is believed: time for a person or a time server to set the clock right."""


class CautiousClock:
    """Call `now_ms`, at least now and then."""

    def __init__(self, wall_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._last_wall_ms, self._last_monotonic_ms = wall_ms(), monotonic_ms()
        self._doubted_since_ms: int | None = None

    def now_ms(self) -> int:
        """Milliseconds since 1970, behind the wall clock while that is doubted."""
        wall_ms, monotonic_ms = self._wall_ms(), self._monotonic_ms()
        expected_ms = self._last_wall_ms + monotonic_ms - self._last_monotonic_ms
        if wall_ms - expected_ms > LEAP_MS:
            if self._doubted_since_ms is None:
                self._doubted_since_ms = monotonic_ms
                log.warning(
                    "the clock leapt forward: records are not dropped by it before it has stood for a while",
                    leap_ms=wall_ms - expected_ms,
                    doubted_for_ms=DOUBT_MS,
                )
            if monotonic_ms - self._doubted_since_ms < DOUBT_MS:
                return expected_ms
        self._last_wall_ms, self._last_monotonic_ms = wall_ms, monotonic_ms
        self._doubted_since_ms = None
        return wall_ms
