"""An upload is spread over most of the time until the next seal, and hurries when it must."""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final

import pytest

from anabranch.s3stream.background import HURRIED_PIECE_BYTES, PIECE_BYTES, BackgroundIo
from anabranch.s3stream.upload.pace import BEHIND_BYTES, BYTES_PER_SECOND_MIN, PACE_SHARE, TURN_S_MAX, UploadPace
from tests.support.virtual_time import run_virtual

MIB: Final = 1024 * 1024
BLOCK_BYTES: Final = 320 * MIB
FILL_S: Final = 32.0


def pace(level: Callable[[], float], *, size_bytes: int = BLOCK_BYTES, fill_s: float = FILL_S) -> UploadPace:
    return UploadPace(BackgroundIo(lambda: None), size_bytes=size_bytes, fill_s=fill_s, level=level)


async def upload(made: UploadPace, size_bytes: int = BLOCK_BYTES) -> list[tuple[float, int]]:
    """Write pieces that take no time; return the time and the bytes so far after each."""
    loop = asyncio.get_running_loop()
    began, sent, progress = loop.time(), 0, []
    while sent < size_bytes:
        piece_bytes = made.piece_bytes
        async with made.piece(piece_bytes):
            sent += piece_bytes
            progress.append((loop.time() - began, sent))
    return progress


def bytes_at(progress: list[tuple[float, int]], seconds: float) -> int:
    return max((sent for at, sent in progress if at <= seconds), default=0)


def test_a_block_is_written_over_most_of_the_time_it_took_to_fill() -> None:
    async def main() -> None:
        progress = await upload(pace(lambda: 0.0))
        ends_s = FILL_S * PACE_SHARE
        assert progress[-1][0] == pytest.approx(ends_s, rel=0.02)
        for share in (0.25, 0.5, 0.75):
            assert bytes_at(progress, share * ends_s) == pytest.approx(share * BLOCK_BYTES, rel=0.02)

    run_virtual(main())


def test_appends_that_come_faster_speed_it_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        # The next block fills in a quarter of the time of this one.
        progress = await upload(pace(lambda: loop.time() / (FILL_S / 4)))
        assert progress[-1][0] == pytest.approx(FILL_S / 4 * PACE_SHARE, rel=0.05)

    run_virtual(main())


def test_an_upload_hurries_when_the_room_is_nearly_taken_or_somebody_waits() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        made = pace(lambda: inf if loop.time() >= 3 else 0.0)
        assert made.piece_bytes == PIECE_BYTES
        progress = await upload(made)
        assert bytes_at(progress, 2.9) == pytest.approx(BLOCK_BYTES * 2.9 / (FILL_S * PACE_SHARE), rel=0.05)
        assert progress[-1][0] == pytest.approx(3, abs=0.1)
        assert made.piece_bytes == HURRIED_PIECE_BYTES

    run_virtual(main())


def test_an_upload_that_fell_behind_hurries_until_it_has_caught_up() -> None:
    async def main() -> None:
        made = pace(lambda: 0.0)
        await asyncio.sleep(FILL_S / 2)  # the store was away
        progress = await upload(made)
        due = BLOCK_BYTES / 2 / PACE_SHARE
        assert bytes_at(progress, 0) >= due - BEHIND_BYTES - HURRIED_PIECE_BYTES
        assert progress[-1][0] == pytest.approx(FILL_S * PACE_SHARE - FILL_S / 2, rel=0.05)

    run_virtual(main())


def test_a_small_block_does_not_take_long() -> None:
    async def main() -> None:
        progress = await upload(pace(lambda: 0.0, size_bytes=16 * MIB, fill_s=60), 16 * MIB)
        assert progress[-1][0] == pytest.approx(16 * MIB / BYTES_PER_SECOND_MIN, rel=0.05)
        progress = await upload(pace(lambda: 0.0, size_bytes=1000, fill_s=60), 1000)
        assert progress[-1][0] == pytest.approx(0, abs=0.001)

    run_virtual(main())


def test_the_objects_of_a_block_share_its_pace() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        made = pace(lambda: 0.0)
        await asyncio.gather(*(upload(made, BLOCK_BYTES // 8) for _ in range(8)))
        assert loop.time() == pytest.approx(FILL_S * PACE_SHARE, rel=0.02)

    run_virtual(main())


def test_a_piece_that_waits_for_a_turn_hurries_when_it_must() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        background = BackgroundIo(lambda: None)
        hurry = asyncio.Event()
        made = UploadPace(background, size_bytes=BLOCK_BYTES, fill_s=3600, level=lambda: inf if hurry.is_set() else 0.0)
        async with background.piece(0):  # a call that hangs
            tasks = [asyncio.create_task(upload(made, PIECE_BYTES)) for _ in range(8)]
            await asyncio.sleep(10)
            assert not any(task.done() for task in tasks)
            hurry.set()
            async with asyncio.timeout(2):
                await asyncio.gather(*tasks)
            assert loop.time() <= 10 + TURN_S_MAX + 0.1
        # Nobody holds the turn for ever.
        async with asyncio.timeout(1), background.piece(0):
            pass

    run_virtual(main())
