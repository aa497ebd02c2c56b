"""Folders of nodes whose data is in memory, and is gone when they end.

A folder belongs to the process that holds its lock. A folder whose lock is free was left behind by a killed process,
and is removed by the next one.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from anabranch.platform import MEMORY_FOLDER

ROOM_BYTES: Final = 256 << 20
"""Free memory from which on it is used: containers often have 64 MiB there."""
PREFIX: Final = "anabranch-dev-"
LOCK: Final = "owner"
LEFT_S: Final = 60.0
"""Age from which on a folder without an owner is removed: a younger one may not be locked yet."""


class MemoryFolder:
    """A new folder, in memory if the machine has a file system there. `remove` ends it.

    Or the given folder of another process, which holds its lock.
    """

    def __init__(self, given: Path | None = None) -> None:
        self._lock: int | None = None
        if given is not None:
            self.path = given
            return
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_parent()))
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove_left(self.path)

    @property
    def is_in_memory(self) -> bool:
        """False if it is on a disk."""
        return self.path.parent == MEMORY_FOLDER

    def remove(self) -> None:
        """Remove the folder and all that is in it. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _parent() -> Path:
    try:
        found = os.statvfs(MEMORY_FOLDER)
        if found.f_bavail * found.f_frsize >= ROOM_BYTES and os.access(MEMORY_FOLDER, os.W_OK):
            return MEMORY_FOLDER
    except OSError:
        pass
    return Path(tempfile.gettempdir())


def _remove_left(new: Path) -> None:
    """Remove this user's folders beside a new one whose owners were killed."""
    now_s = new.stat().st_mtime
    for folder in new.parent.glob(f"{PREFIX}*"):
        try:
            status = folder.stat()
            if status.st_uid != os.getuid() or now_s - status.st_mtime < LEFT_S:
                continue
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            # Removed meanwhile, or its owner was killed before it could lock it, or while it removed it.
            shutil.rmtree(folder, ignore_errors=True)
            continue
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # its owner lives
        finally:
            os.close(lock)
