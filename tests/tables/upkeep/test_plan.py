"""Plans of a table's commits."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from anabranch.s3stream.catalog.table_values import OffsetBounds, TableFile, TableFileKind
from anabranch.s3stream.model import ObjectState
from anabranch.tables.upkeep.plan import (
    FILES_MAX,
    JOIN_FILES_MAX,
    SMALL_BYTES,
    PartitionFacts,
    Rewrite,
    limit_rewrites,
    plan_departure,
    plan_joins,
    plan_remakes,
)

TARGET = 256 << 20
KIB = 1 << 10
MIB = 1 << 20


def data(start: int, end: int, size: int = 1_000) -> TableFile:
    """Return a file of the table; its id is its start."""
    place = ("main", f"table/{start}", size, 7, 0, start, end, end - start)
    return TableFile(start, b"t", TableFileKind.DATA, ObjectState.COMMITTED, *place, 1, 1, "w", "", 0, 5, 1, 0)


def files(*sizes: int) -> Sequence[TableFile]:
    """Return neighbours of these sizes, with 10 offsets each."""
    return [data(at * 10, at * 10 + 10, size) for at, size in enumerate(sizes)]


def facts(stream: tuple[int, int], table: tuple[int, int], some: Sequence[TableFile] = ()) -> PartitionFacts:
    return PartitionFacts(0, OffsetBounds(*stream), OffsetBounds(*table), some)


def joined(rewrites: Sequence[Rewrite]) -> list[tuple[int, int]]:
    return [(each.bounds.start_offset, each.bounds.end_offset) for each in rewrites]


@pytest.mark.parametrize(
    ("stream", "table", "missing"),
    [
        ((0, 100), (0, 0), (0, 100)),
        ((0, 100), (0, 60), (60, 100)),
        ((80, 100), (0, 60), (80, 100)),  # the topic has lost what lies between
        ((0, 100), (0, 100), (100, 100)),
        (
            (0, 90),
            (0, 100),
            (100, 100),
        ),  # it cannot be, and nothing is done
        ((100, 100), (0, 60), (100, 100)),
    ],
)
def test_what_is_missing_follows_the_table(
    stream: tuple[int, int], table: tuple[int, int], missing: tuple[int, int]
) -> None:
    assert facts(stream, table).missing == missing


@pytest.mark.parametrize(
    ("start", "deleted", "is_cut"),
    [
        (24, 0, False),  # by retention, which goes on
        (25, 0, True),  # half of the file is gone
        (24, 20, False),  # what clients have deleted is in no file
        (24, 21, True),
        (24, 24, True),
    ],
)
def test_files_that_the_topic_has_left_are_dropped_and_the_next_one_cut_if_it_must_be(
    start: int, deleted: int, *, is_cut: bool
) -> None:
    partition = replace(facts((start, 40), (0, 40), files(1, 1, 1, 1)), deleted_offset=deleted)
    found = plan_departure([partition])
    assert [file.start_offset for file in found.dropped] == [0, 10]
    assert joined(found.cut) == ([(start, 30)] if is_cut else [])
    assert [file.start_offset for each in found.cut for file in each.files] == ([20] if is_cut else [])


def test_a_start_between_two_files_cuts_none() -> None:
    found = plan_departure([replace(facts((20, 40), (0, 40), files(1, 1, 1, 1)), deleted_offset=20)])
    assert (len(found.dropped), found.cut) == (2, [])


def test_a_commit_drops_a_limited_number_of_files_and_cuts_after_the_last_of_them() -> None:
    many = files(*[1] * (FILES_MAX + 2))
    partition = facts((many[-1].start_offset + 5, 9_000), (0, 9_000), many)
    found = plan_departure([partition])
    assert (len(found.dropped), found.cut) == (FILES_MAX, [])


def test_a_few_small_files_are_left_alone() -> None:
    assert not plan_joins(files(*[1_000] * 7), TARGET)


def test_neighbours_of_similar_size_are_joined() -> None:
    assert joined(plan_joins(files(*[1_000] * 8), TARGET)) == [(0, 80)]


def test_larger_files_are_joined_only_with_others_of_their_tier() -> None:
    sizes = [MIB] * 7 + [1_000] * 8
    assert joined(plan_joins(files(*sizes), TARGET)) == [(70, 150)]
    assert joined(plan_joins(files(*[MIB] * 8), TARGET)) == [(0, 80)]


def test_small_files_between_larger_ones_are_joined_with_them_in_the_end() -> None:
    assert not plan_joins(files(*[MIB, 1_000] * 7), TARGET)
    assert joined(plan_joins(files(*[MIB, 1_000] * 8), TARGET)) == [(0, 160)]


def test_files_that_reach_the_target_are_joined_however_few() -> None:
    assert joined(plan_joins(files(*[100 * MIB] * 3), TARGET)) == [(0, 20)]


def test_files_of_half_of_the_target_are_not_joined_again() -> None:
    assert not plan_joins(files(*[TARGET // 2] * 20), TARGET)


def test_a_hole_is_not_joined_over() -> None:
    some = [*files(*[1_000] * 5), *(data(100 + at * 10, 110 + at * 10) for at in range(5))]
    assert not plan_joins(some, TARGET)


def test_a_join_has_a_limited_number_of_files() -> None:
    found = plan_joins(files(*[10] * (JOIN_FILES_MAX + 3)), TARGET)
    assert joined(found) == [(0, 10 * JOIN_FILES_MAX)]


@pytest.mark.parametrize("target", [1, 1_000, SMALL_BYTES, TARGET])
def test_joins_end_with_few_files_and_no_row_is_written_often(target: int) -> None:
    """A table that a file of 1 KiB comes to each minute, for a day."""
    some: list[TableFile] = []
    written = 0
    for at in range(1_440):
        some.append(data(at, at + 1, KIB))
        while planned := plan_joins(some, target):
            for each in planned:
                written += each.size_bytes
                left = [file for file in some if file not in each.files]
                some = sorted([*left, data(*each.bounds, each.size_bytes)], key=lambda file: file.start_offset)
    assert [file.end_offset for file in some[:-1]] == [file.start_offset for file in some[1:]]
    assert len(some) <= 32 or target < TARGET
    assert written <= 5 * 1_440 * KIB


def test_rewrites_are_limited_by_their_size_but_one_is_always_chosen() -> None:
    some = [Rewrite(0, [data(0, 1, 60)], OffsetBounds(0, 1)), Rewrite(1, [data(0, 1, 50)], OffsetBounds(0, 1))]
    assert limit_rewrites(some, 10) == some[:1]
    assert limit_rewrites(some, 110) == some
    assert limit_rewrites(some, 109) == some[:1]


def test_files_with_cleaned_offsets_are_made_anew_from_the_start_of_the_topic_on() -> None:
    partition = PartitionFacts(
        0, OffsetBounds(5, 40), OffsetBounds(0, 40), files(1, 1, 1, 1), {7: OffsetBounds(0, 8), 9: OffsetBounds(30, 35)}
    )
    assert joined(plan_remakes(partition)) == [(5, 10), (30, 40)]
