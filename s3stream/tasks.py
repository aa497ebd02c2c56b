"""Tasks side by side, and their ends, so that a cancellation is never taken for something else.

Why not Python's own task group: it raises the errors of its tasks even where its owner was cancelled meanwhile, and the
cancellation is forgotten; whoever takes such an error for one that heals goes on for ever, and a stop waits as long.
Up to Python 3.12, moreover, an owner that waits for its tasks when one fails counts as being cancelled ever after, so
that a time-out around it ends as a cancellation. Where errors are bugs, and end everything, a task group is as good.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

import structlog

T = TypeVar("T")

AGAIN_S = 10.0
"""After so long a task that has not ended is cancelled once more; longer than any clean-up takes."""

log = structlog.get_logger(__name__)


async def side_by_side(works: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run all, and return their results in order. None is left running when this ends, well or badly.

    The first error ends the others and is raised; a cancellation of the caller ends them all and is raised, whatever
    they raise meanwhile.
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


async def end_tasks(tasks: Iterable["asyncio.Task[object]"], *, again_s: float = AGAIN_S) -> None:
    """Cancel tasks and wait until they have ended."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)
        for task in left:
            log.warning("a cancelled task goes on: cancelled again", task=repr(task.get_coro()))
