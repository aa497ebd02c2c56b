"""The device under the log: a raw block device or a file, opened with O_DIRECT, worked by threads of its own.

Requests go to the threads through a queue and come back through an eventfd that the event loop watches, several per
wake-up: the loop never waits for the disk, and a write costs it two queue operations. Only this module touches a disk.
"""

import errno
import fcntl
import os
import stat
from asyncio import AbstractEventLoop, get_running_loop, to_thread
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from struct import pack
from threading import Thread
from typing import Final, Protocol

import structlog

from wal.block import aligned_buffer
from wal.format import PAGE_BYTES, RING_POSITION
from wal.interface import Durable, WalFailed, WalRefused
from wal.settings import WalSettings

_LOG = structlog.get_logger(__name__)
_PREWRITE_BYTES: Final = 4 << 20
_JOIN_S: Final = 1.0
_BLKSSZGET: Final = 0x1268


class IoKind(Enum):
    """What a request asks of the device."""

    READ = 1
    WRITE = 2
    FLUSH = 3


Segment = tuple[int, memoryview]
"""Position on the device and aligned memory to write from or read into."""


class IoRequest:
    """One request: several segments, in order; `done` is called on the event loop's thread with `error` set or None."""

    __slots__ = ("check_header", "done", "error", "header", "kind", "segments", "submitted_at")

    def __init__(
        self,
        kind: IoKind,
        segments: Sequence[Segment],
        done: Callable[["IoRequest"], None],
        *,
        check_header: bool = False,
    ) -> None:
        self.kind = kind
        self.segments = segments
        self.done = done
        self.check_header = check_header
        """Read both header copies after the write: a former owner sees in `header` that it was fenced."""
        self.header: bytes | None = None
        self.error: OSError | None = None
        self.submitted_at = 0.0


class Device(Protocol):
    """What the log asks of a device. A write that completed without error is as durable as `description` says."""

    @property
    def name(self) -> str:
        """Path, for messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """Usable size."""
        ...

    @property
    def description(self) -> str:
        """Kind of device, flags and the guarantee in force, for people."""
        ...

    @property
    def shared(self) -> bool:
        """Whether another host might have the device attached."""
        ...

    def submit(self, request: IoRequest) -> None:
        """Start a request; its `done` runs on a later turn of the loop. Requests may complete in any order."""
        ...

    async def close(self) -> None:
        """Release the device; no request may be under way, unless the log failed."""
        ...


async def perform(device: Device, kind: IoKind, segments: Sequence[Segment] = ()) -> None:
    """Submit one request and wait for it; raises WalFailed."""
    durable = Durable()
    error: list[OSError] = []

    def done(request: IoRequest) -> None:
        if request.error is not None:
            error.append(request.error)
        durable.complete()

    device.submit(IoRequest(kind, segments, done))
    await durable
    if error:
        where = f" at position {segments[0][0]}" if segments else ""
        raise WalFailed(f"{device.name}: {kind.name.lower()}{where} failed: {error[0]}") from error[0]


@dataclass(frozen=True, slots=True)
class Opened:
    """A file descriptor and what is known of what it opens."""

    fd: int
    path: Path
    size_bytes: int
    block_device: bool
    direct: bool
    synced: bool
    """Opened with O_DSYNC: a write returns when it is on stable media."""
    why: str
    """Reason for `synced`, for people."""


class FileDevice:
    """A file or block device behind `writers` threads."""

    def __init__(self, opened: Opened, writers: int) -> None:
        self._opened: Final = opened
        self._writers: Final = writers
        self._queue: SimpleQueue[IoRequest | None] = SimpleQueue()
        self._completed: deque[IoRequest] = deque()
        self._signalled = False
        self._event_fd = -1
        self._threads: list[Thread] = []
        self._loop: AbstractEventLoop | None = None

    @property
    def name(self) -> str:
        """Path of the device."""
        return str(self._opened.path)

    @property
    def size_bytes(self) -> int:
        """Size when opened."""
        return self._opened.size_bytes

    @property
    def description(self) -> str:
        """Kind, flags and guarantee."""
        opened = self._opened
        kind = "block device" if opened.block_device else "file"
        flags = (
            " ".join(name for name, used in (("O_DIRECT", opened.direct), ("O_DSYNC", opened.synced)) if used)
            or "buffered"
        )
        return f"{kind}, {flags}: {opened.why}"

    @property
    def shared(self) -> bool:
        """Whether another host might have it attached: a block device that is not a loop device."""
        return self._opened.block_device and _sys_folder(os.fstat(self._opened.fd), "loop") is None

    def submit(self, request: IoRequest) -> None:
        """Hand a request to the threads."""
        if self._loop is None:
            self._start()
        self._queue.put(request)

    def _start(self) -> None:
        self._loop = get_running_loop()
        self._event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._loop.add_reader(self._event_fd, self._on_completed)
        # One more than the writes in flight, so that a header write never waits behind them. Daemons: a thread that
        # hangs on a dead device must not keep the process.
        for number in range(self._writers + 1):
            thread = Thread(target=self._work, name=f"wal-writer-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _on_completed(self) -> None:
        os.eventfd_read(self._event_fd)
        # Cleared before the queue is drained: a request completed from here on signals again.
        self._signalled = False
        completed = self._completed
        while completed:
            request = completed.popleft()
            request.done(request)

    def _work(self) -> None:
        page = aligned_buffer(RING_POSITION)
        fd = self._opened.fd
        while (request := self._queue.get()) is not None:
            try:
                if request.kind is IoKind.WRITE:
                    for position, data in request.segments:
                        write_all(fd, position, data)
                    if request.check_header:
                        read_all(fd, 0, page)
                        request.header = bytes(page)
                elif request.kind is IoKind.READ:
                    for position, data in request.segments:
                        read_all(fd, position, data)
                else:
                    os.fdatasync(fd)
            except OSError as error:
                request.error = error
            self._completed.append(request)
            if not self._signalled:
                self._signalled = True
                os.eventfd_write(self._event_fd, 1)

    async def close(self) -> None:
        """Stop the threads and close the descriptor; a thread that hangs on the device is left to it."""
        for _ in self._threads:
            self._queue.put(None)
        if self._loop is not None:
            await to_thread(self._join)
            self._loop.remove_reader(self._event_fd)
        if not any(thread.is_alive() for thread in self._threads):
            if self._event_fd >= 0:
                os.close(self._event_fd)
            os.close(self._opened.fd)

    def _join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=_JOIN_S)


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


def open_device(
    path: Path, settings: WalSettings, *, progress: Callable[[int, int], None] | None = None, create: bool = True
) -> FileDevice:
    """Open `path` for the log; blocking, seconds when a file must be made. Raises WalRefused.

    A file that does not exist is made with the configured capacity, every byte written, so that later writes never
    allocate; `progress(done_bytes, all_bytes)` is called meanwhile.
    """
    path = path.resolve()
    try:
        if create and not path.exists():
            _make_file(path, settings.capacity_bytes, progress)
        return FileDevice(_open(path, settings), settings.writes_in_flight_max)
    except OSError as error:
        raise WalRefused(f"{path}: cannot open the WAL device: {error.strerror or error}") from error


def _open(path: Path, settings: WalSettings) -> Opened:
    status = path.stat()
    block_device = stat.S_ISBLK(status.st_mode)
    if not block_device and not stat.S_ISREG(status.st_mode):
        raise WalRefused(f"{path}: neither a block device nor a regular file")
    synced, why = choose_durability(settings, write_cache(status))
    # O_EXCL on a block device: refused while it is mounted or another process has it open the same way.
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if block_device else 0)
    direct = True
    try:
        fd = _open_direct(path, flags | (os.O_DSYNC if synced else 0))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _LOG.warning("O_DIRECT is refused here: buffered writes with O_DSYNC instead", path=str(path))
        direct, synced = False, True
        why = "O_DIRECT is refused here, so each write goes through the page cache and is flushed"
        fd = _open_locked(path, flags | os.O_DSYNC)
    if block_device and sector_bytes(fd) > PAGE_BYTES:
        os.close(fd)
        raise WalRefused(f"{path}: sectors of more than {PAGE_BYTES} bytes")
    return Opened(fd, path, os.lseek(fd, 0, os.SEEK_END), block_device, direct, synced, why)


def _open_direct(path: Path, flags: int) -> int:
    """Open with O_DIRECT and read a page: some file systems refuse only the latter."""
    fd = _open_locked(path, flags | os.O_DIRECT)
    try:
        if os.lseek(fd, 0, os.SEEK_END) >= PAGE_BYTES:
            read_all(fd, 0, aligned_buffer(PAGE_BYTES))
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_locked(path: Path, flags: int) -> int:
    """Open and lock; another process that has it is an error with a name."""
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise WalRefused(f"{path}: in use: mounted, or open in another process") from error
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise WalRefused(f"{path}: in use by another process (locked)") from error
    return fd


def choose_durability(settings: WalSettings, cache: str) -> tuple[bool, str]:
    """Return whether each write is to be flushed, and why; `cache` is the device's own word, or "unknown"."""
    if settings.durability == "flush":
        return True, "each write is flushed to stable media (durability=flush)"
    if settings.durability == "direct":
        return False, f"writes are not flushed (durability=direct): the device's cache ({cache}) is trusted"
    if cache == "write through":
        return False, "the device has no volatile write cache (durability=auto)"
    return True, f"each write is flushed to stable media (durability=auto, write cache: {cache})"


def write_cache(status: os.stat_result) -> str:
    """Return `write back` or `write through` as the kernel reports it for the disk, else `unknown`."""
    folder = _sys_folder(status, "queue/write_cache")
    return "unknown" if folder is None else (folder / "queue/write_cache").read_text().strip()


def _sys_folder(status: os.stat_result, entry: str) -> Path | None:
    """Return the folder under /sys that has `entry`, of the disk that a path is, or lies on."""
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for folder in (device, device.resolve().parent):  # a partition's queue is its disk's
        if (folder / entry).exists():
            return folder
    return None


def _make_file(path: Path, size_bytes: int, progress: Callable[[int, int], None] | None) -> None:
    """Make a file with every byte written, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fill_file(fd, 0, size_bytes, progress)
        finally:
            os.close(fd)
        new.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise WalRefused(f"{path}: cannot make a WAL file of {size_bytes} bytes: {error.strerror or error}") from error


def fill_file(fd: int, start: int, end: int, progress: Callable[[int, int], None] | None = None) -> None:
    """Write zeros from `start` to `end`, durably: a later write there allocates nothing and changes no metadata."""
    try:
        os.posix_fallocate(fd, start, end - start)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise  # no space
    zeros = aligned_buffer(_PREWRITE_BYTES)
    for position in range(start, end, _PREWRITE_BYTES):
        write_all(fd, position, zeros[: end - position])
        if progress is not None:
            progress(min(position + _PREWRITE_BYTES, end), end)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sector_bytes(fd: int) -> int:
    """Return the logical sector size of a block device."""
    return int.from_bytes(fcntl.ioctl(fd, _BLKSSZGET, pack("I", 0)), "little")


def extend_file(path: Path, size_bytes: int) -> None:
    """Make the file of a stopped node's log larger, for a resize; shorter ones and devices are left alone."""
    path = path.resolve()
    try:
        if not path.is_file() or path.stat().st_size >= size_bytes:
            return
        fd = _open_locked(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fill_file(fd, os.fstat(fd).st_size, size_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        raise WalRefused(f"{path}: cannot extend to {size_bytes} bytes: {error.strerror or error}") from error


def shorten_file(path: Path, size_bytes: int) -> None:
    """Give back what a log in a file does not use any more after a resize."""
    path = path.resolve()
    if path.is_file() and path.stat().st_size > size_bytes:
        os.truncate(path, size_bytes)
