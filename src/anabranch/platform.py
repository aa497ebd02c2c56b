"""Facts of the platform: what the operating system offers, and what stands in where it does not.

Nodes run on Linux, which has all of it. The broker for tests and `anabranch dev` are prepared for macOS. No other
module asks which platform it is on: each calls the functions here, or reads a constant that does nothing elsewhere.
"""

import errno
import fcntl
import mmap
import os
import resource
import select
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

IS_LINUX: Final = sys.platform == "linux"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
STATM: Final = Path("/proc/self/statm")
MEMORY_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - a file system in memory, on Linux
O_DIRECT: Final[int] = getattr(os, "O_DIRECT", 0)
"""Bypasses the page cache; 0: the platform cannot."""
MAP_POPULATE: Final[int] = getattr(mmap, "MAP_POPULATE", 0)
POLLRDHUP: Final[int] = getattr(select, "POLLRDHUP", 0)
"""The peer has closed its side; 0: the platform tells only when both sides are closed."""
_FULL_FSYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""Command that also empties the drive's cache. On macOS fsync and O_DSYNC leave data in it."""
O_DSYNC: Final[int] = os.O_DSYNC if _FULL_FSYNC is None else 0
"""A write returns when it is on stable media; 0: the platform cannot, and `flush` has to follow each write."""
_NOT_OF_THIS_FILE_SYSTEM: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})
_CANNOT_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_KEEPALIVE_IDLE: Final[int | None] = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
_USER_TIMEOUT: Final[int | None] = getattr(socket, "TCP_USER_TIMEOUT", None)
_BOOT_SESSION: Final = b"kern.bootsessionuuid"
_BOOT_SESSION_BYTES: Final = 64
_ONE: Final = (1).to_bytes(8, sys.byteorder)
"""Number of 64 bits, as an eventfd takes it."""
_TAKEN_BYTES: Final = 4096


def flush(fd: int) -> None:
    """Make the data of a file durable: on stable media, not in the drive's cache. Raises OSError."""
    if _FULL_FSYNC is None:
        os.fdatasync(fd)
    else:
        sync(fd)


def sync(fd: int) -> None:
    """Make the data of a file and its attributes durable, or the entries of a folder. Raises OSError."""
    if _FULL_FSYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_FSYNC)
        except OSError as error:
            if error.errno not in _NOT_OF_THIS_FILE_SYSTEM:
                raise
        else:
            return
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(fd)
    finally:
        os.close(fd)


def reserve(fd: int, start: int, end: int) -> None:
    """Reserve the space of a file from `start` to `end`, where file system and platform can.

    Raises OSError if there is not enough. Where nothing can be reserved, the caller finds no unwritten ranges.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise


def drop_from_cache(fd: int) -> None:
    """Let the page cache forget a file that was written; only a hint."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def direct_writes(fd: int) -> Iterator[bool]:
    """Bypass the page cache inside the `with` block; yield whether the file system supports it."""
    if not O_DIRECT:
        yield False
        return
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | O_DIRECT)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def copy_range(source: int, target: int, size: int, start: int) -> int:
    """Copy from `start` to the target's position inside the kernel; return the number of bytes. Raises OSError.

    ENOSYS: the platform cannot.
    """
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.copy_file_range(source, target, size, start)


def use_huge_pages(memory: mmap.mmap) -> None:
    """Advise the kernel to back memory with huge pages; only a hint."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):
            memory.madvise(advice)


def notice_vanishing(bare: socket.socket, *, idle_s: int, interval_s: int, probes: int, unsent_ms: int) -> None:
    """Let the kernel end a connection whose peer has vanished, or those that a listening socket accepts.

    It ends when that many probes, the first after `idle_s`, have no answer, and on Linux also when what was sent is not
    acknowledged within `unsent_ms`.
    """
    bare.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _KEEPALIVE_IDLE is not None:
        bare.setsockopt(socket.IPPROTO_TCP, _KEEPALIVE_IDLE, idle_s)
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    bare.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
    if _USER_TIMEOUT is not None:
        bare.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, unsent_ms)


def boot_id() -> str:
    """Return the id of the machine's current boot; empty if the platform does not tell its boots apart."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return _boot_session()


def _boot_session() -> str:
    """Return the id of the boot as macOS knows it; empty elsewhere."""
    import ctypes

    try:
        read = ctypes.CDLL(None).sysctlbyname
    except AttributeError:
        return ""
    found = ctypes.create_string_buffer(_BOOT_SESSION_BYTES)
    size = ctypes.c_size_t(_BOOT_SESSION_BYTES)
    failed = read(_BOOT_SESSION, found, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else found.value.decode("ascii", "replace")


def physical_memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def resident_memory() -> int:
    """Return the bytes of memory that this process has now; where the platform does not tell, the most that it had."""
    try:
        pages = int(STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # in KiB, except on macOS
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """Give the path of a file that ends with the context: in memory and of this process only, where there is that."""
    if IS_LINUX:
        with os.fdopen(os.memfd_create("private", os.MFD_CLOEXEC), "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
        return
    fd, path = tempfile.mkstemp()  # for its owner only
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        yield path
    finally:
        Path(path).unlink()


class Wakeup:
    """A descriptor for an event loop to watch, which any thread makes readable: an eventfd, or else a pipe."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.fd = self._sink = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self.fd, self._sink = os.pipe()
            for each in (self.fd, self._sink):
                os.set_blocking(each, False)

    def set(self) -> None:
        """Make the descriptor readable."""
        with suppress(BlockingIOError):  # a full pipe is readable
            os.write(self._sink, _ONE)

    def clear(self) -> None:
        """Take what made it readable."""
        with suppress(BlockingIOError):
            os.read(self.fd, _TAKEN_BYTES)

    def close(self) -> None:
        """Release the descriptor, which no loop watches any more."""
        os.close(self.fd)
        if self._sink != self.fd:
            os.close(self._sink)
