"""Limits the rate of a background run and gives uploads priority, without starving the run.

The rate follows from the work: the bytes to read and write, spread over most of the period, but at least the configured
rate. Reads and writes share the rate: an iteration read slowly and written at once would delay the log's writes to the
same disk.
"""

import asyncio
from collections.abc import Awaitable, Callable

from anabranch.compaction.settings import CompactionSettings

PERIOD_SHARE = 0.8
"""Share of the period that a run may take, so that it ends before the next one begins."""
BURST_SECONDS = 0.1
LATE_SECONDS_MAX = 0.01
"""A wait that ends later than this is a sign of a busy event loop."""
LATE_PAUSE_SECONDS_MAX = 0.5


def run_rate(backlog_bytes: int, settings: CompactionSettings) -> int:
    """Return the rate in bytes a second, reads and writes together, that finishes the backlog within the period."""
    seconds = max(1.0, settings.period_ms / 1000 * PERIOD_SHARE)
    return max(settings.bytes_per_second_min, int(2 * backlog_bytes / seconds))


class Throttle:
    """A token bucket for bytes read and written. A rate of 0 means no limit."""

    def __init__(self, bytes_per_second: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._rate = bytes_per_second
        self._sleep = sleep
        self._free_at = 0.0
        """Loop time at which all bytes spent so far are paid for."""

    @property
    def is_limited(self) -> bool:
        """True if the rate is limited: the work runs in the background."""
        return self._rate > 0

    async def spend(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more fit the rate. Allows a short burst, and lets other tasks run."""
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
            # The event loop is busy or was blocked, perhaps by this run. Leave it to others for as long again.
            self._free_at = loop.time() + min(late, LATE_PAUSE_SECONDS_MAX)


async def yield_to_uploads(
    under_pressure: Callable[[], bool], settings: CompactionSettings, sleep: Callable[[float], Awaitable[None]]
) -> int:
    """Pause while uploads are under pressure, up to the configured maximum. Returns the number of pauses."""
    pauses = 0
    waited_ms = 0
    while under_pressure() and waited_ms < settings.pressure_pause_ms_max:
        await sleep(settings.pressure_pause_ms / 1000)
        waited_ms += settings.pressure_pause_ms
        pauses += 1
    return pauses
