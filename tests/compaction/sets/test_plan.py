"""The planner: the article's example read by read and part by part, and properties of any layout."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.compaction.blocks import cut_read, merge_reads
from anabranch.compaction.sets.plan import (
    InputObject,
    Iteration,
    PlanRefused,
    Survey,
    contiguous_runs,
    is_worthwhile,
    iterations,
    select_inputs,
)
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectKind
from anabranch.s3stream.object.format import IndexEntry

SSO, SO = ObjectKind.SSO, ObjectKind.SO
SETTINGS = CompactionSettings(split_bytes=80, force_split_ms=1_000)


Block = tuple[int, int, int]
"""Stream, start offset, end offset; a block has as many bytes as offsets, unless stated otherwise."""


def source(object_id: int, blocks: Sequence[Block], *, oldest_data_ms: int = 0, scale: int = 1) -> InputObject:
    """An object whose blocks are in the given order."""
    entries: list[IndexEntry] = []
    position = 0
    for stream, start, end in blocks:
        size = (end - start) * scale
        entries.append(IndexEntry(stream, start, end, end - start, position, size, end, 0))
        position += size
    return InputObject(object_id, entries, oldest_data_ms, position)


def cut(stream: int, start: int, end: int, step: int) -> list[Block]:
    """A run in blocks of `step`."""
    return [(stream, at, min(at + step, end)) for at in range(start, end, step)]


def surveyed(sources: list[InputObject], starts: dict[int, int] | None = None) -> Survey:
    streams = {entry.stream_id for each in sources for entry in each.entries}
    found = Survey(starts if starts is not None else dict.fromkeys(streams, 0))
    for each in sources:
        found.add(each)
    return found


def plan(sources: list[InputObject], memory: int, starts: dict[int, int] | None = None) -> list[Iteration]:
    return list(iterations(surveyed(sources, starts), SETTINGS, memory, now_ms=0))


def reads(iteration: Iteration) -> list[tuple[int, int, int]]:
    return [(read.object_id, read.start, read.end) for read in iteration.reads]


def writes(iteration: Iteration) -> list[tuple[ObjectKind, int, list[tuple[int, int, int]]]]:
    """Kind, number, and per output the (object, start, end) offsets, neighbours of one object joined."""
    found = []
    for write in iteration.writes:
        joined: list[tuple[int, int, int, int]] = []
        for piece in write.blocks:
            key = (piece.entry.stream_id, piece.object_id)
            if joined and joined[-1][:2] == key and joined[-1][3] == piece.entry.start_offset:
                joined[-1] = (*joined[-1][:3], piece.entry.end_offset)
            else:
                joined.append((*key, piece.entry.start_offset, piece.entry.end_offset))
        found.append((write.kind, write.number, [each[1:] for each in joined]))
    return found


def test_the_articles_example() -> None:
    """Memory 150. SSO-0, 1, 2 hold S0, S1, S2, S3; S2 is cut at 435 where the bound falls."""
    inputs = [
        source(0, [(0, 0, 20), (1, 30, 60), (3, 210, 230)]),
        source(1, [(0, 20, 25), (1, 60, 120)]),
        source(2, [*cut(2, 400, 500, 5), (3, 230, 270)]),
    ]
    first, second = plan(inputs, 150)
    # One read per object: S0 and S1 are adjacent in SSO-0 and in SSO-1.
    assert reads(first) == [(0, 0, 50), (1, 0, 65), (2, 0, 35)]
    assert writes(first) == [
        (SSO, 0, [(0, 0, 20), (1, 20, 25)]),
        (SO, 0, [(0, 30, 60), (1, 60, 120)]),
        (SO, 1, [(2, 400, 435)]),
    ]
    assert first.size_bytes == 150
    # The rest of S2 and S3 are adjacent in SSO-2.
    assert reads(second) == [(0, 50, 70), (2, 35, 140)]
    assert writes(second) == [
        (SO, 2, [(2, 435, 500)]),
        (SSO, 0, [(0, 210, 230), (2, 230, 270)]),
    ]
    assert second.size_bytes == 125


def test_expired_blocks_are_neither_read_nor_written() -> None:
    inputs = [source(1, [(1, 0, 10), (1, 10, 20), (2, 0, 10)]), source(2, [(1, 20, 30), (3, 0, 10)])]
    (only,) = plan(inputs, 1000, starts={1: 15, 3: 0})
    assert reads(only) == [(1, 10, 20), (2, 0, 20)]
    assert writes(only) == [(SSO, 0, [(1, 10, 20), (2, 20, 30), (2, 0, 10)])]


def test_a_gap_divides_a_run() -> None:
    inputs = [source(1, [(1, 0, 60)]), source(2, [(1, 100, 160), (1, 160, 180)])]
    (only,) = plan(inputs, 1000)
    assert writes(only) == [(SSO, 0, [(1, 0, 60)]), (SO, 0, [(2, 100, 180)])]


def test_old_runs_are_split_whatever_their_size() -> None:
    inputs = [
        source(1, [(1, 0, 10), (2, 0, 10)], oldest_data_ms=0),
        source(2, [(1, 10, 20), (3, 0, 10)], oldest_data_ms=500),
    ]
    (only,) = iterations(surveyed(inputs), SETTINGS, 1000, now_ms=1_000)
    assert writes(only) == [
        (SO, 0, [(1, 0, 10), (2, 10, 20)]),
        (SO, 1, [(1, 0, 10)]),
        (SSO, 0, [(2, 0, 10)]),
    ]


def test_a_block_longer_than_the_memory_stands_alone() -> None:
    inputs = [source(1, [(1, 0, 10), (2, 0, 500), (3, 0, 10)]), source(2, [(1, 10, 20)])]
    assert [each.size_bytes for each in plan(inputs, 50)] == [20, 500, 10]


def test_two_objects_with_the_same_offsets_are_refused() -> None:
    inputs = [source(1, [(1, 0, 10)]), source(2, [(1, 9, 20)])]
    with pytest.raises(PlanRefused, match=r"stream 1: objects 1 and 2 hold offsets \[9, 10\)"):
        plan(inputs, 100)


def test_offsets_far_apart_are_no_matter() -> None:
    inputs = [source(1, [(1, 0, 1 << 40)], scale=0), source(2, [(1, 1 << 40, 1 << 62)], scale=0)]
    found = surveyed(
        [each._replace(entries=[entry._replace(size_bytes=10) for entry in each.entries]) for each in inputs]
    )
    (run,) = contiguous_runs(found)
    assert (run.blocks[0].entry.start_offset, run.blocks[-1].entry.end_offset) == (0, 1 << 62)


@pytest.mark.parametrize(
    ("blocks", "starts", "now_ms", "expected"),
    [
        ([(1, 0, 10), (2, 0, 10)], {1: 0, 2: 0}, 0, False),
        ([(1, 0, 10), (2, 0, 90)], {1: 0, 2: 0}, 0, True),  # a run to split off
        ([(1, 0, 10), (2, 0, 10)], {1: 0, 2: 0}, 1_000, True),  # too old
        ([(1, 0, 10), (2, 0, 10)], {1: 0}, 0, True),  # half of it dead
        ([*cut(1, 0, 50, 10)], {1: 10}, 0, False),  # a fifth of it dead
    ],
)
def test_one_object_is_rewritten_for_a_reason(
    blocks: list[tuple[int, int, int]], starts: dict[int, int], now_ms: int, expected: bool
) -> None:
    assert is_worthwhile(surveyed([source(1, blocks)], starts), SETTINGS, now_ms) is expected
    assert is_worthwhile(surveyed([source(1, blocks), source(2, [(7, 0, 1)])], {**starts, 7: 0}), SETTINGS, now_ms)


def test_nothing_is_worthless() -> None:
    assert not is_worthwhile(surveyed([]), SETTINGS, 0)


def test_a_timed_run_leaves_the_largest_alone_until_it_is_old() -> None:
    large = source(1, [(1, 0, 1000)])
    small = [source(2, [(1, 1000, 1100)]), source(3, [(1, 1100, 1150)])]
    settings = replace(SETTINGS, lone_ratio=4)
    assert [each.object_id for each in select_inputs([large, *small], settings, 0)] == [2, 3]
    assert [each.object_id for each in select_inputs([large, *small], settings, 1_000)] == [1, 2, 3]
    more = [*small, source(4, [(1, 1150, 1250)])]
    assert [each.object_id for each in select_inputs([large, *more], settings, 0)] == [1, 2, 3, 4]
    assert [each.object_id for each in select_inputs([large], settings, 0)] == [1]


def test_long_reads_are_cut_at_blocks() -> None:
    found = surveyed([source(1, [(1, 0, 30), (1, 30, 60), (1, 60, 200), (1, 200, 210), (1, 210, 230)])])
    (run,) = contiguous_runs(found)
    (read,) = merge_reads(run.blocks)
    pieces = [(each.start, each.end, len(each.entries)) for each in cut_read(read, 60)]
    assert pieces == [(0, 60, 2), (60, 200, 1), (200, 230, 2)]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[InputObject], dict[int, int]]:
    """Streams written in turn into some objects, with gaps, and trimmed here and there."""
    contents: list[list[IndexEntry]] = [[] for _ in range(draw(st.integers(1, 5)))]
    starts: dict[int, int] = {}
    for stream in range(draw(st.integers(1, 5))):
        offset = draw(st.integers(0, 1 << 40))
        ends = [offset]
        for entries in contents:
            for _ in range(draw(st.integers(0, 3))):
                offset += draw(st.sampled_from([0, 0, 0, 1, 1 << 33]))
                end = offset + draw(st.integers(1, 1 << 34))
                entries.append(IndexEntry(stream, offset, end, 1, 0, draw(st.integers(1, 120)), 0, 0))
                ends.append(end)
                offset = end
        if draw(st.integers(0, 5)):
            starts[stream] = draw(st.sampled_from(ends)) - draw(st.integers(0, 1))
    sources = []
    for number, entries in enumerate(contents):
        position = 0
        placed = []
        for entry in entries:
            placed.append(entry._replace(position=position))
            position += entry.size_bytes
        if placed:
            sources.append(InputObject(number + 10, placed, draw(st.integers(0, 2_000)), position))
    return sources, starts


def outputs_of(planned: list[Iteration], inputs: list[InputObject], first_id: int, now_ms: int) -> list[InputObject]:
    """The objects a plan makes, as inputs of the next one (blocks not joined)."""
    oldest_of = {each.object_id: each.oldest_data_ms for each in inputs}
    entries: dict[tuple[ObjectKind, int], list[IndexEntry]] = defaultdict(list)
    oldest: dict[tuple[ObjectKind, int], int] = {}
    for iteration in planned:
        for write in iteration.writes:
            key = (write.kind, write.number)
            for piece in write.blocks:
                last = entries[key][-1].end_position if entries[key] else 0
                entries[key].append(piece.entry._replace(position=last))
                oldest[key] = min(oldest.get(key, now_ms), oldest_of[piece.object_id])
    return [
        InputObject(first_id + at, entries[key], oldest[key], entries[key][-1].end_position)
        for at, key in enumerate(sorted(entries))
        if key[0] is SSO
    ]


@given(layouts(), st.integers(1, 400), st.integers(1, 300), st.integers(0, 3_000))
def test_any_plan(layout: tuple[list[InputObject], dict[int, int]], memory: int, split: int, now_ms: int) -> None:
    sources, starts = layout
    settings = CompactionSettings(split_bytes=split, force_split_ms=1_000)
    found = surveyed(sources, starts)
    planned = list(iterations(found, settings, memory, now_ms))
    live = {
        (each.object_id, entry)
        for each in sources
        for entry in each.entries
        if entry.stream_id in starts and entry.end_offset > starts[entry.stream_id]
    }
    # Every live block is written once and read once, and no other.
    written = [(p.object_id, p.entry) for i in planned for w in i.writes for p in w.blocks]
    assert len(written) == len(set(written))
    assert set(written) == live
    fetched = [(read.object_id, entry) for i in planned for read in i.reads for entry in read.entries]
    assert sorted(fetched) == sorted(written)
    assert found.live_bytes == sum(each.size_bytes for each in planned)
    for iteration in planned:
        # Memory is bounded, and the reads are exactly the blocks, adjacent ones merged.
        pieces = [piece for write in iteration.writes for piece in write.blocks]
        assert iteration.size_bytes == sum(piece.entry.size_bytes for piece in pieces)
        assert iteration.size_bytes <= memory or len(pieces) == 1
        assert sum(read.end - read.start for read in iteration.reads) == iteration.size_bytes
        for before, after in zip(iteration.reads, iteration.reads[1:], strict=False):
            assert (before.object_id, before.end) < (after.object_id, after.start)
    # Outputs are in order; a stream object is one contiguous run, written in one iteration.
    numbers = [w.number for i in planned for w in i.writes if w.kind is SO]
    assert numbers == list(range(len(numbers)))
    for iteration in planned:
        for write in iteration.writes:
            for one, two in zip(write.blocks, write.blocks[1:], strict=False):
                if write.kind is SO:
                    assert (one.entry.stream_id, one.entry.end_offset) == (two.entry.stream_id, two.entry.start_offset)
    rest = [
        (p.entry.stream_id, p.entry.start_offset) for i in planned for w in i.writes if w.kind is SSO for p in w.blocks
    ]
    assert rest == sorted(rest)
    # There is at most one new stream set object, and a second plan for it does nothing.
    made = outputs_of(planned, sources, 100, now_ms)
    assert len(made) <= 1
    assert not is_worthwhile(surveyed(made, starts), settings, now_ms)
