"""Hedging of slow parts: a second attempt at a part, because the slowest part decides the duration of an upload.

A part that takes several times as long as recent parts of its size is sent once more. The attempt that ends first
counts; the other is cancelled and awaited before the upload continues. Both send the same bytes under the same number,
so the object is the same whichever the store keeps, and the upload is completed once, with one receipt per part. Hedges
are limited to a small share of the parts: a store that is slow as a whole does not receive everything twice.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from anabranch.s3stream.background import Pace, TimedPace
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.store.interface import PartReceipt

OBSERVED_MIN = 8
"""Number of parts observed before one can be considered slow."""
OBSERVED_MAX = 64
LOOK_S_MIN = 0.02
"""Least time between two looks at a part that may be slow."""
HEDGES_PER_PART = 0.1
HEDGES_MAX = 4.0
"""Limit of unused hedges that accumulate."""


class SendPart(Protocol):
    """One attempt at sending a part."""

    def __call__(self, *, pace: Pace | None) -> Awaitable[PartReceipt]:
        """Send the part at `pace`."""
        ...


class HedgeCounts(Protocol):
    """Counters that hedging increments: those of the engine, or of a test."""

    hedged_parts: int
    """Parts that were sent twice."""
    hedges_won: int
    """Parts whose second attempt ended first."""


class PartHedge:
    """Durations of one store's parts, and the attempts at them. Shared by all uploads to the store."""

    def __init__(self, *, ratio: float, delay_ms_min: int, counts: HedgeCounts, clock: Callable[[], float]) -> None:
        """Hedge after `ratio` times the 90th percentile, but not before `delay_ms_min`. A ratio of 0 disables it."""
        self._ratio = ratio
        self._delay_s_min = delay_ms_min / 1000
        self._counts = counts
        self._clock = clock
        self._seconds_per_byte: deque[float] = deque(maxlen=OBSERVED_MAX)
        self._budget = 1.0

    def delay_s(self, size_bytes: int) -> float | None:
        """Return the time after which a part of this size is sent again; None: never."""
        times = self._seconds_per_byte
        if self._ratio <= 0 or len(times) < OBSERVED_MIN:
            return None
        slow = sorted(times)[len(times) * 9 // 10]
        return max(self._delay_s_min, self._ratio * slow * size_bytes)

    async def put(self, send: SendPart, size_bytes: int, pace: Pace | None = None) -> PartReceipt:
        """Send a part; `send` may be called twice. Raises the error of the first attempt if none succeeds.

        The time that a part waits for its pace does not count as slow.
        """
        delay_s = self.delay_s(size_bytes)
        timed = _measured(pace)
        if delay_s is None:
            return await self._timed(send, size_bytes, timed)
        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(self._attempt(send, size_bytes, timed))]
            await self._wait_until_slow(attempts[0], delay_s, timed)
            if not attempts[0].done() and self._budget >= 1:
                self._budget -= 1
                self._counts.hedged_parts += 1
                attempts.append(group.create_task(self._attempt(send, size_bytes, _measured(pace))))
            first = await _first_success(attempts)
            outcome = first.result()
            self._counts.hedges_won += first is not attempts[0]
            for attempt in attempts:
                attempt.cancel()
        if isinstance(outcome, StorageError):
            raise outcome
        return outcome

    async def _wait_until_slow(self, attempt: "asyncio.Task[object]", delay_s: float, pace: TimedPace | None) -> None:
        """Return when the attempt is done, or has taken `delay_s` without the waits for its pace."""
        began = self._clock()
        left_s = delay_s
        while not attempt.done() and left_s > 0:
            # What is left gets ever smaller while the attempt waits for its pace: do not look all the time.
            await asyncio.wait([attempt], timeout=max(left_s, LOOK_S_MIN))
            left_s = delay_s - (self._clock() - began) + (0.0 if pace is None else pace.waited_s)

    async def _attempt(self, send: SendPart, size_bytes: int, pace: TimedPace | None) -> "PartReceipt | StorageError":
        """Return an error as a value, so that it does not cancel the other attempt."""
        try:
            return await self._timed(send, size_bytes, pace)
        except StorageError as error:
            return error

    async def _timed(self, send: SendPart, size_bytes: int, pace: TimedPace | None) -> PartReceipt:
        began = self._clock()
        waited_s = 0.0 if pace is None else pace.waited_s
        receipt = await send(pace=pace)
        if pace is not None:
            began += pace.waited_s - waited_s
        self._seconds_per_byte.append((self._clock() - began) / max(1, size_bytes))
        self._budget = min(HEDGES_MAX, self._budget + HEDGES_PER_PART)
        return receipt


def _measured(pace: Pace | None) -> TimedPace | None:
    """Return a pace of one attempt's own: its waits are no other attempt's."""
    return None if pace is None else TimedPace(pace)


async def _first_success(
    attempts: "list[asyncio.Task[PartReceipt | StorageError]]",
) -> "asyncio.Task[PartReceipt | StorageError]":
    """Return the attempt that succeeded first, or the first attempt if none did."""
    waiting = set(attempts)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if not isinstance(attempt.result(), StorageError):
                return attempt
    return attempts[0]
