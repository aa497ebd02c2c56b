"""The rate limit of background runs, and their yielding to foreground work."""

import asyncio

import pytest

from anabranch.compaction.settings import CompactionSettings
from anabranch.compaction.throttle import Throttle, run_rate, yield_to_uploads
from tests.support.virtual_time import run_virtual

SETTINGS = CompactionSettings(
    period_ms=1_000_000, bytes_per_second_min=1_000, pressure_pause_ms=100, pressure_pause_ms_max=1_000
)


def test_the_rate_follows_from_the_backlog() -> None:
    assert run_rate(0, SETTINGS) == 1_000
    assert run_rate(400_000, SETTINGS) == 1_000
    assert run_rate(8_000_000, SETTINGS) == 20_000


def test_spending_waits_for_the_rate() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def main() -> None:
        await asyncio.sleep(1)  # the clock is past the first burst
        throttle = Throttle(1_000, sleep)
        await throttle.spend(50)
        await throttle.spend(40)
        assert waits == []
        await throttle.spend(2_010)
        assert waits == [pytest.approx(2)]
        unlimited = Throttle(0, sleep)
        assert (throttle.is_limited, unlimited.is_limited) == (True, False)
        await unlimited.spend(1 << 40)
        assert len(waits) == 1

    run_virtual(main())


def test_a_busy_event_loop_slows_a_run_down_and_never_stops_it() -> None:
    async def spend_for(late: float) -> float:
        """Seconds for ten times a second's worth, when each wait ends so much too late."""
        loop = asyncio.get_running_loop()
        throttle = Throttle(1_000, lambda seconds: asyncio.sleep(seconds + late))
        for _ in range(10):
            await throttle.spend(1_000)
        return loop.time()

    assert 9.5 < run_virtual(spend_for(0.0)) < 10.5
    assert 9.5 < run_virtual(spend_for(0.005)) < 10.5
    assert run_virtual(spend_for(0.1)) > 11.5
    assert run_virtual(spend_for(60.0)) < 10 * (1 + 60 + 0.5) + 1


async def test_a_run_waits_for_uploads_but_not_for_ever() -> None:
    waits: list[float] = []
    pressure = [True, True, False]

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    assert await yield_to_uploads(lambda: pressure.pop(0), SETTINGS, sleep) == 2
    assert waits == [0.1, 0.1]
    assert await yield_to_uploads(lambda: True, SETTINGS, sleep) == 10
    assert await yield_to_uploads(lambda: False, SETTINGS, sleep) == 0
