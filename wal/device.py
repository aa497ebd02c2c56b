"""The device under the log: a raw block device or a file, opened with O_DIRECT, locked, with a known guarantee.

The space of a new file is reserved when it is created. The log writes zeros there ahead of its records
(`wal/prewriter.py`), so that writes of records never allocate. Only the `wal.device*` modules access a disk.
"""

import errno
import fcntl
import os
import stat
from asyncio import Task, create_task, shield, to_thread, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from time import sleep
from typing import Final

import structlog

from anabranch.platform import IS_LINUX, O_DIRECT, O_DSYNC, drop_from_cache, reserve, sync, sync_folder
from anabranch.wal.block import aligned_buffer
from anabranch.wal.device_engine import ChosenEngine, choose_engine
from anabranch.wal.device_place import check_place, warn_of_place
from anabranch.wal.device_raw import read_all, write_all
from anabranch.wal.format import PAGE_BYTES
from anabranch.wal.interface import WalInUse, WalRefused
from anabranch.wal.requests import IoRequest
from anabranch.wal.settings import WalSettings

_LOG = structlog.get_logger(__name__)
_FILL_BYTES: Final = 4 << 20
_BLKSSZGET: Final = 0x1268
_LOCK_RETRIES: Final = 50
_LOCK_RETRY_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class OpenedDevice:
    """An open file descriptor, and the properties of its file or device."""

    fd: int
    path: Path
    size_bytes: int
    block_device: bool
    direct: bool
    synced: bool
    """True if a write is complete when it is on stable media: opened with O_DSYNC, or flushed by the engine."""
    why: str
    """Reason for `synced`, for messages."""

    @property
    def is_flushed(self) -> bool:
        """True if the engine has to flush after each write, since the platform has no O_DSYNC that does."""
        return self.synced and not O_DSYNC


class FileDevice:
    """An open file or block device."""

    def __init__(self, opened: OpenedDevice, chosen: ChosenEngine) -> None:
        self._opened: Final = opened
        self._chosen: Final = chosen
        self._reserving: Task[list[tuple[int, int]]] | None = None
        """Work on a thread, which does not end with a caller that is cancelled."""

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
        """Kind, flags, engine and guarantee."""
        opened = self._opened
        kind = "block device" if opened.block_device else "file"
        modes = {
            "O_DIRECT": opened.direct,
            "O_DSYNC": opened.synced and not opened.is_flushed,
            "flushed": opened.is_flushed,
        }
        flags = " ".join(name for name, used in modes.items() if used) or "buffered"
        return f"{kind}, {flags}, {self._chosen.description}: {opened.why}"

    @property
    def shared(self) -> bool:
        """True if another host might have it attached: a block device that is not a loop device."""
        return self._opened.block_device and _sys_folder(os.fstat(self._opened.fd), "loop") is None

    async def unwritten(self) -> list[tuple[int, int]]:
        """Reserve and return the ranges of a file that were never written. A device has none. Raises WalRefused.

        In a sparse copy of a log they have no space yet: a full disk is reported here, not at a later record.
        """
        opened = self._opened
        if opened.block_device:
            return []
        try:
            self._reserving = create_task(to_thread(_reserve_unwritten, opened.fd, opened.size_bytes))
            return await shield(self._reserving)
        except OSError as error:
            raise WalRefused(f"{opened.path}: cannot reserve the space of the file: {error.strerror}") from error

    def submit(self, request: IoRequest) -> None:
        """Start a request."""
        self._chosen.engine.submit(request)

    async def close(self) -> None:
        """Release the device. The descriptor stays open if a request never returns."""
        if self._reserving is not None:
            await wait([self._reserving])  # else it would go on with another file that gets the descriptor's number
        if await self._chosen.engine.close():
            os.close(self._opened.fd)


def open_device(path: Path, settings: WalSettings, *, create: bool = True, exclusive: bool = True) -> FileDevice:
    """Open `path` for the log. Blocks. Raises WalRefused, also when another process has it open.

    Without `exclusive` it is opened although another process may have it open, which is to be fenced by a claim.

    A file that does not exist is created with the configured capacity. Its space is reserved, which takes
    milliseconds. It is written in full, which takes seconds, if the file system cannot tell which parts were written,
    or with strict fencing: another host may then claim the log while a write of zeros is under way on this one.
    """
    path = path.resolve()
    try:
        if path.is_file():
            warn_of_place(path, allow_volatile=settings.allow_volatile)
        elif create and not path.exists():
            check_place(path, allow_volatile=settings.allow_volatile)
            _create_file(path, settings)
        opened = _open(path, settings, exclusive=exclusive)
        try:
            engine = choose_engine(opened.fd, path, settings, direct=opened.direct, flushes=opened.is_flushed)
            return FileDevice(opened, engine)
        except WalRefused:
            os.close(opened.fd)
            raise
    except OSError as error:
        raise WalRefused(f"{path}: cannot open the WAL device: {error.strerror or error}") from error


def _open(path: Path, settings: WalSettings, *, exclusive: bool) -> OpenedDevice:
    status = path.stat()
    block_device = stat.S_ISBLK(status.st_mode)
    if not block_device and not stat.S_ISREG(status.st_mode):
        raise WalRefused(f"{path}: neither a block device nor a regular file")
    if block_device and not IS_LINUX:
        raise WalRefused(f"{path}: a block device, which only Linux can have as a log: set wal.path to a file")
    synced, why = choose_durability(settings, write_cache(status))
    # O_EXCL on a block device: refused while it is mounted or another process has it open the same way.
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_EXCL if block_device and exclusive else 0)
    direct = True
    try:
        fd = _open_direct(path, flags | (O_DSYNC if synced else 0), exclusive=exclusive)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        direct = False
        if settings.durability == "direct" and settings.allow_volatile:
            why = "writes go through the page cache and are not flushed (durability=direct, allow_volatile)"
        else:
            _LOG.warning("the file system refuses O_DIRECT: using buffered writes that are flushed", path=str(path))
            synced = True
            why = "the file system refuses O_DIRECT, so each write goes through the page cache and is flushed"
        fd = _open_locked(path, flags | (O_DSYNC if synced else 0), exclusive=exclusive)
    if block_device and sector_bytes(fd) > PAGE_BYTES:
        os.close(fd)
        raise WalRefused(f"{path}: sectors of more than {PAGE_BYTES} bytes")
    return OpenedDevice(fd, path, os.lseek(fd, 0, os.SEEK_END), block_device, direct, synced, why)


def _open_direct(path: Path, flags: int, *, exclusive: bool) -> int:
    """Open with O_DIRECT and read a page: some file systems refuse only the read. Raises EINVAL without O_DIRECT."""
    if not O_DIRECT:
        raise OSError(errno.EINVAL, "the platform has no O_DIRECT")
    fd = _open_locked(path, flags | O_DIRECT, exclusive=exclusive)
    try:
        if os.lseek(fd, 0, os.SEEK_END) >= PAGE_BYTES:
            read_all(fd, 0, aligned_buffer(PAGE_BYTES))
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_locked(path: Path, flags: int, *, exclusive: bool) -> int:
    """Open and, if exclusive, lock. Raises WalInUse if another process has it open.

    A process that was killed holds its lock until the kernel has completed its writes, up to 10 ms after its end was
    reported. So a lock that is held is tried again for a second.
    """
    if not exclusive:
        return os.open(path, flags)
    for _ in range(_LOCK_RETRIES):
        with suppress(WalInUse):
            return _lock(path, flags)
        sleep(_LOCK_RETRY_S)
    return _lock(path, flags)


def _lock(path: Path, flags: int) -> int:
    """Open and lock. Raises WalInUse if another process has it open."""
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise WalInUse(f"{path}: in use: mounted, or open in another process") from error
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise WalInUse(f"{path}: in use by another process: stop the node that has it first") from error
    return fd


def choose_durability(settings: WalSettings, cache: str) -> tuple[bool, str]:
    """Return whether each write is to be flushed, and why. `cache` is as the device reports it, or "unknown"."""
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
    """Return the folder under /sys with `entry`, of the disk that a path is or is stored on."""
    number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for folder in (device, device.resolve().parent):  # a partition's queue is its disk's
        if (folder / entry).exists():
            return folder
    return None


def _create_file(path: Path, settings: WalSettings) -> None:
    """Create a file whose space is reserved, atomically."""
    size_bytes = settings.capacity_bytes
    new = path.with_name(f"{path.name}.new")
    try:
        # One folder at most: a mistyped path must not create a tree, nor hide a missing mount.
        if not path.parent.exists():
            path.parent.mkdir(exist_ok=True)
            sync_folder(path.parent.parent)
        fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            reserve(fd, 0, size_bytes)
            # Else nothing was reserved, or the file system cannot tell what was written.
            if settings.fencing == "strict" or unwritten_ranges(fd, size_bytes) != [(0, size_bytes)]:
                fill_file(fd, 0, size_bytes)
            sync(fd)
        finally:
            os.close(fd)
        new.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise WalRefused(
            f"{path}: cannot create a WAL file of {size_bytes} bytes: {error.strerror or error}"
        ) from error


def _reserve_unwritten(fd: int, size_bytes: int) -> list[tuple[int, int]]:
    """Reserve the ranges that were never written, and return them. Raises OSError."""
    ranges = unwritten_ranges(fd, size_bytes)
    for start, end in ranges:
        reserve(fd, start, end)
    return ranges


def unwritten_ranges(fd: int, size_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges that the file system knows as holes, reserved or not; none if it does not know."""
    ranges = []
    end = 0
    try:
        while (start := os.lseek(fd, end, os.SEEK_HOLE)) < size_bytes:
            try:
                end = min(os.lseek(fd, start, os.SEEK_DATA), size_bytes)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                end = size_bytes  # a hole up to the end
            ranges.append((start, end))
    except OSError as error:
        if error.errno not in {errno.ENXIO, errno.EINVAL, errno.EOPNOTSUPP}:
            raise
    return ranges


def fill_file(fd: int, start: int, end: int) -> None:
    """Write zeros from `start` to `end`, durably, so that a later write there allocates nothing."""
    reserve(fd, start, end)
    zeros = aligned_buffer(_FILL_BYTES)
    for position in range(start, end, _FILL_BYTES):
        write_all(fd, position, zeros[: end - position])
    sync(fd)
    drop_from_cache(fd)


def sector_bytes(fd: int) -> int:
    """Return the logical sector size of a block device."""
    return int.from_bytes(fcntl.ioctl(fd, _BLKSSZGET, pack("I", 0)), "little")


def extend_file(path: Path, size_bytes: int) -> None:
    """Extend the file of a stopped node's log to `size_bytes`, for a resize. Devices and larger files are unchanged."""
    path = path.resolve()
    try:
        if not path.is_file() or path.stat().st_size >= size_bytes:
            return
        fd = _open_locked(path, os.O_RDWR | os.O_CLOEXEC, exclusive=True)
        try:
            fill_file(fd, os.fstat(fd).st_size, size_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        raise WalRefused(f"{path}: cannot extend to {size_bytes} bytes: {error.strerror or error}") from error


def shorten_file(path: Path, size_bytes: int) -> None:
    """Truncate the file of a log to `size_bytes`, after a resize."""
    path = path.resolve()
    if path.is_file() and path.stat().st_size > size_bytes:
        os.truncate(path, size_bytes)
