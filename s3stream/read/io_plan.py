"""Decides how wanted ranges of an object become ranged GETs, and whose turn it is. Pure: data in, plan out.

The unit is the data block: ranges begin and end where blocks do, so reads are aligned to blocks by construction and no
byte is fetched twice. Neighbours are merged because a call costs more than a few bytes; a long run is cut where that
keeps idle connections busy, and goes in as few calls as possible where other work waits (adaptive read size).
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import NamedTuple

FAIR_TURN = 8
"""Every so many grants the least urgent class that waits goes first: nobody starves."""


class Priority(IntEnum):
    """Classes of reads, most urgent first."""

    TAIL = 0
    """A reader near the end of its stream waits."""
    CATCH_UP = 1
    """A reader of history waits."""
    READ_AHEAD = 2
    """Nobody waits yet."""
    COMPACTION = 3


class Span(NamedTuple):
    """Bytes [start, end) of an object."""

    start: int
    end: int


class Piece(NamedTuple):
    """One GET, and which of the wanted spans (by index) it brings."""

    start: int
    end: int
    members: Sequence[int]


def plan_pieces(
    spans: Sequence[Span], *, gap_bytes_max: int, read_bytes_max: int, split_bytes_min: int, idle: int
) -> list[Piece]:
    """Merge overlapping, adjacent and near spans, and cut what is too long between spans.

    A piece is at most `read_bytes_max` long unless a single span is longer. With `idle` > 1 connections and little to
    do, pieces get shorter, down to `split_bytes_min`.
    """
    order = sorted(range(len(spans)), key=spans.__getitem__)
    total = sum(span.end - span.start for span in spans)
    target = min(read_bytes_max, max(split_bytes_min, -(-total // max(1, idle))))
    pieces: list[Piece] = []
    members: list[int] = []
    start = end = 0
    for index in order:
        span = spans[index]
        if members and (
            span.start > end + gap_bytes_max or (span.start >= end and max(end, span.end) - start > target)
        ):
            pieces.append(Piece(start, end, tuple(members)))
            members = []
        if not members:
            start, end = span
        members.append(index)
        end = max(end, span.end)
    if members:
        pieces.append(Piece(start, end, tuple(members)))
    return pieces


def slots_by_priority(slots: int) -> Mapping[Priority, int]:
    """How many of `slots` each class may hold: the less urgent, the fewer, so that tail reads always find one free."""
    return {
        Priority.TAIL: slots,
        Priority.CATCH_UP: max(1, slots * 3 // 4),
        Priority.READ_AHEAD: max(1, slots // 2),
        Priority.COMPACTION: max(1, slots // 4),
    }


def choose(
    waiting: AbstractSet[Priority], running: Mapping[Priority, int], limits: Mapping[Priority, int], turn: int
) -> Priority | None:
    """The class that gets the next free slot: the most urgent within its limit; at a fair turn, the least urgent."""
    allowed = sorted(kind for kind in waiting if running.get(kind, 0) < limits[kind])
    if not allowed:
        return None
    return allowed[-1] if turn % FAIR_TURN == FAIR_TURN - 1 else allowed[0]
