"""An event loop on a virtual clock, which runs several simulated processes: each can be paused, resumed and killed.

Nothing waits: the clock jumps to the next timer. Work for threads runs on the loop, at a moment drawn from the seed. A
callback belongs to the process in whose context it was scheduled. While the process is paused its callbacks wait, as
after SIGSTOP; once it is dead they never run, as after SIGKILL: no `finally` block and no `except` sees the end.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from itertools import count
from random import Random
from typing import Any
from weakref import WeakSet

CLOCK_RESOLUTION_S = 1e-9
WORK_S = (0.00005, 0.002)
"""Shortest and longest delay of a call on another thread, before and after it takes effect."""
CALLBACKS_MAX = 3_000_000
"""Callbacks at one moment of the clock, or without end: the run has a live-lock."""


class Stuck(AssertionError):
    """The run cannot end: nothing is left to run, or time does not pass."""


class InlineExecutor:
    """Stands for a `ThreadPoolExecutor`: no thread runs, and so nothing depends on how threads are scheduled."""

    def __init__(self, *_arguments: object, **_options: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Run a call at once; nobody asks for its result."""
        call(*arguments)

    def shutdown(self, wait: bool = True, **_options: object) -> None:
        pass


class Process:
    """One life of a simulated process: what it scheduled runs only while it is alive and not paused."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.dead = False
        self.paused = False
        self.held: list[asyncio.Handle] = []
        """Callbacks that came due during the pause, in order."""
        self.clock_ahead_ms = 0
        """Error of its wall clock."""
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.ended: list[Callable[[], None]] = []
        """Called when it is killed: what an operating system does with its connections and locks."""

    def __repr__(self) -> str:
        return self.name


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process that runs. None: the world outside of all nodes."""


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: the order of a set of tasks follows from the seed, not from addresses."""

    def __init__(self, coro: Any, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """A future with such a hash."""

    def __init__(self, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(**options)

    def __hash__(self) -> int:
        return self._number


def _admit(handle: asyncio.Handle) -> bool:
    """Return whether a callback may run now; keep it if its process is paused."""
    process: Process | None = handle._context.get(PROCESS)  # type: ignore[attr-defined]
    if process is None:
        return True
    if process.dead:
        return False
    if process.paused:
        process.held.append(handle)
        return False
    return True


class SimLoop(asyncio.BaseEventLoop):
    """The loop. `random` decides how long work on other threads takes."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random
        self._now_s = 0.0
        self._ready: deque[asyncio.Handle]
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """A heap by time, and by number among equals."""
        self._timer_numbers = count()
        self._busy_until: dict[object, float] = {}
        self.servers: dict[Any, tuple[Callable[[], asyncio.BaseProtocol], Context]] = {}
        """Factories of the listening sockets' protocols, and the contexts of their processes."""
        self.turns = 0
        self._numbers = 0
        self.graveyard: list[object] = []
        """Tasks of dead processes, kept so that the garbage collector does not run their `finally` blocks."""

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        """Run the callbacks that are ready. If there is none, the clock jumps to the next timer first."""
        self.turns += 1
        if self.turns > CALLBACKS_MAX:
            raise Stuck(f"more than {CALLBACKS_MAX} turns of the loop")
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck("nothing is left to run")
            self._now_s = max(self._now_s, timers[0][0])
        due_s = self._now_s + CLOCK_RESOLUTION_S
        while timers and timers[0][0] < due_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled and _admit(handle):
                handle._run()

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._timer_numbers), timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> Any:
        process = PROCESS.get() if context is None else context.get(PROCESS)
        self._numbers += 1
        task = _Task(coro, self._numbers, loop=self, name=str(name or f"task-{self._numbers}"), context=context)
        if process is not None:
            process.tasks.add(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        self._numbers += 1
        return _Future(self._numbers, loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run `func` here, later: calls of one executor one after the other, those of the default one in any order."""
        future = self.create_future()
        start_s = self.time()
        if executor is not None:
            start_s = max(start_s, self._busy_until.get(executor, 0.0))
        runs_s = start_s + self._random.uniform(*WORK_S)
        ends_s = runs_s + self._random.uniform(*WORK_S)
        if executor is not None:
            self._busy_until[executor] = ends_s

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except StopIteration as error:
                self.call_at(ends_s, _fail, future, RuntimeError(str(error)))
            except Exception as error:  # noqa: BLE001  # goes to the caller
                self.call_at(ends_s, _fail, future, error)
            else:
                self.call_at(ends_s, _succeed, future, result)

        self.call_at(runs_s, work)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass

    async def create_server(self, protocol_factory: Any, *args: Any, sock: Any = None, **kwargs: Any) -> Any:
        """Listen on a `network.Port`."""
        return sock.listen(protocol_factory)

    # processes

    def resume(self, process: Process) -> None:
        """Let a paused process go on, with everything that came due meanwhile."""
        process.paused = False
        held, process.held = process.held, []
        self._ready.extend(handle for handle in held if not handle._cancelled)

    def kill(self, process: Process) -> None:
        """End a process: nothing of it runs any more."""
        process.dead = True
        process.held.clear()
        self.graveyard += process.tasks
        ended, process.ended = process.ended, []
        for end in ended:
            end()


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
