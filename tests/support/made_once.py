"""Files and folders that tests make once for each machine, and keep in the folder of tools."""

import fcntl
import tempfile
from collections.abc import Callable
from pathlib import Path

from anabranch.spark.java import cache_folder


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """Return what `make` makes in the folder that it gets, from the folder of tools if it is there already."""
    target = cache_folder() / name
    with Path(f"{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                make(Path(folder)).rename(target)
    return target
