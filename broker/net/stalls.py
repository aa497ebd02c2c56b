"""Which clients have stopped in the middle of a frame that memory is reserved for. Pure.

It is looked at only while others wait for that memory. Progress is counted in looks, a fixed number of which make up
the time allowed: a process that was stopped for a while finds nobody late.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from wal.interface import Buffer

LOOKS = 5
"""Looks without progress that end a connection."""
PROGRESS_PARTS = 10
"""Progress is one part in so many of the frame: so no frame takes longer than so many times the time allowed."""

Key = TypeVar("Key", bound=Hashable)


class Arriving(NamedTuple):
    """A frame that has not come whole."""

    frame: Buffer
    """Known by identity: the next one of a connection is another one."""
    received_bytes: int


class Progress(NamedTuple):
    """A frame as of its last progress, and the looks since."""

    arriving: Arriving
    looks: int = 0


class Look(NamedTuple, Generic[Key]):
    """Outcome of a look."""

    seen: Mapping[Key, Progress]
    """For the next look."""
    stalled: list[Key]


def look(seen: Mapping[Key, Progress], arriving: Iterable[tuple[Key, Arriving]]) -> Look[Key]:
    """Compare the frames that arrive with those of the look before."""
    now: dict[Key, Progress] = {}
    stalled: list[Key] = []
    for key, each in arriving:
        before = seen.get(key)
        if before is None or before.arriving.frame is not each.frame:
            now[key] = Progress(each)
            continue
        came = each.received_bytes - before.arriving.received_bytes
        if came * PROGRESS_PARTS >= len(each.frame):
            now[key] = Progress(each)
        elif before.looks + 1 >= LOOKS:
            stalled.append(key)
        else:
            now[key] = Progress(before.arriving, before.looks + 1)
    return Look(now, stalled)
