"""Proves, before the commit, that the outputs of a compaction contain every live byte of its inputs exactly once.

Pure, and independent of the planner. It compares the live ranges from the catalog with the ranges that the writers
report. The catalog checks the ranges once more within the commit.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import NewObject, StreamRange


class CoverageError(StorageError):
    """The outputs would lose, duplicate or invent offsets or records. Names stream, expected and found."""


class OffsetSpan(NamedTuple):
    """Offsets [start, end) of a stream."""

    stream_id: int
    start_offset: int
    end_offset: int


class BlockTotals(NamedTuple):
    """Totals of the blocks on one side: inputs or outputs."""

    blocks: int
    records: int
    size_bytes: int


def sum_totals(each: Iterable[BlockTotals]) -> BlockTotals:
    """Return the sum of totals."""
    return BlockTotals(*map(sum, zip(BlockTotals(0, 0, 0), *each, strict=True)))


class LiveRanges:
    """Live ranges of many streams.

    Neighbours are joined when they are added, so that the number follows the gaps, not the blocks.
    """

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def add(self, stream_id: int, start_offset: int, end_offset: int) -> None:
        """Add a range."""
        ranges = self._ranges.setdefault(stream_id, [])
        if ranges and ranges[-1][1] == start_offset:
            ranges[-1] = (ranges[-1][0], end_offset)
        else:
            ranges.append((start_offset, end_offset))

    @property
    def streams(self) -> list[int]:
        """Ids of the streams that have ranges."""
        return sorted(self._ranges)

    def __iter__(self) -> Iterator[OffsetSpan]:
        return (OffsetSpan(stream_id, *each) for stream_id, ranges in self._ranges.items() for each in ranges)


def prove_coverage(
    live: Iterable[OffsetSpan | StreamRange], outputs: Sequence[NewObject], starts: Mapping[int, int]
) -> None:
    """Check that the outputs cover every live range of the inputs once, and nothing else. Raises CoverageError.

    `live` holds the inputs' ranges according to the catalog. Offsets before a stream's start, and streams that are not
    in `starts`, are ignored on both sides.
    """
    expected: dict[int, list[tuple[int, int]]] = defaultdict(list)
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for each in live:
        _note(expected, each, starts)
    for output in outputs:
        for each in output.ranges:
            _note(found, each, starts)
    for stream_id in sorted({*expected, *found}):
        wanted = _union(stream_id, expected[stream_id], "inputs")
        written = _union(stream_id, found[stream_id], "outputs")
        if wanted != written:
            raise CoverageError(f"compaction: stream {stream_id}: expected {wanted} in the outputs, found {written}")


def prove_totals(expected: BlockTotals, found: BlockTotals, block_header_bytes: int) -> None:
    """Check that records and bytes add up. Joining two blocks saves a header and nothing else. Raises CoverageError."""
    joined = expected.blocks - found.blocks
    size = expected.size_bytes - joined * block_header_bytes
    if joined < 0 or expected.records != found.records or size != found.size_bytes:
        raise CoverageError(f"compaction: expected {expected} in the outputs, found {found}")


def _note(ranges: dict[int, list[tuple[int, int]]], each: OffsetSpan | StreamRange, starts: Mapping[int, int]) -> None:
    start = starts.get(each.stream_id)
    if start is not None and each.end_offset > start:
        ranges[each.stream_id].append((max(start, each.start_offset), each.end_offset))


def _union(stream_id: int, ranges: list[tuple[int, int]], side: str) -> list[tuple[int, int]]:
    """Coalesce disjoint ranges. Raises CoverageError for ranges that overlap."""
    union: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if union and start < union[-1][1]:
            raise CoverageError(
                f"compaction: stream {stream_id}: the {side} hold offsets [{start}, {union[-1][1]}) twice"
            )
        if union and start == union[-1][1]:
            union[-1] = (union[-1][0], end)
        else:
            union.append((start, end))
    return union
