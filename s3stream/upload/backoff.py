"""Pauses between the attempts of a call that is repeated."""

import asyncio

from anabranch.s3stream.settings import StorageSettings


class Backoff:
    """Pauses that double from `retry_ms_min` to `retry_ms_max`."""

    def __init__(self, settings: StorageSettings) -> None:
        self._next_ms = settings.retry_ms_min
        self._max_ms = settings.retry_ms_max

    async def pause(self) -> None:
        """Sleep, longer each time."""
        wait_ms, self._next_ms = self._next_ms, min(self._next_ms * 2, self._max_ms)
        await asyncio.sleep(wait_ms / 1000)
