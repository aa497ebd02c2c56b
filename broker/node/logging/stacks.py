"""Stack dumps: SIGUSR1 writes the stacks of all threads and tasks to standard error.

The signal handler itself writes the stack of the main thread, so it appears even when the event loop is stuck in a
call. The event loop then writes the stacks of all threads and tasks. The handler must not read the frames of other
threads: they keep running, and the process could crash. A shutdown that overruns its limit dumps the threads' stacks
and then exits by force, which is safe: acknowledged records are in the log.
"""

import asyncio
import faulthandler
import os
import signal
import stat
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import CodeType, CoroutineType, FrameType, GeneratorType

END = "end of stacks"
STACKS_MAX = 200
"""Distinct stacks written; those that most tasks share come first."""
FRAMES_MAX = 50
ALARM_GRACE_S = 1.0
"""Time of a dump before the exit by force; the process is then killed by SIGALRM."""


def install(loop: asyncio.AbstractEventLoop, fd: int, write_line: Callable[[str], None]) -> int:
    """Dump stacks on SIGUSR1 and on fatal signals, to a descriptor that must stay open.

    Returns the descriptor of the signal handlers' dumps: `fd`, or a non-blocking one for the same pipe or terminal.
    """
    dump = _nonblocking(fd)
    faulthandler.enable(dump)
    loop.add_signal_handler(
        signal.SIGUSR1, lambda: write_line(f"{describe_threads()}\n{describe_tasks(asyncio.all_tasks(loop))}")
    )
    faulthandler.register(signal.SIGUSR1, dump, all_threads=False, chain=True)
    return dump


def exit_after(seconds: float, dump: int) -> None:
    """Dump all threads and exit by force if the process still runs after `seconds`."""
    # The dump needs a thread, and without memory none starts: a second later, the kernel alone ends the process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + ALARM_GRACE_S)
    with suppress(RuntimeError):
        faulthandler.dump_traceback_later(seconds, exit=True, file=dump)


def describe_threads() -> str:
    """Return the stacks of all threads, outermost call first."""
    lines = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - documented, for this use
        lines.append(f"Thread 0x{ident:016x} (most recent call last):")
        lines += [_frame_line(each.f_code, line) for each, line in traceback.walk_stack(frame)][::-1]
    return "\n".join(lines)


def describe_tasks(tasks: Iterable["asyncio.Task[object]"]) -> str:
    """Return the stacks of tasks, outermost call first. Equal stacks are written once, with their number."""
    counts = Counter("\n".join(_frames(task.get_coro())) for task in tasks)
    lines = []
    for stack, count in counts.most_common(STACKS_MAX):
        lines += [f"{count} task(s):", stack]
    if len(counts) > STACKS_MAX:
        lines.append(f"and {len(counts) - STACKS_MAX} more stacks")
    return "\n".join([*lines, END])


def _frames(work: object) -> list[str]:
    """Follow the chain of awaits down to a future, or to an async generator, whose await is not visible."""
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
        frames.append(_frame_line(code, line))
        work = inner
    return frames


def _frame_line(code: CodeType, line: int) -> str:
    return f'  File "{code.co_filename}", line {line}, in {code.co_qualname}'


def _nonblocking(fd: int) -> int:
    """Reopen a pipe or terminal as non-blocking: writes to a full one are dropped."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with suppress(OSError):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return fd
