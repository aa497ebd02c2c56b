"""Threads that perform device requests: the loop submits through a queue, and completions wake it through a descriptor.

The loop handles several completions per wake-up and never waits for the disk. It is the engine for kernels and
containers without io_uring, and for writes through the page cache (docs/adr/0007; docs/adr/0002: why not native AIO).
"""

from asyncio import AbstractEventLoop, get_running_loop, to_thread
from collections import deque
from queue import SimpleQueue
from threading import Thread
from typing import Final

from anabranch.platform import Wakeup, flush
from anabranch.wal.block import aligned_buffer
from anabranch.wal.device_raw import read_all, write_segments
from anabranch.wal.format import RING_POSITION
from anabranch.wal.requests import IoKind, IoRequest

_JOIN_S: Final = 1.0


class ThreadEngine:
    """Performs requests on `fd` in `threads` threads, which start with the first request."""

    def __init__(self, fd: int, threads: int, *, flushes: bool = False) -> None:
        """`flushes`: flush after each write, for a descriptor whose writes return before they are durable."""
        self._fd: Final = fd
        self._count: Final = threads
        self._flushes: Final = flushes
        self._queue: SimpleQueue[IoRequest | None] = SimpleQueue()
        self._completed: deque[IoRequest] = deque()
        self._signalled = False
        self._wakeup: Wakeup | None = None
        self._threads: list[Thread] = []
        self._loop: AbstractEventLoop | None = None

    def submit(self, request: IoRequest) -> None:
        """Hand a request to the threads."""
        if self._loop is None:
            self._start()
        self._queue.put(request)

    def _start(self) -> None:
        self._loop = get_running_loop()
        self._wakeup = wakeup = Wakeup()
        self._loop.add_reader(wakeup.fd, self._on_completed, wakeup)
        # Daemons: a thread that hangs on a dead device must not keep the process alive.
        for number in range(self._count):
            thread = Thread(target=self._work, args=[wakeup], name=f"wal-writer-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _on_completed(self, wakeup: Wakeup) -> None:
        wakeup.clear()
        # Cleared before the queue is drained: a request completed from here on signals again.
        self._signalled = False
        completed = self._completed
        while completed:
            request = completed.popleft()
            request.done(request)

    def _work(self, wakeup: Wakeup) -> None:
        page = aligned_buffer(RING_POSITION)
        while (request := self._queue.get()) is not None:
            try:
                self._perform(request, page)
            except OSError as error:
                request.error = error
            self._completed.append(request)
            if not self._signalled:
                self._signalled = True
                wakeup.set()

    def _perform(self, request: IoRequest, page: memoryview) -> None:
        if request.kind is IoKind.WRITE:
            write_segments(self._fd, request.segments)
            if self._flushes:
                flush(self._fd)
            if request.check_header:
                read_all(self._fd, 0, page)
                request.header = bytes(page)
        elif request.kind is IoKind.READ:
            for position, data in request.segments:
                read_all(self._fd, position, data)
        else:
            flush(self._fd)

    async def close(self) -> bool:
        """Stop the threads; return whether all have ended. A thread that hangs on the device is abandoned."""
        for _ in self._threads:
            self._queue.put(None)
        await to_thread(self._join)
        if self._loop is not None and self._wakeup is not None:
            self._loop.remove_reader(self._wakeup.fd)
        if any(thread.is_alive() for thread in self._threads):
            return False
        if self._wakeup is not None:
            self._wakeup.close()
        return True

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=_JOIN_S)
