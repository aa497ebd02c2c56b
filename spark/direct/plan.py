"""Cuts what is to be read into tasks. Pure: ranges of objects in, tasks out.

Whole objects while enough tasks remain, so that an index is read once and neighbours are one GET; an object that is
more than a task's share is cut, between its ranges first and then inside them, by offsets. A task is never much smaller
than `TASK_BYTES_MIN`: starting one costs a JVM and a Python worker CPU of their own.
"""

import heapq
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark.direct.transactions import AbortedTransaction

TASK_BYTES_MIN: Final = 4 << 20
TASK_BYTES_MAX: Final = 128 << 20
INT64_MAX: Final = 2**63 - 1
SLACK: Final = 1.25
"""An object may be so much more than a task's share before it is cut."""


class PartitionRange(NamedTuple):
    """Which records of a partition a task reads."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    aborted: Sequence[AbortedTransaction] = ()
    """Empty where uncommitted records are read, too."""


class ObjectSlice(NamedTuple):
    """Offsets [start, end) of a partition that lie in one object."""

    object_id: int
    object_bytes: int
    store: str
    stream_id: int
    stored_stream_id: int
    """The stream that the object's index names: the clone of a topic refers to blocks of another one."""
    range_index: int
    """Which partition: an index the caller knows."""
    start_offset: int
    end_offset: int
    size_bytes: int
    """About how many bytes they are."""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one task reads; pickles, and holds no secret."""

    slices: Sequence[ObjectSlice]
    ranges: Mapping[int, PartitionRange]


def plan_tasks(
    slices: Sequence[ObjectSlice],
    *,
    parallelism: int,
    bytes_min: int = TASK_BYTES_MIN,
    bytes_max: int = TASK_BYTES_MAX,
) -> list[Sequence[ObjectSlice]]:
    """Tasks of similar size: as many as run at once unless that makes them too small, so many again where too large.

    Pieces of an object stay together where they can, in the order given.
    """
    total = sum(part.size_bytes for part in slices)
    if not total:
        return [slices] if slices else []
    count = min(parallelism, -(-total // bytes_min))
    count *= -(-total // (count * bytes_max))  # full waves: a last one of one task would leave the others idle
    share = -(-total // count)
    by_object: dict[int, list[ObjectSlice]] = defaultdict(list)
    for part in slices:
        by_object[part.object_id].append(part)
    units: list[list[ObjectSlice]] = []
    for group in by_object.values():
        units += _cut(group, share)
    # Largest first, each to the task with least so far.
    heap = [(0, number) for number in range(count)]
    tasks: list[list[ObjectSlice]] = [[] for _ in range(count)]
    for unit in sorted(units, key=lambda unit: -_bytes(unit)):
        size, number = heapq.heappop(heap)
        tasks[number] += unit
        heapq.heappush(heap, (size + _bytes(unit), number))
    return [join_neighbours(task) for task in tasks if task]


def join_neighbours(slices: Sequence[ObjectSlice]) -> list[ObjectSlice]:
    """Pieces by object, stream and offset; those that follow each other in one object become one."""
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
    """An object's pieces in groups of at most about a share."""
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
    """Cut a piece by its offsets, when it is more than a share."""
    offsets = part.end_offset - part.start_offset
    count = min(-(-part.size_bytes // share), offsets) if part.size_bytes > share * SLACK else 1
    bounds = [part.start_offset + offsets * at // count for at in range(count + 1)]
    size = part.size_bytes // count
    return [
        part._replace(start_offset=start, end_offset=end, size_bytes=size) for start, end in itertools.pairwise(bounds)
    ]
