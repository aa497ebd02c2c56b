"""Requests to a child process, and its answers: frames over pipes, each after its length in 4 bytes (big endian)."""

import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from threading import Lock


class Child:
    """A process that is started for the first request and kept. Used in one thread at a time; `close` in any."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Note how it is started; the environment is that of this process if none is given."""
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.using = Lock()
        """Held while the process is used, started or stopped."""
        self.is_closed = False

    @property
    def process_id(self) -> int | None:
        """Id of the process; None if none runs."""
        return None if self._process is None else self._process.pid

    def running(self) -> subprocess.Popen[bytes]:
        """Return the process, started if none runs. Raises OSError if it is closed."""
        if self.is_closed:
            raise OSError("closed")
        if self._process is None:
            self._process = start(self._command, self._environment)
        return self._process

    def stop(self) -> int | None:
        """End the process; return its status, which shows whether it had ended by itself."""
        process, self._process = self._process, None
        return None if process is None else stop(process)

    def close(self) -> None:
        """End the process, and start no other one."""
        self.is_closed = True
        if process := self._process:
            process.kill()  # which ends the request under way
        with self.using:
            self.stop()


def start(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that answers requests on its standard input."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
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
    assert process.stdin is not None
    assert process.stdout is not None
    source, sink = process.stdout.fileno(), process.stdin.fileno()
    late = f"it took longer than {timeout_s:g} s over this {what}"
    left = memoryview(len(body).to_bytes(4, "big") + body)
    os.set_blocking(sink, False)
    try:
        while left:
            _wait(sink, select.POLLOUT, timeout_s, late)
            left = left[os.write(sink, left) :]
    except BrokenPipeError:
        raise OSError(f"it had ended before this {what}") from None

    def receive(size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            _wait(source, select.POLLIN, timeout_s, late)
            part = os.read(source, size - len(received))
            if not part:
                raise OSError(f"it ended over this {what}")
            received += part
        return bytes(received)

    size = int.from_bytes(receive(4), "big")
    if size > answer_bytes_max:
        raise OSError("an answer is too large")
    return receive(size)


def _wait(descriptor: int, event: int, timeout_s: float, late: str) -> None:
    """Wait until a pipe can be read or written. Raises TimeoutError."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(timeout_s * 1000):
        raise TimeoutError(late)
