"""The way of the log's lines out of the process: a thread writes them, since whoever reads them may be slow or gone.

What it keeps true: saying something never waits and never fails. A full pipe, a terminal that was stopped, a disk
without room or a reader that has died hold up or end no request, no upload and no stop of the node. Up to
`WAITING_BYTES_MAX` of lines wait for a reader; what comes beyond that is dropped, and how much, is said when it reads
again. What cannot be written at all is lost.
"""

import os
import select
import sys
import threading

WAITING_BYTES_MAX = 1024 * 1024
WRITABLE_CHECK_S = 1.0


class LineWriter:
    """Writes lines to a file descriptor, in order. From any thread, and from a finalizer in the middle of it."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd` is standard error unless given."""
        self.fd = _standard_error() if fd is None else fd
        self._changed = threading.Condition()  # over a lock that a finalizer of the same thread may take again
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def line(self, text: str) -> None:
        """Have a line written soon."""
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._waiting_bytes + len(data) > WAITING_BYTES_MAX:
                self._dropped += 1
                return
            self._lines.append(data)
            self._waiting_bytes += len(data)
            if self._thread is None:
                # A daemon: a write that hangs must not keep the process.
                self._thread = threading.Thread(target=self._work, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def settle(self, timeout_s: float) -> bool:
        """Wait until everything said so far is written; False when that takes longer than `timeout_s`."""
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
                self._write(b"%d lines of the log were dropped: nobody read it\n" % dropped)
            with self._changed:
                self._waiting_bytes -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.fd, left) :]
            except BlockingIOError:  # somebody who shares the pipe has made it so
                select.select((), (self.fd,), (), WRITABLE_CHECK_S)
            except OSError:
                return  # nobody will ever read it, and there is nobody to tell


def _standard_error() -> int:
    # Without a standard error its number may by now be that of another file.
    return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC) if sys.stderr is None else sys.stderr.fileno()
