"""Holds a background run to a rate and lets uploads go first, without ever starving the run.

The rate follows from the work: what there is to read, spread over most of the period, at least the configured rate.
"""

import asyncio
from collections.abc import Awaitable, Callable

from compaction.settings import CompactionSettings

PERIOD_SHARE = 0.8
"""Of the period that a run may take: it ends before the next begins."""
BURST_SECONDS = 1.0


def run_rate(backlog_bytes: int, settings: CompactionSettings) -> int:
    """Bytes a second that finish the backlog within the period."""
    seconds = max(1.0, settings.period_ms / 1000 * PERIOD_SHARE)
    return max(settings.bytes_per_second_min, int(backlog_bytes / seconds))


class Throttle:
    """A token bucket over bytes read. A rate of 0 holds nothing back."""

    def __init__(self, bytes_per_second: int, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._rate = bytes_per_second
        self._sleep = sleep
        self._free_at = 0.0
        """Loop time at which all that was spent is paid for."""

    async def spend(self, size_bytes: int) -> None:
        """Wait until `size_bytes` more fit the rate, with a burst of a second's worth."""
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_SECONDS) + size_bytes / self._rate
        if self._free_at > now:
            await self._sleep(self._free_at - now)


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
