"""The process that makes columns, asked by a node's event loop: one request at a time, in a thread that waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from anabranch.tables.process import ColumnProcess

T = TypeVar("T")


class Columns:
    """Starts the process for the first request. `close` ends it, and the request under way with it."""

    def __init__(self, make: "Callable[[], ColumnProcess]") -> None:
        """`make` raises MissingExtra."""
        self._make = make
        self._process: ColumnProcess | None = None
        self._thread: ThreadPoolExecutor | None = None

    @property
    def cpu_s(self) -> float:
        """CPU time of the process and those before it."""
        return 0.0 if self._process is None else self._process.cpu_s

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return None if self._process is None else self._process.process_id

    async def ask(self, request: "Callable[[ColumnProcess], T]") -> T:
        """Make a request, after those before it. Raises ColumnsError, MissingExtra."""
        if self._process is None or self._thread is None:
            self._process, self._thread = self._make(), ThreadPoolExecutor(1, "tables")
        process = self._process
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: request(process))

    async def close(self) -> None:
        """End the process, and start no other one."""
        process, thread = self._process, self._thread
        if process is not None:
            await asyncio.to_thread(process.close)
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)
