"""Where a log's file may be made: never under /dev, and not in memory or in a container's layer unless told to.

A renamed disk (`/dev/nosuch`) would else become a file in memory, and a path without a volume a file that goes with its
container: both serve well until the data is needed.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from wal.interface import WalRefused

_LOG = structlog.get_logger(__name__)
_DEVICES: Final = Path("/dev")
_STATFS_BYTES: Final = 256
"""More than `struct statfs` takes on any Linux; its first long is the type."""
_IN_MEMORY: Final = "in memory: its records are gone after a reboot"
_VOLATILE: Final = {
    0x01021994: ("tmpfs", _IN_MEMORY),
    0x858458F6: ("ramfs", _IN_MEMORY),
    0x794C7630: ("overlay", "in a container's own layer: its records go with the container"),
}
"""Magic numbers of file systems, from statfs(2)."""


def file_system_type(folder: Path) -> int:
    """Return the magic number of the file system that `folder` is on. Raises OSError."""
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(folder), status) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF


def check_place(path: Path, *, allow_volatile: bool, type_of: Callable[[Path], int] = file_system_type) -> None:
    """Raise WalRefused if no file may be made at `path`, which is absolute and without links; OSError."""
    if path.is_relative_to(_DEVICES):
        raise WalRefused(f"{path}: no such device, and nothing is made under {_DEVICES}: check wal.path")
    folder = next(parent for parent in path.parents if parent.exists())
    volatile = _VOLATILE.get(type_of(folder))
    if volatile is not None and not allow_volatile:
        name, why = volatile
        raise WalRefused(
            f"{path}: a log made here ({name}) lies {why}: name a path on a disk or a volume (wal.path, or "
            "node.data_dir), or set wal.allow_volatile if losing acknowledged records is all right"
        )


def warn_of_place(path: Path, *, allow_volatile: bool, type_of: Callable[[Path], int] = file_system_type) -> None:
    """Say so if an existing file lies where none would be made: its records may be all there are, so it is opened."""
    volatile = _VOLATILE.get(type_of(path.parent))
    if volatile is not None and not allow_volatile:
        name, why = volatile
        _LOG.warning(f"the log lies {why}", path=str(path), file_system=name)
