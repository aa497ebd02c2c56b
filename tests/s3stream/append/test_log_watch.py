"""A log that does not acknowledge in time: when appends are refused, and when they are taken again."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.s3stream.append.admission import Admission
from anabranch.s3stream.append.log_cache import LogCache
from anabranch.s3stream.append.log_watch import LogWatch
from anabranch.s3stream.errors import LogStalled
from anabranch.s3stream.stats import StorageStats
from tests.support.memory_wal import MemoryWal
from tests.support.virtual_time import run_virtual

STALL_S = 10.0


class Watched:
    """A log that a test appends to and acknowledges."""

    def __init__(self) -> None:
        self.stats = StorageStats()
        self.admission = Admission(MemoryWal(1000), LogCache(1000, self.stats), cache_bytes_max=100, wal_bytes_max=500)
        self.watch = LogWatch(self.admission, self.stats, stall_s=STALL_S)

    async def run(self, seconds: int, *, appends: int, acks_after: int) -> int | None:
        """Append so often a second, ack each after some seconds; return the second in which appends were refused."""
        for second in range(seconds):
            for _ in range(appends):
                self.watch.appended()
            await asyncio.sleep(1)
            if self.admission.is_stalled:
                return second
            if second >= acks_after:
                for _ in range(appends):
                    self.watch.completed()
        return None


def virtual(body: Coroutine[Any, Any, None]) -> None:
    run_virtual(body)


def test_appends_are_refused_when_one_waits_for_too_long_and_taken_when_none_waits() -> None:
    async def body() -> None:
        log = Watched()
        with capture_logs() as lines:
            for _ in range(3):
                log.watch.appended()
            await asyncio.sleep(STALL_S)
            assert log.admission.is_writable
            await asyncio.sleep(STALL_S / 2)
            assert list(log.admission.obstacles()) == [
                "the log has not acknowledged an append for 10 s: appends are refused until it has caught up"
            ]
            await asyncio.sleep(100)
            for _ in range(2):
                log.watch.completed()
                assert not log.admission.is_writable, "what was appended before the stall is not durable"
            log.watch.completed()
            assert log.admission.is_writable
        assert [line["log_level"] for line in lines] == ["warning", "info"], "a line for its begin, one for its end"
        assert lines[1]["refused_s"] == pytest.approx(100, abs=STALL_S)
        assert log.stats.log_stalls == 1

    virtual(body())


@pytest.mark.parametrize(("acks_after", "refused"), [(0, False), (8, False), (14, True)])
def test_a_slow_log_counts_by_how_long_each_append_waits(acks_after: int, *, refused: bool) -> None:
    """A log that acknowledges all the time, each append after 15 s, is as bad for clients as one that stands still."""

    async def body() -> None:
        found = await Watched().run(60, appends=3, acks_after=acks_after)
        assert (found is not None) is refused

    virtual(body())


def test_a_process_that_was_stopped_hears_of_acks_before_it_refuses_anything() -> None:
    async def body() -> None:
        log = Watched()
        log.watch.appended()
        asyncio.get_running_loop().call_later(STALL_S + 0.1, log.watch.completed)
        await asyncio.sleep(100)
        assert log.stats.log_stalls == 0

    virtual(body())


def test_callers_that_wait_for_room_are_woken_by_a_stall() -> None:
    async def body() -> None:
        log = Watched()
        log.admission.wal_full()
        waiter = asyncio.create_task(log.admission.wait_change())
        log.watch.appended()
        async with asyncio.timeout(2 * STALL_S):
            await waiter
        with pytest.raises(LogStalled):
            raise log.admission.stalled()

    virtual(body())
