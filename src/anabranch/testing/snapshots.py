"""Snapshots of a test broker: copies of what its nodes have stored, from which they start again."""

import os
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "snapshots"
OWN: Final = frozenset({FOLDER, "owner", "LOCK", "log", "broker.pem", "plain-users"})
"""Names in a broker's folder that belong to its processes. Their files stay the same over all restores.

A node that finds the same lock as before knows that no other process holds its id, and need not wait for its lease.
"""
OBJECTS: Final = "objects"
"""Name of folders whose files never change, so that a link is a copy."""
ELSEWHERE: Final = ("catalog.url", "objects.path", "objects.store", "wal.path")
"""Settings that place data outside the broker's folder."""
PART_BYTES: Final = 1 << 20
ZEROS: Final = bytes(PART_BYTES)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Snapshot:
    """A broker as `Broker.freeze` found it. What it holds is freed with it, and with the broker."""

    path: Path
    ahead_ms: int
    """Time by which the clocks were ahead."""


def take(folder: Path, ahead_ms: int) -> Snapshot:
    """Copy what is stored in a broker's folder, while no process changes it. Raises OSError, and leaves nothing."""
    taken = folder / FOLDER
    taken.mkdir(mode=0o700, exist_ok=True)
    number = max((int(each.name) for each in taken.iterdir()), default=0) + 1
    snapshot = Snapshot(taken / str(number), ahead_ms)
    weakref.finalize(snapshot, shutil.rmtree, snapshot.path, ignore_errors=True)
    _copy(folder, snapshot.path, linked=False)
    return snapshot


def put_back(snapshot: Snapshot, folder: Path) -> None:
    """Replace what is stored in a broker's folder, while none of its nodes runs. Raises OSError."""
    _remove(folder)
    _copy(snapshot.path, folder, linked=False)


def elsewhere(settings: Mapping[str, object]) -> Iterable[str]:
    """Return the names of settings that place data where a snapshot does not reach."""
    return [name for name in ELSEWHERE if name in settings]


def _stored(folder: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from (each for each in entries if each.name not in OWN)


def _remove(folder: Path) -> None:
    for each in _stored(folder):
        if not each.is_dir(follow_symlinks=False):
            Path(each).unlink()
        elif each.name == OBJECTS:
            shutil.rmtree(each)
        else:
            _remove(Path(each))


def _copy(source: Path, target: Path, *, linked: bool) -> None:
    target.mkdir(mode=0o700, exist_ok=True)
    for each in _stored(source):
        if each.is_dir(follow_symlinks=False):
            _copy(Path(each), target / each.name, linked=linked or each.name == OBJECTS)
        elif linked:
            os.link(each, target / each.name)
        else:
            _copy_file(each, target / each.name)


def _copy_file(source: os.DirEntry[str], target: Path) -> None:
    """Copy a file, with holes in place of zeros, of which a log has many."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with Path(source).open("rb", buffering=0) as read, os.fdopen(descriptor, "wb", buffering=0) as written:
        while part := read.read(PART_BYTES):
            if part == ZEROS[: len(part)]:
                written.seek(len(part), os.SEEK_CUR)
            else:
                written.write(part)
        written.truncate(read.tell())
