"""Complete reads and writes on a file descriptor, for the threads and for the creation of files."""

import errno
import os
from collections.abc import Iterator, Sequence

from anabranch.wal.format import PAGE_BYTES
from anabranch.wal.requests import Segment


def write_all(fd: int, position: int, data: memoryview) -> None:
    """Write all of `data`. A short write continues from the page it ended in, as O_DIRECT requires whole pages."""
    done = 0
    while done < len(data):
        written = os.pwrite(fd, data[done:], position + done)
        advanced = done + written - (done + written) % PAGE_BYTES if done + written < len(data) else len(data)
        if advanced <= done:
            raise OSError(errno.EIO, f"wrote {written} of {len(data) - done} bytes at position {position + done}")
        done = advanced


def adjacent_runs(segments: Sequence[Segment]) -> Iterator[tuple[int, list[memoryview]]]:
    """Yield position and memory of each run of segments that are adjacent on the device: they share a system call."""
    at = 0
    while at < len(segments):
        position, first = segments[at]
        run, end = [first], position + len(first)
        at += 1
        while at < len(segments) and segments[at][0] == end:
            run.append(segments[at][1])
            end += len(segments[at][1])
            at += 1
        yield position, run


def write_segments(fd: int, segments: Sequence[Segment]) -> None:
    """Write all segments."""
    for position, run in adjacent_runs(segments):
        if len(run) == 1 or os.pwritev(fd, run, position) != sum(map(len, run)):
            at = position
            for data in run:  # one segment, or a short write: segment by segment
                write_all(fd, at, data)
                at += len(data)


def read_all(fd: int, position: int, data: memoryview) -> None:
    """Fill `data`. Raises OSError if the device ends before."""
    done = 0
    while done < len(data):
        count = os.preadv(fd, [data[done:]], position + done)
        advanced = done + count - (done + count) % PAGE_BYTES if done + count < len(data) else len(data)
        if advanced <= done:
            raise OSError(errno.EIO, f"read {count} of {len(data) - done} bytes at position {position + done}")
        done = advanced
