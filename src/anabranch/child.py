"""Requests to a child process, and its answers: frames over pipes, each after its length in 4 bytes (big endian)."""

import os
import select
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import IO, Final

LAST_LINE_BYTES_MAX: Final = 500
"""Bytes of the end of standard error that are looked at."""


class Child:
    """A process that is started for the first request and kept. Used in one thread at a time; `close` in any."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Note how it is started; the environment is that of this process if none is given."""
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self.using = Lock()
        """Held while the process is used, started or stopped."""
        self.is_closed = False

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return None if self._process is None else self._process.pid

    def running(self) -> subprocess.Popen[bytes]:
        """Return the process, started if none runs, to send it a request. Raises OSError if it is closed."""
        if self.is_closed:
            raise OSError("closed")
        if self._errors is None:
            self._errors = _file_of_errors()
        # The file's position is the process's, too: it keeps what is written during a request.
        self._errors.seek(0)
        self._errors.truncate()
        if self._process is None:
            self._process = start(self._command, self._environment, self._errors)
        return self._process

    def stop(self) -> int | None:
        """End the process; return its status, which shows whether it had ended by itself."""
        process, self._process = self._process, None
        return None if process is None else stop(process)

    def last_line(self) -> str:
        """Return the last line of standard error since the process was last asked for; empty: there is none."""
        if self._errors is None:
            return ""
        end = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, end - LAST_LINE_BYTES_MAX))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End the process, and start no other one."""
        self.is_closed = True
        if process := self._process:
            process.kill()  # which ends the request under way
        with self.using:
            self.stop()
            if self._errors is not None:
                self._errors.close()


def _file_of_errors() -> IO[bytes]:
    """Return a file without a name: in memory, where the system has those, since a node may have no folder for it."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("stderr"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)


def start(command: Sequence[str], environment: Mapping[str, str] | None, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a process that answers requests on its standard input, with this standard error."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd="/",
        bufsize=0,
        env=environment,
        start_new_session=True,  # a Ctrl-C is for its parent
    )


def stop(process: subprocess.Popen[bytes]) -> int:
    """End a process. Returns its status, which shows whether it had ended by itself."""
    process.kill()
    status = process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    return status


def exchange(
    process: subprocess.Popen[bytes], body: bytes, *, what: str, timeout_s: float, answer_bytes_max: int
) -> bytes:
    """Send a request, and return the answer. Raises OSError, also if there is none in time.

    `what` is the name of a request in errors. The time is that without any progress.
    """
    send(process, body, what=what, timeout_s=timeout_s)
    return receive(process, what=what, timeout_s=timeout_s, answer_bytes_max=answer_bytes_max)


def send(process: subprocess.Popen[bytes], body: bytes, *, what: str, timeout_s: float) -> None:
    """Send a request. Raises OSError, also if it is not taken in time."""
    assert process.stdin is not None
    sink = process.stdin.fileno()
    left = memoryview(len(body).to_bytes(4, "big") + body)
    os.set_blocking(sink, False)
    try:
        while left:
            _wait(sink, select.POLLOUT, timeout_s, what)
            left = left[os.write(sink, left) :]
    except BrokenPipeError:
        raise OSError(f"it had ended before this {what}") from None


def receive(process: subprocess.Popen[bytes], *, what: str, timeout_s: float, answer_bytes_max: int) -> bytes:
    """Return the next answer. Raises OSError, also if there is none in time."""
    assert process.stdout is not None
    source = process.stdout.fileno()

    def read(size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            _wait(source, select.POLLIN, timeout_s, what)
            part = os.read(source, size - len(received))
            if not part:
                raise OSError(f"it ended over this {what}")
            received += part
        return bytes(received)

    size = int.from_bytes(read(4), "big")
    if size > answer_bytes_max:
        raise OSError("an answer is too large")
    return read(size)


def _wait(descriptor: int, event: int, timeout_s: float, what: str) -> None:
    """Wait until a pipe can be read or written. Raises TimeoutError."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(timeout_s * 1000):
        raise TimeoutError(f"it took longer than {timeout_s:g} s over this {what}")
