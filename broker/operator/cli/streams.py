"""Standard streams of the command: closed ones, full disks, readers that end.

A command reads and writes `sys.stdin` and `sys.stdout` without care. A failure there ends it: in one line and with exit
code 1, or quietly if the reader of a pipe has ended, as `head` does. Errors of other files, such as a connection's
BrokenPipeError, pass. What cannot be written to standard error is lost.

A stream that was closed (`<&-`, `>&-`) is opened, so that its number does not become that of another file: reading
or writing it fails as if it were closed. The C library does this for programs with more rights than their user.
"""

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, cast

STDIN, STDOUT, STDERR = 0, 1, 2
FAILED: Final = 1
BUFFER_BYTES: Final = 64 * 1024


class StreamError(Exception):
    """Standard input or output failed. No OSError: code that expects one of other files must not handle it."""


class _Stream(io.FileIO):
    """Standard input or output. It remembers how it failed."""

    def __init__(self, fd: int, mode: str) -> None:
        super().__init__(fd, mode, closefd=False)
        self.failure: OSError | None = None

    # FileIO's own read and readall do not come by here: the buffers use readinto and write only.

    def readinto(self, buffer: Any, /) -> int | None:
        """Read into a buffer. Raises StreamError."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failure = error
            raise StreamError from error

    def write(self, data: Any, /) -> int:
        """Write bytes. Raises StreamError."""
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise StreamError from error


class _ErrorStream(io.FileIO):
    """Standard error. There is no place to report that it fails."""

    def write(self, data: Any, /) -> int:
        """Write bytes, or lose them."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Run a command on the standard streams of the process, and end it where one fails."""
    for fd, mode in ((STDIN, os.O_WRONLY), (STDOUT, os.O_RDONLY), (STDERR, os.O_WRONLY)):
        if _is_closed(fd):
            os.dup2(null := os.open(os.devnull, mode), fd)
            if null != fd:
                os.close(null)
    source, output = _Stream(STDIN, "r"), _Stream(STDOUT, "w")
    sys.stdin = _text(io.BufferedReader(source, BUFFER_BYTES), sys.stdin)
    sys.stdout = _text(io.BufferedWriter(output, BUFFER_BYTES), sys.stdout)
    sys.stderr = _text(io.BufferedWriter(_ErrorStream(STDERR, "w", closefd=False)), sys.stderr, "backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BaseException:
        if output.failure is not None:
            _silence(STDOUT)  # what is still in the buffer is flushed at the end of Python
            if isinstance(output.failure, BrokenPipeError):
                sys.exit(0)
        for name, failure in (("input", source.failure), ("output", output.failure)):
            if failure is not None:
                reason = "it is closed" if failure.errno == errno.EBADF else failure.strerror
                print(f"Error: standard {name}: {reason}", file=sys.stderr)
                sys.exit(FAILED)
        raise


def _is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def _text(buffer: Any, before: IO[str] | None, errors: str = "strict") -> io.TextIOWrapper:
    """Return the text stream over a buffer, with the properties of the one that Python made; None: it was closed."""
    made = cast("io.TextIOWrapper | None", before)
    by_line = buffer.isatty() or made is None or made.line_buffering or made.write_through
    if made is None:
        return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=by_line)
    return io.TextIOWrapper(buffer, made.encoding, made.errors, line_buffering=by_line)


def _silence(fd: int) -> None:
    os.dup2(null := os.open(os.devnull, os.O_WRONLY), fd)
    os.close(null)


def reader_has_ended() -> bool:
    """Return whether standard output is a pipe or socket whose reader has ended."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except OSError:  # not a file of the system
        return False
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
