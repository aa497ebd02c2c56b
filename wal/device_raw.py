"""Whole reads and writes on a file descriptor, for the threads and for making files."""

import errno
import os

from wal.format import PAGE_BYTES


def write_all(fd: int, position: int, data: memoryview) -> None:
    """Write all of `data`; a short write goes on from the page it ended in, as O_DIRECT asks for whole pages."""
    done = 0
    while done < len(data):
        written = os.pwrite(fd, data[done:], position + done)
        advanced = done + written - (done + written) % PAGE_BYTES if done + written < len(data) else len(data)
        if advanced <= done:
            raise OSError(errno.EIO, f"wrote {written} of {len(data) - done} bytes at position {position + done}")
        done = advanced


def read_all(fd: int, position: int, data: memoryview) -> None:
    """Fill `data`; the end of the device before that is an error."""
    done = 0
    while done < len(data):
        count = os.preadv(fd, [data[done:]], position + done)
        advanced = done + count - (done + count) % PAGE_BYTES if done + count < len(data) else len(data)
        if advanced <= done:
            raise OSError(errno.EIO, f"read {count} of {len(data) - done} bytes at position {position + done}")
        done = advanced
