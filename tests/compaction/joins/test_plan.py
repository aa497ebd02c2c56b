"""The second level's planner: the objects it joins, the data it copies, and that it reaches an end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.compaction.blocks import live_entries
from anabranch.compaction.joins.plan import (
    COPY_BYTES_MAX,
    CopySegment,
    JoinGroup,
    RewriteSegment,
    batch_groups,
    plan_groups,
    plan_segments,
)
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectInfo, ObjectKind, ObjectState, RangeLocation, StreamRange
from anabranch.s3stream.object.format import BLOCK_HEADER, IndexEntry
from anabranch.s3stream.store.rules import PART_BYTES_MIN

MIB = 1024 * 1024
SETTINGS = CompactionSettings(stream_group_min=4, stream_group_max=10, stream_object_bytes_max=1000 * MIB)


def located(object_id: int, start: int, end: int, size: int, *, store: str = "s") -> RangeLocation:
    info = ObjectInfo(object_id, ObjectKind.SO, ObjectState.COMMITTED, store, size, 1, "w", 0, 0)
    return RangeLocation(StreamRange(1, start, end, end - start, size, 0), info)


def row(*sizes: int) -> list[RangeLocation]:
    """Neighbours of these sizes, ten offsets each."""
    return [located(at, at * 10, at * 10 + 10, size) for at, size in enumerate(sizes)]


def groups(objects: list[RangeLocation], *, full: bool = False, start: int = 0) -> list[list[int]]:
    planned = plan_groups(objects, start, SETTINGS, full=full)
    return [[each.object.object_id for each in group] for group in planned]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1, 1, 1], []),
        ([1, 1, 1, 1], [[0, 1, 2, 3]]),
        ([100, 1, 1, 1], []),  # one large and few small ones
        ([100, 1, 1, 1, 1], [[1, 2, 3, 4]]),
        ([4, 1, 1, 1, 1], [[0, 1, 2, 3, 4]]),
        ([1, 1, 1, 1, 100], [[0, 1, 2, 3]]),
        ([1] * 12, [[2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]),
        ([8, 4, 2, 1, 1], [[0, 1, 2, 3, 4]]),
    ],
)
def test_objects_of_similar_size_are_joined(sizes: list[int], expected: list[list[int]]) -> None:
    assert groups(row(*sizes)) == expected


def test_on_demand_all_are_joined() -> None:
    assert groups(row(100, 1, 1), full=True) == [[0, 1, 2]]
    assert groups(row(100), full=True) == []
    assert groups(row(*[1] * 12), full=True) == [[0, 1], [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]]


def test_small_groups_are_batched_store_by_store_and_a_large_one_is_alone() -> None:
    """A batch costs 100: ten for each group's bytes and calls, and 120 for the large one's."""
    settings = CompactionSettings(memory_bytes=100, call_cost_bytes=1)
    some = [JoinGroup(stream, 0, row(3, 2)) for stream in range(25)]
    some += [JoinGroup(100, 0, row(60, 55)), JoinGroup(101, 0, [located(1, 0, 1, 7, store="t")])]
    batches = batch_groups(some, settings)
    assert [len(batch) for batch in batches] == [1, 10, 10, 5, 1]
    assert [batch[0].stream_id for batch in batches] == [100, 0, 10, 20, 101]
    assert sorted(group.stream_id for batch in batches for group in batch) == [*range(25), 100, 101]
    assert batch_groups([], settings) == []


def test_gaps_other_stores_and_the_size_limit_divide() -> None:
    assert groups([located(1, 0, 10, 1), located(2, 11, 20, 1)], full=True) == []
    assert groups([located(1, 0, 10, 1), located(2, 10, 20, 1, store="t")], full=True) == []
    assert groups(row(600 * MIB, 401 * MIB), full=True) == []
    assert groups(row(600 * MIB, 400 * MIB), full=True) == [[0, 1]]


def test_an_object_that_is_largely_dead_is_rewritten_alone() -> None:
    assert groups([located(1, 0, 100, 1)], start=51) == [[1]]
    assert groups([located(1, 0, 100, 1)], start=50) == []


@given(st.lists(st.integers(1, 2_000), max_size=60), st.booleans())
def test_it_comes_to_rest(sizes: list[int], full: bool) -> None:
    """Joining again and again ends, never reorders, and leaves a number of objects that grows like a logarithm."""
    settings = replace(SETTINGS, stream_object_bytes_max=1 << 40)
    objects = row(*sizes)
    for _ in range(200):
        planned = plan_groups(objects, 0, settings, full=full)
        if not planned:
            break
        for group in planned:
            at = objects.index(group[0])
            assert objects[at : at + len(group)] == list(group)
            assert len(group) <= settings.stream_group_max
            joined = located(
                group[0].object.object_id,
                group[0].range.start_offset,
                group[-1].range.end_offset,
                sum(each.object.size_bytes for each in group),
            )
            objects[at : at + len(group)] = [joined]
    else:
        pytest.fail("it goes on for ever")
    assert sum(each.object.size_bytes for each in objects) == sum(sizes)
    if full:
        assert len(objects) <= 1


def test_steady_small_objects_cost_a_few_rewrites_each() -> None:
    """4,096 equal objects, one after the other: bytes written again per byte, and objects left."""
    objects: list[RangeLocation] = []
    rewritten = most = 0
    for at in range(4_096):
        objects.append(located(at, at * 10, at * 10 + 10, 10_000))
        for group in plan_groups(objects, 0, SETTINGS, full=False):
            size = sum(each.object.size_bytes for each in group)
            rewritten += size
            first = objects.index(group[0])
            new = located(at, group[0].range.start_offset, group[-1].range.end_offset, size)
            objects[first : first + len(group)] = [new]
        most = max(most, len(objects))
    assert rewritten / (4_096 * 10_000) <= 7
    assert most <= 30


def blocks(object_size: int, block: int, *, start: int = 0) -> list[IndexEntry]:
    """An object of so many bytes in blocks of so many."""
    entries = []
    for number, position in enumerate(range(0, object_size, block)):
        size = min(block, object_size - position)
        entries.append(IndexEntry(1, start + number, start + number + 1, 1, position, size, 0, 0))
    return entries


def shape(segments: list[RewriteSegment | CopySegment]) -> list[tuple[str, int]]:
    """Kind and MiB of each segment."""
    found = []
    for segment in segments:
        if isinstance(segment, CopySegment):
            found.append(("copy", sum(entry.size_bytes for entry in segment.entries) // MIB))
        else:
            found.append(("put", sum(entry.size_bytes for _, entry in segment.blocks) // MIB))
    return found


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1], [("put", 2)]),
        ([5], [("copy", 5)]),
        ([8, 7], [("copy", 8), ("copy", 7)]),
        ([1, 1, 1, 1, 8], [("put", 6), ("copy", 6)]),  # topped up to 5 MiB, one block more for the joined headers
        ([1, 6], [("put", 7)]),  # the rest would be too short to copy
        ([20, 1], [("copy", 20), ("put", 1)]),
        ([20, 1, 20], [("copy", 20), ("put", 6), ("copy", 15)]),
        ([4, 2, 30], [("put", 6), ("copy", 30)]),
    ],
)
def test_what_is_long_is_copied_and_parts_are_never_short(sizes: list[int], expected: list[tuple[str, int]]) -> None:
    group = [(number, blocks(size * MIB, MIB)) for number, size in enumerate(sizes)]
    assert shape(plan_segments(group)) == expected


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=8))
def test_any_segments(shapes: list[tuple[int, int]]) -> None:
    quarter = MIB // 4
    group = [(number, blocks(size * quarter, block * quarter)) for number, (size, block) in enumerate(shapes)]
    segments = plan_segments(group)
    flat: list[tuple[int, IndexEntry]] = []
    for at, segment in enumerate(segments):
        if isinstance(segment, CopySegment):
            size = sum(entry.size_bytes for entry in segment.entries)
            assert PART_BYTES_MIN <= size <= COPY_BYTES_MAX
            flat += [(segment.object_id, entry) for entry in segment.entries]
        else:
            least = sum(entry.size_bytes - BLOCK_HEADER.size for _, entry in segment.blocks)
            assert least >= PART_BYTES_MIN or at == len(segments) - 1
            flat += segment.blocks
    assert flat == [(number, entry) for number, entries in group for entry in entries]


def test_very_long_objects_are_copied_in_parts() -> None:
    block = 512 * MIB
    segments = plan_segments([(1, blocks(5 * block + MIB, block))])
    assert shape(segments) == [("copy", 1024), ("copy", 1024), ("copy", 513)]


def test_the_dead_prefix_is_dropped() -> None:
    assert [entry.start_offset for entry in live_entries(blocks(5 * MIB, MIB, start=10), 12)] == [12, 13, 14]
    assert live_entries(blocks(5 * MIB, MIB), 5) == []
