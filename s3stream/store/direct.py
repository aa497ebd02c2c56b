"""Writes of large files that bypass the page cache (O_DIRECT), through a small reused buffer.

An object that was just uploaded is still in the log cache. Copying it into the page cache would cost fresh pages, which
are most of a buffered write's CPU, and would evict other data. Only whole pages are written directly. The bytes before
the first and after the last page boundary are written normally, so that parts written concurrently never share a page
with a direct write. If the file system refuses O_DIRECT, everything is written normally.
"""

import mmap
import os
import threading
from collections.abc import Iterator, Sequence

from anabranch.platform import direct_writes
from anabranch.wal.interface import Buffer

PAGE_BYTES = 4096
STAGE_BYTES = 1024 * 1024
DIRECT_BYTES_MIN = 256 * 1024
"""Smaller writes do not justify the change of mode."""
_IOV_MAX = 1000


class FileWriter:
    """Writes buffers at the current position of files, from any thread. Each thread has a staging buffer."""

    def __init__(self) -> None:
        self._own = threading.local()

    def write(self, fd: int, parts: Sequence[Buffer]) -> int:
        """Write the buffers in order; return the number of bytes. Raises OSError."""
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        total = sum(len(view) for view in views)
        if total >= DIRECT_BYTES_MIN:
            head = -os.lseek(fd, 0, os.SEEK_CUR) % PAGE_BYTES
            body = (total - head) // PAGE_BYTES * PAGE_BYTES
            before, rest = _split(views, head)
            pages, after = _split(rest, body)
            _write_vectored(fd, before)
            with direct_writes(fd) as is_direct:
                if is_direct:
                    self._write_staged(fd, pages)
                else:
                    _write_vectored(fd, pages)
            _write_vectored(fd, after)
        else:
            _write_vectored(fd, views)
        return total

    def _write_staged(self, fd: int, views: Sequence[memoryview]) -> None:
        stage = self._stage()
        filled = 0
        for view in views:
            at = 0
            while at < len(view):
                count = min(len(view) - at, STAGE_BYTES - filled)
                stage[filled : filled + count] = view[at : at + count]
                filled += count
                at += count
                if filled == STAGE_BYTES:
                    _write_vectored(fd, [stage])
                    filled = 0
        if filled:
            _write_vectored(fd, [stage[:filled]])

    def _stage(self) -> memoryview:
        """Return this thread's buffer: an anonymous mapping, hence page-aligned."""
        stage: memoryview | None = getattr(self._own, "stage", None)
        if stage is None:
            stage = self._own.stage = memoryview(
                mmap.mmap(-1, STAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            )
        return stage


def cut(parts: Sequence[Buffer], sizes: Iterator[int]) -> Iterator[list[memoryview]]:
    """Yield the bytes of `parts` in pieces of the given sizes; the last one may be shorter."""
    piece: list[memoryview] = []
    left = next(sizes)
    for part in parts:
        view = memoryview(part).cast("B")
        while len(view) >= left:
            yield [*piece, view[:left]]
            view, piece, left = view[left:], [], next(sizes)
        if view:
            piece.append(view)
            left -= len(view)
    if piece:
        yield piece


def _split(views: Sequence[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """Split buffers after `size` bytes."""
    first: list[memoryview] = []
    for index, view in enumerate(views):
        if size < len(view):
            return ([*first, view[:size]] if size else first), [view[size:], *views[index + 1 :]]
        first.append(view)
        size -= len(view)
    return first, []


def _write_vectored(fd: int, views: Sequence[memoryview]) -> None:
    left = list(views)
    at = 0
    while at < len(left):
        written = os.writev(fd, left[at : at + _IOV_MAX])
        while at < len(left) and written >= len(left[at]):
            written -= len(left[at])
            at += 1
        if written:
            left[at] = left[at][written:]
