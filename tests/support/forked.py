"""Processes of the `anabranch` command that begin with everything imported.

Half a second to a second of processor time goes into the imports of a node, and a run of all tests starts hundreds. So
one process per test worker imports the command once, and is copied for each node. What follows is what
`python -m anabranch` does, in a process that can be signalled and killed like any other.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.support.forked_imports"])
STDERR = 2
"""File descriptor of standard error."""
_AT_START = ("LD_", "PYTHON", "MALLOC_", "FAKETIME")
"""Beginnings of the variables that only a new interpreter follows."""
_STARTED_WITH = {name: value for name, value in os.environ.items() if name.startswith(_AT_START)}


class ForkedProcess:
    """A running command. Has the part of `subprocess.Popen` that nodes use, with standard error as text."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        reading, writing = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(
            target=_run, args=(list(arguments), dict(environment), str(Path.cwd()), writing)
        )
        self._process.start()
        writing.close()
        self.stderr: TextIO = os.fdopen(os.dup(reading.fileno()), encoding="utf-8", errors="replace")
        reading.close()

    @property
    def pid(self) -> int:
        """Process id."""
        pid = self._process.pid
        assert pid is not None, "it was started"
        return pid

    def poll(self) -> int | None:
        """Exit code, or minus the number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has been reaped, and its exit code is on the way
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Return its exit code once it has ended. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout_s)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("anabranch", timeout_s)
        return code


def command_process(
    arguments: Sequence[str], environment: Mapping[str, str], *, new_interpreter: bool
) -> "ForkedProcess | subprocess.Popen[str]":
    """Start the `anabranch` command; in a new interpreter if wanted, or if its environment speaks to one."""
    at_start = {name: value for name, value in environment.items() if name.startswith(_AT_START)}
    if at_start == _STARTED_WITH and not new_interpreter:
        return ForkedProcess(arguments, environment)
    return subprocess.Popen(
        [sys.executable, "-m", "anabranch", *arguments], stderr=subprocess.PIPE, text=True, env=environment
    )


def _run(arguments: Sequence[str], environment: Mapping[str, str], folder: str, errors: Connection) -> None:
    from anabranch.broker.operator.cli import run

    os.dup2(errors.fileno(), STDERR)
    errors.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["anabranch", *arguments]
    run()
