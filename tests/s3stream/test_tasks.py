"""A cancellation ends exactly its target, and an error is raised unchanged."""

import asyncio
from collections.abc import Coroutine, Iterator

import pytest

from anabranch.s3stream.tasks import end_tasks, side_by_side


async def test_results_come_in_the_order_of_the_works() -> None:
    later = asyncio.Event()

    async def first() -> str:
        await later.wait()
        return "first"

    async def second() -> str:
        later.set()
        return "second"

    assert await side_by_side([first(), second()]) == ["first", "second"]
    assert await side_by_side([]) == []


async def test_nothing_begins_when_not_all_can() -> None:
    begun = []

    async def begin() -> None:
        begun.append(True)

    first = begin()

    def works() -> Iterator[Coroutine[object, object, None]]:
        yield first
        raise ValueError("no second")

    with pytest.raises(ValueError, match="no second"):
        await side_by_side(works())
    await asyncio.sleep(0)
    first.close()
    assert not begun


async def test_the_first_error_ends_the_others_and_a_time_out_around_it_is_still_one() -> None:
    """Python's own group leaves its owner counted as cancelled."""
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("really")

    async def fail_then_wait() -> None:
        async with asyncio.timeout(0.05):
            with pytest.raises(OSError, match="really"):
                await side_by_side([wait(), fail(), wait()])
            assert ended == [True, True]
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await fail_then_wait()


async def test_a_cancelled_owner_is_cancelled_whatever_its_tasks_raise() -> None:
    """Python's own TaskGroup would raise the error instead, and the owner would retry."""
    started = asyncio.Event()

    async def fail_when_cancelled() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("while it was cancelled")

    owner = asyncio.create_task(side_by_side([fail_when_cancelled()]))
    await started.wait()
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner


async def test_a_cancellation_reaches_tasks_that_an_error_is_ending_already() -> None:
    cancelled = asyncio.Event()

    async def clean_up_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await asyncio.Event().wait()

    async def fail() -> None:
        await asyncio.sleep(0)
        raise OSError("really")

    owner = asyncio.create_task(side_by_side([clean_up_for_ever(), fail()]))
    await cancelled.wait()
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner


async def test_a_task_that_takes_a_cancellation_for_something_else_is_told_again() -> None:
    started = asyncio.Event()
    ended = []

    async def stubborn() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    task = asyncio.create_task(stubborn())
    await started.wait()
    await end_tasks([task], recancel_after_s=0.01)
    assert ended
    assert task.cancelled()
    await end_tasks([])
