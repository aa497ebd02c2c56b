"""Plans the second level of compaction: stream objects (SO) of one stream become fewer, larger ones.

Pure. Objects of similar size are joined tier by tier, so that a byte is written about once per tier in whatever order
objects arrive. A group is one contiguous run with limits in size and count. Within a group, pieces of at least 5 MiB
are copied by the store and never pass through the node. Shorter pieces are read and uploaded, and gathered to at least
5 MiB before a copy, the minimum size of an upload's parts. Blocks before the stream's start are dropped.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import RangeLocation
from anabranch.s3stream.object.format import BLOCK_HEADER, IndexEntry
from anabranch.s3stream.store.rules import PART_BYTES_MIN


class JoinGroup(NamedTuple):
    """Objects of a stream that become one."""

    stream_id: int
    stream_start: int
    objects: Sequence[RangeLocation]


COPY_BYTES_MAX = 1024 * 1024 * 1024
"""Longest part that is copied in one call, so that several copies run concurrently."""


class RewriteSegment(NamedTuple):
    """Blocks to read and upload, object by object."""

    blocks: Sequence[tuple[int, IndexEntry]]
    """Pairs of object id and entry."""


class CopySegment(NamedTuple):
    """Adjacent blocks of one object that the store copies."""

    object_id: int
    entries: Sequence[IndexEntry]


def plan_groups(
    objects: Sequence[RangeLocation], stream_start: int, settings: CompactionSettings, *, full: bool
) -> list[Sequence[RangeLocation]]:
    """Return the groups of neighbours, given in offset order, that become one object each.

    `full` joins all that the limits allow.
    """
    groups: list[Sequence[RangeLocation]] = []
    least = 2 if full else settings.stream_group_min
    newest = len(objects)
    while newest > 0:
        oldest = _window(objects, newest, settings, full=full)
        if newest - oldest >= least and (full or _is_balanced(objects[oldest:newest])):
            groups.append(objects[oldest:newest])
            newest = oldest
        else:
            newest -= 1
            if _dead_share(objects[newest], stream_start) > settings.stream_dead_ratio:
                groups.append(objects[newest : newest + 1])
    return groups[::-1]


def batch_groups(groups: Sequence[JoinGroup], settings: CompactionSettings) -> list[list[JoinGroup]]:
    """Divide groups into batches for workers, store by store, the most expensive first.

    Several groups together cost at most `memory_bytes`, so that a worker can join them at the same time.
    """
    batches: list[list[JoinGroup]] = []
    room, last_store = 0, ""
    for store, cost, group in sorted(
        ((group.objects[0].object.store, _cost_of(group, settings), group) for group in groups),
        key=lambda each: (each[0], -each[1]),
    ):
        if cost > room or store != last_store:
            batches.append([])
            room, last_store = settings.memory_bytes, store
        batches[-1].append(group)
        room -= cost
    return batches


def _cost_of(group: JoinGroup, settings: CompactionSettings) -> int:
    """Return the cost of joining a group, in bytes: two reads of each object, one write, and the data.

    Data that the store copies counts as well: the store needs time for it.
    """
    calls = 2 * len(group.objects) + 1
    return sum(each.object.size_bytes for each in group.objects) + calls * settings.call_cost_bytes


def _window(objects: Sequence[RangeLocation], newest: int, settings: CompactionSettings, *, full: bool) -> int:
    """Return the index of the oldest neighbour to join with the objects before `newest`.

    No object in the window is larger than all newer ones together, unless `full`.
    """
    oldest = newest - 1
    total = objects[oldest].object.size_bytes
    while oldest > 0 and newest - oldest < settings.stream_group_max:
        older, first = objects[oldest - 1], objects[oldest]
        size = older.object.size_bytes
        if (
            older.range.end_offset != first.range.start_offset
            or older.object.store != first.object.store
            or total + size > settings.stream_object_bytes_max
            or (size > total and not full)
        ):
            break
        total += size
        oldest -= 1
    return oldest


def _is_balanced(objects: Sequence[RangeLocation]) -> bool:
    """Return whether no object is larger than the others together. Otherwise it would be rewritten for little."""
    sizes = [each.object.size_bytes for each in objects]
    return 2 * max(sizes) <= sum(sizes)


def _dead_share(location: RangeLocation, stream_start: int) -> float:
    """Return the share of an object's offsets that is before the stream's start."""
    start, end = location.range.start_offset, location.range.end_offset
    return max(0, stream_start - start) / (end - start)


def plan_segments(group: Sequence[tuple[int, Sequence[IndexEntry]]]) -> list[RewriteSegment | CopySegment]:
    """Return the segments that make one object of a group's live blocks, given by object in offset order."""
    segments: list[RewriteSegment | CopySegment] = []
    pending: list[tuple[int, IndexEntry]] = []
    pending_bytes = 0
    for object_id, entries in group:
        count = 0
        if 0 < pending_bytes < PART_BYTES_MIN:
            count = _blocks_for(entries, PART_BYTES_MIN - pending_bytes)
        if sum(entry.size_bytes for entry in entries[count:]) < PART_BYTES_MIN:
            count = len(entries)
        pending += [(object_id, entry) for entry in entries[:count]]
        pending_bytes += sum(map(_bytes_at_least, entries[:count]))
        if count < len(entries):
            if pending:
                segments.append(RewriteSegment(pending))
                pending, pending_bytes = [], 0
            segments += [CopySegment(object_id, part) for part in _copy_parts(entries[count:])]
    if pending:
        segments.append(RewriteSegment(pending))
    return segments


def _bytes_at_least(entry: IndexEntry) -> int:
    """Return the bytes that a block adds to a part when it is joined to the block before."""
    return entry.size_bytes - BLOCK_HEADER.size


def _blocks_for(entries: Sequence[IndexEntry], wanted_bytes: int) -> int:
    """Return how many leading blocks give that many bytes, or their number if all together give fewer."""
    size = 0
    for count, entry in enumerate(entries):
        if size >= wanted_bytes:
            return count
        size += _bytes_at_least(entry)
    return len(entries)


def _copy_parts(entries: Sequence[IndexEntry]) -> Iterator[Sequence[IndexEntry]]:
    """Cut at block boundaries into parts of limited size. No part is shorter than the minimum."""
    part: list[IndexEntry] = []
    left = sum(entry.size_bytes for entry in entries)
    size = 0
    for entry in entries:
        if size + entry.size_bytes > COPY_BYTES_MAX and size >= PART_BYTES_MIN and left >= PART_BYTES_MIN:
            yield part
            part, size = [], 0
        part.append(entry)
        size += entry.size_bytes
        left -= entry.size_bytes
    yield part
