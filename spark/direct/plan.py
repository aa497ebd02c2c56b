"""Divides a read into tasks. Pure: slices of objects in, tasks out.

Objects stay whole while there are enough tasks, so that each index is read once and neighbouring blocks are one GET. An
object larger than a task's share is cut, first between its ranges and then by offsets within them. A task is never much
smaller than `TASK_BYTES_MIN`, because starting one costs CPU in the JVM and in a Python worker.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from anabranch.tables.ranges import PartitionRange

TASK_BYTES_MIN: Final = 4 << 20
TASK_BYTES_MAX: Final = 128 << 20
INT64_MAX: Final = 2**63 - 1
SLACK: Final = 1.25
"""Factor by which an object may exceed a task's share before it is cut."""


class ObjectSlice(NamedTuple):
    """Offsets [start, end) of a partition that are in one object."""

    object_id: int
    object_bytes: int
    store: str
    stream_id: int
    stored_stream_id: int
    """Stream id in the object's index. A clone refers to blocks of the original stream."""
    range_index: int
    """Index of the partition's range in the caller's list."""
    start_offset: int
    end_offset: int
    size_bytes: int
    """Approximate size."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """Input of one task. It can be pickled, and contains no secret."""

    slices: Sequence[ObjectSlice]
    ranges: Mapping[int, PartitionRange]


def plan_tasks(
    slices: Sequence[ObjectSlice],
    *,
    parallelism: int,
    bytes_min: int = TASK_BYTES_MIN,
    bytes_max: int = TASK_BYTES_MAX,
) -> list[Sequence[ObjectSlice]]:
    """Return tasks of similar size.

    Their number is `parallelism`, less if they would be smaller than `bytes_min`, and a multiple of it if they would be
    larger than `bytes_max`. Slices of an object stay together where possible, in the given order.
    """
    total = sum(part.size_bytes for part in slices)
    if not total:
        return [slices] if slices else []
    count = min(parallelism, -(-total // bytes_min))
    count *= -(-total // (count * bytes_max))  # full waves: a last wave of one task would leave the other cores idle
    share = -(-total // count)
    by_object: dict[int, list[ObjectSlice]] = defaultdict(list)
    for part in slices:
        by_object[part.object_id].append(part)
    units: list[list[ObjectSlice]] = []
    for group in by_object.values():
        units += _cut(group, share)
    # Largest first, each to the smallest task so far.
    heap = [(0, number) for number in range(count)]
    tasks: list[list[ObjectSlice]] = [[] for _ in range(count)]
    for unit in sorted(units, key=lambda unit: -_bytes(unit)):
        size, number = heapq.heappop(heap)
        tasks[number] += unit
        heapq.heappush(heap, (size + _bytes(unit), number))
    return [join_neighbours(task) for task in tasks if task]


def join_neighbours(slices: Sequence[ObjectSlice]) -> list[ObjectSlice]:
    """Sort slices by object, stream and offset, and join those that follow each other in one object."""
    joined: list[ObjectSlice] = []
    for part in sorted(slices, key=lambda part: (part.object_id, part.stream_id, part.start_offset)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and (last.object_id, last.range_index) == (part.object_id, part.range_index)
            and last.end_offset == part.start_offset
        ):
            joined[-1] = last._replace(end_offset=part.end_offset, size_bytes=last.size_bytes + part.size_bytes)
        else:
            joined.append(part)
    return joined


def _bytes(slices: Sequence[ObjectSlice]) -> int:
    return sum(part.size_bytes for part in slices)


def _cut(group: Sequence[ObjectSlice], share: int) -> list[list[ObjectSlice]]:
    """Return an object's slices in groups of at most about a share."""
    if _bytes(group) <= share * SLACK:
        return [list(group)]
    units: list[list[ObjectSlice]] = []
    gathered: list[ObjectSlice] = []
    for part in group:
        for cut in _split(part, share):
            if gathered and _bytes(gathered) + cut.size_bytes > share * SLACK:
                units.append(gathered)
                gathered = []
            gathered.append(cut)
    units.append(gathered)
    return units


def _split(part: ObjectSlice, share: int) -> list[ObjectSlice]:
    """Cut a slice by its offsets if it is larger than a share."""
    offsets = part.end_offset - part.start_offset
    count = min(-(-part.size_bytes // share), offsets) if part.size_bytes > share * SLACK else 1
    bounds = [part.start_offset + offsets * at // count for at in range(count + 1)]
    size = part.size_bytes // count
    return [
        part._replace(start_offset=start, end_offset=end, size_bytes=size) for start, end in itertools.pairwise(bounds)
    ]
