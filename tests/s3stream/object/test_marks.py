"""Marks in the store of what the catalog has: keys, comparison, and which are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3stream.catalog.values import CatalogProgress
from s3stream.object.marks import KEPT_MAX, Mark, MarkWriter, mark_prefix, newest_marks, parse_mark, why_behind
from s3stream.store.memory import MemoryStore

NUMBERS = st.integers(0, 2**63 - 1)


@given(node_id=st.integers(0, 2**31 - 1), object_id=NUMBERS, change=NUMBERS)
def test_a_key_says_what_was_written(node_id: int, object_id: int, change: int) -> None:
    mark = Mark(node_id, object_id, change)
    assert parse_mark(mark.key("a/b"), "a/b") == mark
    assert parse_mark(mark.key("a/b"), "a") is None


@pytest.mark.parametrize("key", ["", "1", "1/2", "1/2-3", "x/00000000000000000002-00000000000000000003", "1/2-3-4"])
def test_other_keys_say_nothing(key: str) -> None:
    assert parse_mark(mark_prefix("c") + key, "c") is None


@pytest.mark.parametrize(
    ("progress", "marks", "lacks"),
    [
        (CatalogProgress(5, {1: 7}, 0), [Mark(1, 7, 5)], ""),
        (CatalogProgress(9, {1: 7, 2: 30}, 0), [Mark(1, 8, 5)], "the upload of object 8 by node 1 (it knows 7)"),
        (CatalogProgress(9, {}, 0), [Mark(2, 1, 0)], "the upload of object 1 by node 2 (it knows 0)"),
        (CatalogProgress(9, {}, 100), [Mark(2, 1, 0)], ""),
        (CatalogProgress(4, {1: 7, 2: 9}, 0), [Mark(1, 7, 5), Mark(2, 9, 6)], "change 6 (it knows 4)"),
    ],
)
def test_a_catalog_is_behind_if_it_lacks_what_any_mark_says(
    progress: CatalogProgress, marks: list[Mark], lacks: str
) -> None:
    assert why_behind(progress, {mark.node_id: mark for mark in marks}) == lacks


async def test_the_highest_numbers_count_and_few_marks_are_kept() -> None:
    store = MemoryStore("main")
    for node_id, life in ((1, 0), (1, 1), (2, 0)):
        writer = MarkWriter(store, "c", node_id, lambda: "w")
        for number in range(KEPT_MAX):
            await writer.write(number if life == 0 else KEPT_MAX - number, number + life)
    assert await newest_marks(store, "c") == {
        1: Mark(1, KEPT_MAX, KEPT_MAX),
        2: Mark(2, KEPT_MAX - 1, KEPT_MAX - 1),
    }
    # A process that has uploaded nothing puts a mark as well: what earlier ones have said stays true.
    idle = MarkWriter(store, "c", 2, lambda: "w")
    for change in range(KEPT_MAX):
        await idle.write(0, change)
    assert (await newest_marks(store, "c"))[2] == Mark(2, KEPT_MAX - 1, KEPT_MAX - 1)
    assert len([item async for item in store.list(mark_prefix("c"))]) <= 2 * KEPT_MAX
