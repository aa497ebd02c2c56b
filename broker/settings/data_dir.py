"""The data directory, and the lock that keeps a second process out of it."""

import fcntl
import os
from pathlib import Path

LOCK_NAME = "LOCK"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DataDirError(Exception):
    """The data directory cannot be used; the text is the one line to show."""


class DataDirLock:
    """Holds the directory for this process until `release`, or the process's end, however it comes."""

    def __init__(self, path: Path) -> None:
        """Create the directory if need be and lock it. Raises DataDirError."""
        try:
            path.mkdir(parents=True, exist_ok=True)
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
        """Names this lock among all of all machines: boot of the machine, file system, file. Empty: cannot be known.

        Whoever holds a lock of the same name knows that the process which held it before is gone.
        """
        try:
            boot = BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""
        status = os.fstat(self._fd)
        return f"{boot}:{status.st_dev}:{status.st_ino}"

    def release(self) -> None:
        """Let the directory go; again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
