"""Marks in the store of what the catalog has: keys, what they say together, and which are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.object.marks import TIDIED_EVERY, Mark, MarkPlace, MarkWriter
from tests.support.memory_store import MemoryStore, let_through

NUMBERS = st.integers(0, 2**63 - 1)
ID = bytes(range(16))


def place_of(cluster: str = "c", catalog_id: bytes = ID) -> MarkPlace:
    return MarkPlace(MemoryStore("main"), cluster, catalog_id)


def writer_of(place: MarkPlace, node_id: int) -> MarkWriter:
    return MarkWriter(place, node_id, lambda: "w")


@given(
    node_id=st.integers(0, 2**31 - 1),
    uploads=NUMBERS,
    change=NUMBERS,
    opened=st.none() | st.tuples(NUMBERS, NUMBERS),
)
def test_a_key_says_what_was_written(node_id: int, uploads: int, change: int, opened: tuple[int, int] | None) -> None:
    mark, place = Mark(node_id, uploads, change, opened), place_of("a/b")
    assert place.parse(place.key(mark)) == mark
    assert place_of("a").parse(place.key(mark)) is None
    assert place_of("a/b", bytes(16)).parse(place.key(mark)) is None


@pytest.mark.parametrize("key", ["", "1", "1/2", "1/2-3", "x/00000000000000000002-00000000000000000003", "1/2-3-4"])
def test_other_keys_say_nothing(key: str) -> None:
    place = place_of()
    assert place.parse(place.prefix + key) is None


async def test_marks_of_all_nodes_and_lives_say_together_what_the_catalog_has() -> None:
    place = place_of()
    for node_id, uploads, change in ((1, 5, 9), (1, 0, 12), (2, 3, 7), (11, 8, 1)):
        await writer_of(place, node_id).write(CatalogProgress(change, {node_id: uploads, 77: 100}))
    assert await place.read() == CatalogProgress(12, {1: 5, 2: 3, 11: 8})


async def test_few_marks_are_kept_and_nothing_that_they_say_is_lost() -> None:
    place = place_of()
    for life in range(3):
        writer = writer_of(place, 1)
        for number in range(TIDIED_EVERY):
            await writer.write(CatalogProgress(life, {1: life * TIDIED_EVERY + number}))
        assert len(await place.list()) <= TIDIED_EVERY + 1
    # Of a process that has uploaded nothing: it knows a later change only.
    await writer_of(place, 1).write(CatalogProgress(50))
    await writer_of(place, 1).write(CatalogProgress(51, {1: 40}))
    assert await place.read() == CatalogProgress(51, {1: 3 * TIDIED_EVERY - 1})


@pytest.mark.parametrize("failing", ["list", "delete"])
async def test_a_mark_is_put_even_if_older_ones_cannot_be_deleted(failing: str) -> None:
    """Or else a store that allows no deletion would hold up every upload."""
    place = place_of()
    await writer_of(place, 1).write(CatalogProgress(1, {1: 1}))
    failed: list[str] = []

    async def refuse(call: str, _key: str) -> None:
        if call == failing:
            failed.append(call)
            raise StoreError(f"no {call}")

    assert isinstance(place.store, MemoryStore)
    place.store.hook = refuse
    await writer_of(place, 1).write(CatalogProgress(1, {1: 2}))
    place.store.hook = let_through
    assert failed == [failing]
    assert await place.list() == [Mark(1, 1, 1), Mark(1, 2, 1)]


async def test_the_same_mark_again_is_no_error() -> None:
    place = place_of()
    for _ in range(2):
        await writer_of(place, 1).write(CatalogProgress(1, {1: 1}))
    assert await place.list() == [Mark(1, 1, 1)]
