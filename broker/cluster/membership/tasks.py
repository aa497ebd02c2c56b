"""Background tasks that end together."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from anabranch.s3stream.tasks import end_tasks


class NodeTasks:
    """The background tasks of a node, in one task group. Leaving the context cancels them."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.end()
        # The group must not see the body's error: it would wrap it in an exception group.
        await self._group.__aexit__(None, None, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await end_tasks(self._tasks)

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for them."""
        for task in list(self._tasks):
            task.cancel()
