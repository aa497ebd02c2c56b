"""Plans the ranged GETs of an object, and chooses the class of reads that comes next. Pure: data in, plan out.

The unit is the data block: ranges begin and end where blocks do, so reads are aligned to blocks by construction and no
byte is fetched twice. Neighbours are merged because a call costs more than a few bytes. A long run is cut where that
keeps idle connections busy, and is read in as few calls as possible while other work waits (adaptive read size).
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import NamedTuple

FAIR_TURN = 8
"""Every FAIR_TURN-th grant goes to the least urgent class that waits, so that no class starves."""


class Priority(IntEnum):
    """Classes of reads, most urgent first."""

    TAIL = 0
    """Reads near the end of a stream, for which a reader waits."""
    CATCH_UP = 1
    """Reads of history, for which a reader waits."""
    READ_AHEAD = 2
    """Reads that no reader waits for yet."""
    COMPACTION = 3


class ByteRange(NamedTuple):
    """Bytes [start, end) of an object."""

    start: int
    end: int


class PlannedGet(NamedTuple):
    """Byte range of one GET, and the indexes of the requested ranges that it covers."""

    start: int
    end: int
    members: Sequence[int]


def plan_gets(
    ranges: Sequence[ByteRange], *, gap_bytes_max: int, read_bytes_max: int, split_bytes_min: int, idle: int
) -> list[PlannedGet]:
    """Merge overlapping, adjacent and near ranges, and cut what is too long between ranges.

    A GET is at most `read_bytes_max` long unless a single range is longer. With `idle` > 1 connections and few bytes to
    read, GETs become shorter, down to `split_bytes_min`.
    """
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    total = sum(span.end - span.start for span in ranges)
    target = min(read_bytes_max, max(split_bytes_min, -(-total // max(1, idle))))
    gets: list[PlannedGet] = []
    members: list[int] = []
    start = end = 0
    for index in order:
        span = ranges[index]
        if members and (
            span.start > end + gap_bytes_max or (span.start >= end and max(end, span.end) - start > target)
        ):
            gets.append(PlannedGet(start, end, tuple(members)))
            members = []
        if not members:
            start, end = span
        members.append(index)
        end = max(end, span.end)
    if members:
        gets.append(PlannedGet(start, end, tuple(members)))
    return gets


def slots_by_priority(slots: int) -> Mapping[Priority, int]:
    """Return how many of `slots` each class may hold: fewer for the less urgent, so that tail reads find one free."""
    return {
        Priority.TAIL: slots,
        Priority.CATCH_UP: max(1, slots * 3 // 4),
        Priority.READ_AHEAD: max(1, slots // 2),
        Priority.COMPACTION: max(1, slots // 4),
    }


def choose_priority(
    waiting: AbstractSet[Priority], running: Mapping[Priority, int], limits: Mapping[Priority, int], turn: int
) -> Priority | None:
    """Return the class that gets the next free slot: the most urgent within its limit; at a fair turn, the least."""
    allowed = sorted(kind for kind in waiting if running.get(kind, 0) < limits[kind])
    if not allowed:
        return None
    return allowed[-1] if turn % FAIR_TURN == FAIR_TURN - 1 else allowed[0]
