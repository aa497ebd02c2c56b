"""Spark programs as separate processes: their output, their child processes, and power cuts."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until

WAIT_S = 400
"""For one event. Generous: a whole Spark starts within it on a machine that is busy with other things."""


@dataclass(frozen=True, slots=True)
class Program:
    """A process and the file that it writes to."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self, pattern: str) -> list[str]:
        """All matches in its output, at beginnings of lines."""
        return re.findall(f"(?m)^{pattern}", self.log.read_text(errors="replace"))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds, while the program runs."""

        def holds() -> bool:
            assert self.process.poll() is None, f"ended by itself: {self.log.read_text(errors='replace')}"
            return condition()

        wait_until(holds, f"what a test expects of the program that writes to {self.log}", timeout_s=WAIT_S)

    def executors(self) -> list[int]:
        """Process ids of the executors that run below it."""
        return [pid for pid, line in self._below().items() if "CoarseGrainedExecutorBackend" in line]

    def kill_executor(self) -> None:
        """Kill one executor that runs below it; there must be one."""
        executors = self.executors()
        assert executors, "no executors"
        os.kill(executors[0], signal.SIGKILL)

    def kill(self) -> None:
        """A power cut for it and all that it started."""
        below = self._below()
        self.process.kill()
        self.process.wait(WAIT_S)
        for pid in below:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _below(self) -> dict[int, str]:
        """Processes below it, with their command lines."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = stat.read_text()
            except OSError:
                continue
            parents[int(stat.parent.name)] = int(text[text.rindex(")") + 2 :].split()[1])
        found, todo = {}, [self.process.pid]
        while todo:
            above = todo.pop()
            children = [child for child, parent in parents.items() if parent == above]
            todo += children
            for child in children:
                try:
                    found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
        return found


@contextmanager
def program(
    command: Sequence[str], folder: Path, name: str, environ: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """Run a command in a folder, its output in NAME.log there; killed at the end."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=folder, env={**os.environ, **(environ or {})}
        )
    started = Program(process, log)
    try:
        yield started
    finally:
        started.kill()
