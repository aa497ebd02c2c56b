"""Check of the place of a new log file: not under /dev, and not in memory or in a container's layer unless allowed.

Otherwise a renamed disk (`/dev/nosuch`) would become a file in memory, and a path without a volume a file that is
removed with its container. Both work until the data is needed.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from anabranch.platform import IS_LINUX, MEMORY_FOLDER
from anabranch.wal.interface import WalRefused

_LOG = structlog.get_logger(__name__)
_DEVICES: Final = Path("/dev")
_STATFS_BYTES: Final = 256
"""More than the size of `struct statfs` on any Linux. Its first long is the type."""
_IN_MEMORY: Final = "in memory: its records are lost at a reboot"
_VOLATILE: Final = {
    0x01021994: ("tmpfs", _IN_MEMORY),
    0x858458F6: ("ramfs", _IN_MEMORY),
    0x794C7630: ("overlay", "in a container's own layer: its records are removed with the container"),
}
"""Magic numbers of file systems, from statfs(2)."""


def file_system_type(folder: Path) -> int:
    """Return the magic number of the file system that `folder` is on; 0: unknown. Raises OSError."""
    if not IS_LINUX:
        return 0  # the structure that statfs(2) fills differs, and so do the numbers
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), status) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF


def check_place(path: Path, *, allow_volatile: bool, type_of: Callable[[Path], int] = file_system_type) -> None:
    """Raise WalRefused if no file may be created at `path`, which is absolute and without links. Raises OSError."""
    if path.is_relative_to(_DEVICES) and not path.is_relative_to(MEMORY_FOLDER):
        raise WalRefused(f"{path}: no such device, and no file is created under {_DEVICES}: check wal.path")
    folder = next(parent for parent in path.parents if parent.exists())
    volatile = _VOLATILE.get(type_of(folder))
    if volatile is not None and not allow_volatile:
        name, why = volatile
        raise WalRefused(
            f"{path}: a log created here ({name}) would be {why}: set a path on a disk or a volume (wal.path, or "
            "node.data_dir), or set wal.allow_volatile if losing acknowledged records is acceptable"
        )


def warn_of_place(path: Path, *, allow_volatile: bool, type_of: Callable[[Path], int] = file_system_type) -> None:
    """Log a warning if an existing file is in a place where none would be created. It is opened all the same."""
    volatile = _VOLATILE.get(type_of(path.parent))
    if volatile is not None and not allow_volatile:
        name, why = volatile
        _LOG.warning(f"the log is {why}", path=str(path), file_system=name)
