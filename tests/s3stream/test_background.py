"""Background work takes turns, after the log, and gives way to work in a hurry."""

import asyncio

import pytest

from anabranch.s3stream.background import PIECE_BYTES, REST_S_MAX, YIELD_S, YIELDS_MAX, BackgroundIo, TimedPace
from anabranch.wal.interface import Durable, WalFailed
from tests.support.virtual_time import run_virtual


async def write(io: BackgroundIo, seconds: float, spans: list[tuple[float, float]]) -> None:
    """Write a piece that takes a while, and note its begin and end."""
    loop = asyncio.get_running_loop()
    async with io.piece(PIECE_BYTES):
        began = loop.time()
        await asyncio.sleep(seconds)
        spans.append((began, loop.time()))


def test_pieces_take_turns_and_leave_the_disk_alone_for_as_long_as_they_took() -> None:
    async def main() -> None:
        io = BackgroundIo(lambda: None)
        spans: list[tuple[float, float]] = []
        await asyncio.gather(*(write(io, seconds, spans) for seconds in (0.01, 0.02, 1.0, 0.01)))
        # Each begins after the one before it and a pause as long, but a short one after a slow piece.
        expected = [(0, 0.01), (0.02, 0.04), (0.06, 1.06), (1.06 + REST_S_MAX, 1.07 + REST_S_MAX)]
        assert [pytest.approx(span) for span in expected] == spans

    run_virtual(main())


@pytest.mark.parametrize("error", [None, WalFailed("gone")])
def test_a_piece_begins_when_the_log_has_written(error: WalFailed | None) -> None:
    async def main() -> None:
        log_write = Durable()
        io = BackgroundIo(lambda: log_write)
        spans: list[tuple[float, float]] = []
        task = asyncio.create_task(write(io, 0.01, spans))
        await asyncio.sleep(1)
        assert not spans
        log_write.complete(error)
        await task
        assert spans == [pytest.approx((1, 1.01))]

    run_virtual(main())


def test_a_hurried_piece_waits_for_nothing_and_others_wait_for_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        log_write = Durable()
        io = BackgroundIo(lambda: log_write)
        spans: list[tuple[float, float]] = []
        async with io.hurried_piece():
            assert loop.time() == 0
            patient = asyncio.create_task(write(io, 0.01, spans))
            log_write.complete()
            await asyncio.sleep(0.015)
            assert not spans
        await patient
        assert spans[0][0] == pytest.approx(2 * YIELD_S)
        async with io.hurried_piece():
            # It is not starved by one that never ends.
            await write(io, 0.01, spans)
        assert spans[1][0] == pytest.approx(spans[0][1] + YIELDS_MAX * YIELD_S, abs=REST_S_MAX)

    run_virtual(main())


def test_an_error_inside_a_piece_ends_its_turn() -> None:
    async def main() -> None:
        io = BackgroundIo(lambda: None)
        with pytest.raises(OSError, match="full"):
            async with io.piece(1):
                raise OSError("full")
        with pytest.raises(OSError, match="full"):
            async with io.hurried_piece():
                raise OSError("full")
        spans: list[tuple[float, float]] = []
        await write(io, 0.01, spans)
        assert spans == [pytest.approx((0, 0.01))]

    run_virtual(main())


def test_a_timed_pace_counts_the_waits_and_not_the_writes() -> None:
    async def main() -> None:
        log_write = Durable()
        timed = TimedPace(BackgroundIo(lambda: log_write))
        assert timed.piece_bytes == PIECE_BYTES

        async def send() -> None:
            async with timed.piece(1):
                await asyncio.sleep(5)

        task = asyncio.create_task(send())
        await asyncio.sleep(2)
        assert timed.waited_s == pytest.approx(2)
        log_write.complete()
        await task
        assert timed.waited_s == pytest.approx(2)

    run_virtual(main())
