"""The split of a read into tasks."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.spark.direct.plan import ObjectSlice, plan_tasks

MIB = 1 << 20


def part(object_id: int, start: int, end: int, size: int, stream_id: int = 1) -> ObjectSlice:
    return ObjectSlice(object_id, size, "store", stream_id, stream_id, 0, start, end, size)


def shape(tasks: Sequence[Sequence[ObjectSlice]]) -> list[list[tuple[int, int, int]]]:
    return sorted([(each.object_id, each.start_offset, each.end_offset) for each in task] for task in tasks)


def test_whole_objects_while_there_are_enough() -> None:
    slices = [part(number, number * 10, number * 10 + 10, 8 * MIB) for number in range(4)]
    tasks = plan_tasks(slices, parallelism=2)
    assert [len(task) for task in tasks] == [2, 2]
    assert all(each in slices for task in tasks for each in task)


def test_one_large_object_is_cut_so_that_nobody_is_idle() -> None:
    tasks = plan_tasks([part(1, 0, 1000, 64 * MIB)], parallelism=4)
    assert shape(tasks) == [[(1, 0, 250)], [(1, 250, 500)], [(1, 500, 750)], [(1, 750, 1000)]]


def test_an_object_of_many_streams_is_cut_between_them_first() -> None:
    slices = [part(1, 0, 10, 8 * MIB, stream) for stream in range(4)]
    tasks = plan_tasks(slices, parallelism=2)
    assert sorted([each.stream_id for each in task] for task in tasks) == [[0, 1], [2, 3]]


def test_little_is_one_task() -> None:
    assert len(plan_tasks([part(1, 0, 10, 1000), part(2, 10, 20, 1000)], parallelism=8)) == 1
    assert plan_tasks([], parallelism=8) == []


def test_much_is_more_tasks_than_run_at_once() -> None:
    slices = [part(number, 0, 1000, 100 * MIB, number) for number in range(10)]
    tasks = plan_tasks(slices, parallelism=2)
    assert len(tasks) >= 8
    assert max(sum(each.size_bytes for each in task) for task in tasks) <= 2 * 128 * MIB


def test_much_comes_in_full_waves() -> None:
    tasks = plan_tasks([part(1, 0, 52_000, 520 * MIB)], parallelism=2)  # five of at most 128 MiB would do
    assert len(tasks) == 6


def test_parts_of_an_object_in_one_task_are_joined_again() -> None:
    slices = [part(1, 0, 100, 9 * MIB), part(1, 100, 200, 9 * MIB)]
    assert shape(plan_tasks(slices, parallelism=1)) == [[(1, 0, 200)]]


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40 * MIB)), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_every_offset_is_in_one_task(spans: list[tuple[int, int]], parallelism: int, objects: int) -> None:
    slices, start = [], 0
    for number, (count, size) in enumerate(spans):
        slices.append(part(number % objects, start, start + count, size))
        start += count
    tasks = plan_tasks(slices, parallelism=parallelism)
    found = sorted((each.start_offset, each.end_offset) for task in tasks for each in task)
    assert found[0][0] == 0
    assert found[-1][1] == start
    assert all(one[1] == two[0] for one, two in pairwise(found))
