"""Plans of a table's next commits: rows to append, files to drop, to cut, to join, or to make anew. Pure.

`s3stream/catalog/TABLES.md` has the rules of a commit. A commit is of one kind, because readers that follow a table by
its snapshots read appends alone.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from anabranch.s3stream.catalog.table_values import OffsetBounds, TableFile

SHARE_BYTES_MAX: Final = 32 << 20
"""Size of the blocks whose rows become one file. So much is written before the interval of commits is over."""
COMMIT_BYTES_MAX: Final = 256 << 20
"""Size of the blocks whose rows are appended by one commit: a bound of scratch space, and of the time it takes."""
FILES_MAX: Final = 200
"""Files that one commit adds or drops."""
JOIN_FILES_MIN: Final = 8
"""Neighbours of similar size that are joined, unless they reach the size that joins lead to before."""
JOIN_FILES_MAX: Final = 100
SMALL_BYTES: Final = 16 << 10
"""Files below this size are similar to each other; then each tier is `JOIN_FILES_MIN` times as large."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition of a topic, and what its table has of it."""

    idx: int
    stream: OffsetBounds
    """Start, and last stable offset as of the committed end."""
    table: OffsetBounds
    files: Sequence[TableFile] = ()
    """Data files of the table, in the order of offsets."""
    cleaned: Mapping[int, OffsetBounds] = field(default_factory=dict)
    """Ranges that log compaction has rewritten, which the table does not show yet, by object id."""
    deleted_offset: int = 0
    """Offset up to which clients have deleted records, at most the stream's start."""

    @property
    def missing(self) -> OffsetBounds:
        """Offsets whose rows can be appended; empty if start and end are equal."""
        start = max(self.table.end_offset, self.stream.start_offset)
        return OffsetBounds(start, max(start, self.stream.end_offset))


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of a partition that others replace."""

    idx: int
    files: Sequence[TableFile]
    """Neighbours, in the order of offsets."""
    bounds: OffsetBounds
    """Offsets of the file that replaces them."""

    @property
    def size_bytes(self) -> int:
        """Size of the files."""
        return sum(each.size_bytes for each in self.files)


@dataclass(frozen=True, slots=True)
class Departure:
    """Rows that leave a table because the topic has lost them."""

    dropped: Sequence[TableFile]
    cut: Sequence[Rewrite]
    """Of one file each."""


def plan_departure(partitions: Sequence[PartitionFacts]) -> Departure:
    """Return the files that their topic has left, the first ones of each partition, and those to cut.

    A file that the start of its stream lies inside of is cut if a client has deleted some of its records, or if half of
    it is gone: retention moves the start all the time, and would have the same rows written again each time.
    """
    dropped: list[TableFile] = []
    cuts: list[Rewrite] = []
    for each in partitions:
        start = each.stream.start_offset
        gone = list(takewhile(lambda file: file.end_offset <= start, each.files))  # noqa: B023 - used at once
        room = FILES_MAX - len(dropped)
        dropped += gone[:room]
        if len(gone) <= room:
            file = _straddling(each)
            if file is not None and (file.start_offset < each.deleted_offset or _is_half_gone(file, start)):
                cuts.append(Rewrite(each.idx, [file], OffsetBounds(start, file.end_offset)))
    return Departure(dropped, cuts)


def _is_half_gone(file: TableFile, start: int) -> bool:
    return 2 * (start - file.start_offset) >= file.end_offset - file.start_offset


def _straddling(partition: PartitionFacts) -> TableFile | None:
    """Return the file that the start of the stream lies inside of."""
    start = partition.stream.start_offset
    at = bisect_left(partition.files, start, key=lambda file: file.start_offset)
    return partition.files[at - 1] if at and partition.files[at - 1].end_offset > start else None


def plan_joins(files: Sequence[TableFile], target_bytes: int) -> Sequence[Rewrite]:
    """Return the neighbours that become one file each: files of a partition, given in the order of offsets.

    Files of similar size are joined tier by tier, the smallest ones first, so that a row is written about once per
    tier; smaller ones between them are taken along. A file of half of `target_bytes` is not joined again.
    """
    half = (target_bytes + 1) // 2
    files = [file for file in files if file.size_bytes < half]  # few of a large table, whose plan is made on the loop
    limit, least = SMALL_BYTES, 0
    while True:
        below = min(limit, half)
        found = [
            Rewrite(group[0].idx, group, OffsetBounds(group[0].start_offset, group[-1].end_offset))
            for group in _groups(files, least, below, target_bytes)
        ]
        if found or below < limit:
            return found
        limit, least = limit * JOIN_FILES_MIN, limit


def _groups(files: Sequence[TableFile], least: int, below: int, target_bytes: int) -> Iterator[Sequence[TableFile]]:
    """Yield neighbours that are all smaller than `below`, among them enough that are not smaller than `least`."""

    def is_enough(group: Sequence[TableFile]) -> bool:
        return sum(file.size_bytes >= least for file in group) >= JOIN_FILES_MIN

    group: list[TableFile] = []
    size = 0
    for file in files:
        is_small = file.size_bytes < below
        follows = bool(group) and file.start_offset == group[-1].end_offset
        fits = size + file.size_bytes <= target_bytes and len(group) < JOIN_FILES_MAX
        if group and not (is_small and follows and fits):
            # What does not fit shows that the group is as large as it may become.
            if is_enough(group) or (is_small and follows and len(group) > 1):
                yield group
            group, size = [], 0
        if is_small:
            group.append(file)
            size += file.size_bytes
    if is_enough(group):
        yield group


def limit_rewrites(rewrites: Sequence[Rewrite], bytes_max: int) -> Sequence[Rewrite]:
    """Return the first rewrites that together have at most so many bytes, and at least one."""
    chosen: list[Rewrite] = []
    size = 0
    for each in rewrites:
        size += each.size_bytes
        if chosen and size > bytes_max:
            break
        chosen.append(each)
    return chosen


def plan_remakes(partition: PartitionFacts) -> Sequence[Rewrite]:
    """Return the files with rows that log compaction has removed from the topic, each to be made anew by itself.

    Of a file that the start of the stream lies inside of, what follows the start can be made anew.
    """
    start = partition.stream.start_offset
    return [
        Rewrite(partition.idx, [file], OffsetBounds(max(file.start_offset, start), file.end_offset))
        for file in partition.files
        if file.end_offset > start
        and any(
            low < file.end_offset and high > max(file.start_offset, start) for low, high in partition.cleaned.values()
        )
    ]
