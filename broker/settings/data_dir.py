"""The data directory, and the lock that excludes a second process."""

import fcntl
import os
from pathlib import Path

from s3stream.store.folders import create_folder

LOCK_NAME = "LOCK"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DataDirError(Exception):
    """The data directory cannot be used. The text is the one line to show."""


class DataDirLock:
    """Lock on the data directory, held until `release` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Create the directory if it is missing, durably, and lock it. Raises DataDirError."""
        try:
            create_folder(path)
            self._fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DataDirError(f"data directory {path}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._fd, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise DataDirError(f"data directory {path}: in use by another process (pid {holder})") from None
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    @property
    def lock_id(self) -> str:
        """Globally unique id of this lock: boot id of the machine, file system, file. Empty if it is unknown.

        A process that holds a lock of the same id proves that the previous holder is gone.
        """
        try:
            boot = BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""
        status = os.fstat(self._fd)
        return f"{boot}:{status.st_dev}:{status.st_ino}"

    def release(self) -> None:
        """Release the directory. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
