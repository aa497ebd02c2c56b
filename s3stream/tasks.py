"""Runs and ends concurrent tasks so that a cancellation of their owner is never lost.

asyncio.TaskGroup is not enough for that. It raises the errors of its tasks even if its owner was cancelled meanwhile,
and the cancellation is lost: an owner that retries after the error runs forever, and a shutdown waits as long. Up to
Python 3.12, moreover, an owner that waits for its tasks when one fails stays marked as being cancelled, so that a
timeout around it ends as a cancellation. Where errors are bugs, and end everything, a task group is good enough.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from typing import Final, TypeVar

import structlog

T = TypeVar("T")

RECANCEL_AFTER_S = 10.0
"""Time after which a task that has not ended is cancelled again; longer than any clean-up takes."""

STEPS_PER_TURN: Final = 1000
"""Steps of some microseconds each after which other tasks get their turn."""

log = structlog.get_logger(__name__)


class Turns:
    """Divides work of many short steps, so that other tasks get their turns: a node that recovers a log must beat."""

    def __init__(self) -> None:
        self._left = STEPS_PER_TURN

    async def pieces(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """Yield the items in pieces, and let other tasks run when the steps of all calls make up a turn."""
        at = 0
        while at < len(items):
            piece = items[at : at + self._left]
            yield piece
            at += len(piece)
            self._left -= len(piece)
            if not self._left:
                self._left = STEPS_PER_TURN
                await asyncio.sleep(0)


async def side_by_side(works: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run all concurrently and return their results in order. No task is left running when this returns or raises.

    The first error cancels the others and is raised. A cancellation of the caller cancels them all and is raised,
    whatever they raise meanwhile.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in list(works)]  # when `works` fails half way, nothing has begun
    left = set(tasks)
    outcome: BaseException | None = None
    while left:
        try:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError as cancelled:
            outcome = cancelled
        else:
            failed = [error for task in done if not task.cancelled() and (error := task.exception()) is not None]
            if outcome is None and failed:
                outcome = failed[0]
        if outcome is not None:
            for task in left:
                task.cancel()
    try:
        if outcome is not None:
            raise outcome
    finally:
        outcome = None  # no cycle of error, traceback and this frame
    return [task.result() for task in tasks]


async def end_tasks(tasks: Iterable["asyncio.Task[object]"], *, recancel_after_s: float = RECANCEL_AFTER_S) -> None:
    """Cancel tasks and wait until they have ended."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=recancel_after_s)
        for task in left:
            log.warning("a cancelled task has not ended; cancelling it again", task=repr(task.get_coro()))
