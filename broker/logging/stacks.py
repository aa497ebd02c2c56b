"""What a node is doing, on SIGUSR1: the stacks of its threads, and of what waits in its event loop.

The threads' stacks come from inside the signal handler, so they come, too, when the loop is stuck in a call; then what
is missing is the rest, which the loop would have to say. Both go to standard error. The same is said when a stop does
not end in time, which then ends by force: what was acknowledged is in the log.
"""

import asyncio
import faulthandler
import os
import signal
import stat
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType, CoroutineType, FrameType, GeneratorType

END = "end of stacks"
STACKS_MAX = 200
"""Different stacks told of; those that many tasks share come first."""
FRAMES_MAX = 50


def install(loop: asyncio.AbstractEventLoop, fd: int, say: Callable[[str], None]) -> int:
    """Answer SIGUSR1, and tell of fatal signals, on a descriptor that is open for good.

    Returns it, or one for the same pipe that never waits for its reader.
    """
    dump = _never_waiting(fd)
    faulthandler.enable(dump)
    loop.add_signal_handler(signal.SIGUSR1, lambda: say(describe_tasks(asyncio.all_tasks(loop))))
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True, chain=True)
    return dump


def limit_stop(seconds: float, dump: int) -> None:
    """Unless the process has ended by then, say where it hangs and end it."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=dump)


def describe_tasks(tasks: Iterable["asyncio.Task[object]"]) -> str:
    """Where tasks wait, outermost call first; those that wait at one place are told of once, with their number."""
    counts = Counter("\n".join(_frames(task.get_coro())) for task in tasks)
    lines = []
    for stack, count in counts.most_common(STACKS_MAX):
        lines += [f"{count} task(s):", stack]
    if len(counts) > STACKS_MAX:
        lines.append(f"and {len(counts) - STACKS_MAX} more places")
    return "\n".join([*lines, END])


def _frames(work: object) -> list[str]:
    """Follow what awaits what, down to a future, or to an async generator, which does not tell what it waits for."""
    frames: list[str] = []
    while work is not None and len(frames) < FRAMES_MAX:
        code: CodeType
        frame: FrameType | None
        inner: object
        if isinstance(work, CoroutineType):
            code, frame, inner = work.cr_code, work.cr_frame, work.cr_await
        elif isinstance(work, GeneratorType):
            code, frame, inner = work.gi_code, work.gi_frame, work.gi_yieldfrom
        else:
            frames.append(f"  on {type(work).__name__}")
            break
        line = code.co_firstlineno if frame is None else frame.f_lineno
        frames.append(f'  File "{code.co_filename}", line {line}, in {code.co_qualname}')
        work = inner
    return frames


def _never_waiting(fd: int) -> int:
    """The same pipe or terminal, opened anew: what is written to it is dropped when it is full."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return fd
