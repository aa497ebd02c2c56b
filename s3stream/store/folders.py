"""Folders that survive a power cut: a folder is durable once the folder that contains it is synced."""

import os
from itertools import takewhile
from pathlib import Path


def create_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder with a mode (less the umask) and its missing parents, durably. Raises OSError.

    One that exists is left as it is.
    """
    created = list(takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(mode, parents=True, exist_ok=True)
    for folder in created:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
