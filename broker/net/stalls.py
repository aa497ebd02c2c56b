"""Which clients keep memory by not moving: in the middle of a frame, or before answers that they do not read. Pure.

It is looked at only while others wait for that memory. Progress is counted in looks, a fixed number of which make up
the time allowed: a process that was stopped for a while finds nobody late.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

LOOKS = 5
"""Looks without progress that end a connection."""
PROGRESS_PARTS = 10
"""Progress is one part in so many of the whole: so no frame takes longer than so many times the time allowed."""

Key = TypeVar("Key", bound=Hashable)


class Transfer(NamedTuple):
    """A frame that has not come whole, or answers that wait to be read."""

    what: object
    """Known by identity: the next one of a connection is another one."""
    size_bytes: int
    """Of the frame, or of the answers left."""
    moved_bytes: int
    """Grows with what has come, or was read; only differences count."""


class Progress(NamedTuple):
    """A transfer as of its last progress, and the looks since."""

    transfer: Transfer
    looks: int = 0


class Look(NamedTuple, Generic[Key]):
    """Outcome of a look."""

    seen: Mapping[Key, Progress]
    """For the next look."""
    stalled: list[Key]


def look(seen: Mapping[Key, Progress], transfers: Iterable[tuple[Key, Transfer]]) -> Look[Key]:
    """Compare the transfers under way with those of the look before."""
    now: dict[Key, Progress] = {}
    stalled: list[Key] = []
    for key, each in transfers:
        before = seen.get(key)
        if before is None or before.transfer.what is not each.what:
            now[key] = Progress(each)
            continue
        moved = each.moved_bytes - before.transfer.moved_bytes
        if moved * PROGRESS_PARTS >= each.size_bytes:
            now[key] = Progress(each)
        elif before.looks + 1 >= LOOKS:
            stalled.append(key)
        else:
            now[key] = Progress(before.transfer, before.looks + 1)
    return Look(now, stalled)
