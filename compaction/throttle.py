"""Holds a background run to a rate and lets uploads go first, without ever starving the run.

The rate follows from the work: what there is to read and to write, spread over most of the period, at least the
configured rate. Reads and writes draw on it alike: an iteration that was read slowly and written at once would hold up
the log's writes to the same disk.
"""

import asyncio
from collections.abc import Awaitable, Callable

from compaction.settings import CompactionSettings

PERIOD_SHARE = 0.8
"""Of the period that a run may take: it ends before the next begins."""
BURST_SECONDS = 0.1
LATE_SECONDS_MAX = 0.01
"""A wait that ends so much too late tells of a busy event loop."""
LATE_PAUSE_SECONDS_MAX = 0.5


def run_rate(backlog_bytes: int, settings: CompactionSettings) -> int:
    """Bytes a second, read or written, that finish the backlog within the period."""
    seconds = max(1.0, settings.period_ms / 1000 * PERIOD_SHARE)
    return max(settings.bytes_per_second_min, int(2 * backlog_bytes / seconds))


class Throttle:
    """A token bucket over bytes read and written. A rate of 0 holds nothing back."""

    def __init__(self, bytes_per_second: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._rate = bytes_per_second
        self._sleep = sleep
        self._free_at = 0.0
        """Loop time at which all that was spent is paid for."""

    @property
    def is_limited(self) -> bool:
        """Whether the work goes on behind others' and takes its time."""
        return self._rate > 0

    async def spend(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more fit the rate, with a short burst; let others go first."""
        if not self._rate:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = self._free_at = max(self._free_at, now - BURST_SECONDS) + size_bytes / self._rate
        if due <= now:
            return
        await self._sleep(due - now)
        late = loop.time() - due
        if late > LATE_SECONDS_MAX:
            # The event loop is busy, or was held up, be it by this very run: as long again is left to others.
            self._free_at = loop.time() + min(late, LATE_PAUSE_SECONDS_MAX)


async def yield_to_uploads(
    under_pressure: Callable[[], bool], settings: CompactionSettings, sleep: Callable[[float], Awaitable[None]]
) -> int:
    """Pause while uploads are under pressure, up to the configured longest; returns the pauses."""
    pauses = 0
    waited_ms = 0
    while under_pressure() and waited_ms < settings.pressure_pause_ms_max:
        await sleep(settings.pressure_pause_ms / 1000)
        waited_ms += settings.pressure_pause_ms
        pauses += 1
    return pauses
