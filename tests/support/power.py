"""Files after a power cut: what was not synced is lost, bytes as well as the entries of directories.

`PowerCut` watches the calls of this process that make something durable. After a cut a directory has the entries that
it had at its last fsync, and a file the bytes that it had at its own. This is the worst that POSIX allows: most file
systems keep more.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest


class PowerCut:
    """Watches inside `with`. `root` and what is in it are durable at the beginning."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._patch = pytest.MonkeyPatch()
        self._bytes: dict[tuple[int, int], bytes] = {}
        """Durable content of each file, by device and inode."""
        self._entries: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        """Durable entries of each directory."""
        self._kept: list[int] = []
        """Descriptors of all synced files, so that no inode is used again."""

    def __enter__(self) -> Self:
        for path in (self.root, *self.root.rglob("*")):
            fd = os.open(path, os.O_RDONLY)
            self._synced(fd)
            os.close(fd)
        for name in ("fsync", "fdatasync"):
            self._patch.setattr(os, name, self._watching(getattr(os, name)))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._patch.undo()
        for fd in self._kept:
            os.close(fd)

    def survivors(self) -> dict[str, bytes]:
        """Return the files under `root` that a power cut leaves, by relative path, with their content."""
        found: dict[str, bytes] = {}
        status = self.root.stat()
        self._collect("", (status.st_dev, status.st_ino), found)
        return found

    def is_durable(self, path: Path) -> bool:
        """Return whether all bytes that a file has now are durable."""
        status = path.stat()
        return self._bytes.get((status.st_dev, status.st_ino)) == path.read_bytes()

    def _collect(self, prefix: str, folder: tuple[int, int], found: dict[str, bytes]) -> None:
        for name, identity in self._entries.get(folder, {}).items():
            if identity in self._entries:
                self._collect(f"{prefix}{name}/", identity, found)
            else:
                found[prefix + name] = self._bytes.get(identity, b"")

    def _watching(self, real: Callable[[Any], None]) -> Callable[[Any], None]:
        def sync(fd: Any) -> None:
            real(fd)
            self._synced(fd if isinstance(fd, int) else fd.fileno())

        return sync

    def _synced(self, fd: int) -> None:
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if stat.S_ISDIR(status.st_mode):
            entries = {}
            for entry in os.scandir(f"/proc/self/fd/{fd}"):
                inside = entry.stat(follow_symlinks=False)
                entries[entry.name] = (inside.st_dev, inside.st_ino)
            self._entries[identity] = entries
        else:
            copy = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
            self._kept.append(copy)
            with os.fdopen(os.dup(copy), "rb") as file:
                self._bytes[identity] = file.read()
