"""The data directory, and the lock that excludes a second process."""

import fcntl
import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path

import structlog

from anabranch.platform import boot_id
from anabranch.s3stream.store.folders import create_folder

_log = structlog.get_logger("node")

LOCK_NAME = "LOCK"


class DataDirError(Exception):
    """The data directory cannot be used. The text is the one line to show."""


class DataDirInUse(DataDirError):
    """Another process has the data directory."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"data directory {path}: in use by another process (pid {holder or 'unknown'})")
        self.holder = holder
        """Its id, or that of the process which it has the lock from; empty if it is unknown."""


class DataDirLock:
    """Lock on the data directory, held until `release` or the end of the process."""

    def __init__(self, path: Path, name: str = LOCK_NAME) -> None:
        """Create the directory if it is missing, durably, and lock it. Raises DataDirError."""
        self._path = path
        self._name = name
        try:
            self._created = [folder for folder in (path, *path.parents) if not folder.exists()]
            create_folder(path, 0o700)
            self._fd = os.open(path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirError(f"data directory {path}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(self._fd, path / name):
                raise BlockingIOError  # its holder has just removed it
        except OSError:
            holder = os.read(self._fd, 32).decode("ascii", "replace").strip()
            os.close(self._fd)
            raise DataDirInUse(path, holder) from None
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    @property
    def lock_id(self) -> str:
        """Globally unique id of this lock: boot id of the machine, file system, file. Empty if it is unknown.

        A process that holds a lock of the same id proves that the previous holder is gone.
        """
        boot = boot_id()
        if not boot:
            return ""
        status = os.fstat(self._fd)
        return f"{boot}:{status.st_dev}:{status.st_ino}"

    def fileno(self) -> int:
        """Return the descriptor of the lock's file. The lock is held until all copies of it are closed."""
        return self._fd

    def release(self) -> None:
        """Release the directory. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def release_unused(self) -> None:
        """Release the directory, and remove it if it was created for this lock and has nothing else.

        For commands, and starts of nodes that are refused, so that a mistyped name leaves nothing behind. Not for nodes
        that are registered: the next process proves by the id of this lock that the one before is gone, and a node may
        have nothing else in its directory.
        """
        if self._fd >= 0 and self._created:
            self._remove_empty()
        self.release()

    def _remove_empty(self) -> None:
        with suppress(OSError):
            if [each.name for each in self._path.iterdir()] == [self._name]:
                (self._path / self._name).unlink()
                for folder in self._created:
                    folder.rmdir()


def warn_if_readable(*paths: Path) -> None:
    """Log a warning for each directory or file that any user of the machine may read, enter or change.

    New ones are for their owner only. Earlier versions left the mode to the umask.
    """
    for path in paths:
        with suppress(OSError):
            if path.stat().st_mode & stat.S_IRWXO:
                _log.warning(
                    "any user of this machine may read secrets and records of the node",
                    path=str(path),
                    advice=f"chmod o-rwx {shlex.quote(str(path))}",
                )


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False
