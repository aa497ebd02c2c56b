"""The data folder of a running node, from its open files."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def data_folder(pid: int) -> Path:
    """Return the folder that a process has locked as its data folder."""
    (lock,) = (path for path in _open_files(pid) if path.name == "LOCK")
    return lock.parent.parent


def _open_files(pid: int) -> Iterator[Path]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield descriptor.readlink()
