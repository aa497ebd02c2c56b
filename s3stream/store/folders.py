"""Folders that survive a power cut: a folder is durable once the folder that contains it is synced."""

from itertools import takewhile
from pathlib import Path

from anabranch.platform import sync_folder


def create_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder with a mode (less the umask) and its missing parents, durably. Raises OSError.

    One that exists is left as it is.
    """
    created = list(takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    path.mkdir(mode, parents=True, exist_ok=True)
    for folder in created:
        sync_folder(folder.parent)
