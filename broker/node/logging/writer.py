"""Writes log lines from a separate thread, because their reader may be slow or gone.

Invariant: logging never blocks and never fails. A full pipe, a stopped terminal, a full disk or a dead reader does not
delay or end a request, an upload or a stop of the node. Up to `WAITING_BYTES_MAX` of lines wait for the reader; lines
beyond that are dropped, and their number is written when the reader continues. Lines that cannot be written are lost.
"""

import os
import select
import sys
import threading

WAITING_BYTES_MAX = 1024 * 1024
WRITABLE_CHECK_S = 1.0


class LineWriter:
    """Writes lines to a file descriptor, in order. May be called from any thread, and from a finalizer."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd` is standard error unless given."""
        self.fd = _standard_error() if fd is None else fd
        self._changed = threading.Condition()  # its lock is reentrant: a finalizer may run in a thread that holds it
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def line(self, text: str) -> None:
        """Queue a line to be written."""
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self._dropped += 1
                return
            self._lines.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                # A daemon thread: a write that hangs must not keep the process alive.
                self._thread = threading.Thread(target=self._work, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued lines are written; return False when that takes longer than `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting_bytes, timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._dropped)
                lines, self._lines = self._lines, []
                dropped, self._dropped = self._dropped, 0
            data = b"".join(lines)
            self._write(data)
            if dropped:
                self._write(b"%d lines of the log were dropped: its reader was too slow\n" % dropped)
            with self._changed:
                self._waiting_bytes -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.fd, left) :]
            except BlockingIOError:  # another process that shares the pipe made it non-blocking
                select.select((), (self.fd,), (), WRITABLE_CHECK_S)
            except OSError:
                return  # the reader is gone, and there is no other place to report it


def _standard_error() -> int:
    # Without a standard error, its descriptor number may belong to another file by now.
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if sys.stderr is None else sys.stderr.fileno()
