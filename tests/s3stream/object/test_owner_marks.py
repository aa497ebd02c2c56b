"""Marks of who owns streams: content, what a store that fails does, and when they are deleted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.manifest_state import OwnedStreams
from anabranch.s3stream.catalog.values import Takeover, WalInfo, WalState
from anabranch.s3stream.errors import CorruptObject, StoreError
from anabranch.s3stream.model import NodeIdentity, StreamInfo
from anabranch.s3stream.object import owner_marks
from anabranch.s3stream.object.marks import MarkPlace, MarkWriter
from anabranch.s3stream.object.owner_marks import (
    OwnerMarks,
    decode_owners,
    encode_owners,
    read_owner_marks,
)
from tests.support.catalog_node import WAL_ID
from tests.support.memory_store import MemoryStore, let_through

CLUSTER = "test"
ID = bytes(range(16))
NUMBERS = st.integers(0, 2**63 - 1)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    made = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    await made.open(cluster=CLUSTER, new_id=ID)
    for node_id in (1, 2):
        await made.register_node(node_id, "h", 1, now_ms=1, lease_ms=1)
        await made.open_wal(
            f"{WAL_ID}-{node_id}",
            node=NodeIdentity(node_id, 1),
            kind="object",
            location=f"main:wal/{node_id}",
            takeover=Takeover.SHARED,
            held=None,
            now_ms=5,
        )
    yield made
    await made.close()


@pytest.fixture
def place() -> MarkPlace:
    return MarkPlace(MemoryStore("main"), CLUSTER, ID)


def marks_of(place: MarkPlace, catalog: Catalog, node_id: int = 1) -> OwnerMarks:
    return OwnerMarks(place, catalog, node_id, lambda: "w")


def stream(stream_id: int, epoch: int, node_id: int = 1) -> StreamInfo:
    return StreamInfo(stream_id, epoch, node_id, 0, 0, b"", f"{WAL_ID}-{node_id}")


def wal_of(node_id: int) -> WalInfo:
    return WalInfo(
        f"{WAL_ID}-{node_id}", node_id, 1, f"main:wal/{node_id}", WalState.OPEN, 5, Takeover.SHARED, kind="object"
    )


@given(epochs=st.dictionaries(NUMBERS, NUMBERS), location=st.text(), takeover=st.sampled_from(Takeover))
def test_a_mark_says_what_was_written(epochs: dict[int, int], location: str, takeover: Takeover) -> None:
    wal = WalInfo("00000000000000aa", 3, 7, location, WalState.OPEN, 9, takeover, kind="object")
    owned = OwnedStreams(wal, epochs)
    assert decode_owners(encode_owners(owned), where="here") == owned


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"log":[],"streams":[]}', b"\xff"])
def test_other_content_is_damaged(data: bytes) -> None:
    with pytest.raises(CorruptObject, match="mark here: damaged"):
        decode_owners(data, where="here")


async def test_marks_of_all_nodes_name_streams_epochs_and_logs(catalog: Catalog, place: MarkPlace) -> None:
    await marks_of(place, catalog, 1).put([stream(7, 2), stream(8, 5)])
    await marks_of(place, catalog, 2).put([stream(7, 3, node_id=2)])
    await marks_of(place, catalog, 1).put([stream(9, 4, node_id=2)])  # as a source does whose target has not answered

    found = await read_owner_marks(place)

    assert sorted((owned.wal.node_id, *owned.epochs.items()) for owned in found) == [
        (1, (7, 2), (8, 5)),
        (2, (7, 3)),
        (2, (9, 4)),
    ]
    assert {owned.wal.node_id: owned.wal for owned in found} == {1: wal_of(1), 2: wal_of(2)}


async def test_a_mark_says_how_far_the_catalog_has_come(catalog: Catalog, place: MarkPlace) -> None:
    """So that a start notices a catalog that has forgotten the owner."""
    await marks_of(place, catalog).put([stream(7, 2)])

    assert (await place.read()).change == catalog.seen.change > 0


async def test_marks_of_uploads_replace_none_of_owners(catalog: Catalog, place: MarkPlace) -> None:
    await marks_of(place, catalog).put([stream(7, 2)])
    await MarkWriter(place, 1, lambda: "w").write(catalog.seen._replace(change=100))

    assert [owned.epochs for owned in await read_owner_marks(place)] == [{7: 2}]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_store_that_takes_no_mark_holds_nothing_up(
    catalog: Catalog, place: MarkPlace, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    async def refuse(call: str, _key: str) -> None:
        if call == "put":
            if fails:
                raise StoreError("no room")
            await asyncio.Event().wait()

    assert isinstance(place.store, MemoryStore)
    place.store.hook = refuse
    monkeypatch.setattr(owner_marks, "PUT_S", 60 if fails else 0.02)
    monkeypatch.setattr(owner_marks, "AWAY_S", 0.01)
    marks = marks_of(place, catalog)
    with capture_logs() as said:
        await marks.put([stream(7, 2)])
        await marks.put([stream(7, 3)])
    place.store.hook = let_through

    silent = [f"the store has not answered within {limit_s} s" for limit_s in (0.02, 0.01)]
    assert [line["reason"] for line in said] == (["no room"] * 2 if fails else silent)
    assert await read_owner_marks(place) == []


async def test_a_mark_that_the_store_takes_after_the_time_limit_is_deleted_too(
    catalog: Catalog, place: MarkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next manifest or, if it comes after that, by the node's next process."""

    async def hang(call: str, _key: str) -> None:
        if call == "put":
            await asyncio.Event().wait()

    assert isinstance(place.store, MemoryStore)
    place.store.hook = hang
    monkeypatch.setattr(owner_marks, "PUT_S", 0.01)
    marks = marks_of(place, catalog)
    await marks.put([stream(7, 2)])
    place.store.hook = let_through
    late = marks_of(place, catalog)

    await late.put([stream(7, 2)])
    await marks.delete_known({7: 2})
    assert await place.list() == []

    await late.put([stream(7, 2)])
    await marks.delete_known({7: 3})
    following = marks_of(place, catalog)
    await following.find()
    await following.delete_known({7: 3})
    assert await place.list() == []


async def test_a_mark_that_a_manifest_overtakes_is_deleted_with_the_next_one(
    catalog: Catalog, place: MarkPlace
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(call: str, _key: str) -> None:
        if call == "put":
            begun.set()
            await may_end.wait()

    assert isinstance(place.store, MemoryStore)
    place.store.hook = slow
    marks = marks_of(place, catalog)
    putting = asyncio.create_task(marks.put([stream(7, 2)]))
    await begun.wait()
    await marks.delete_known({7: 2})
    may_end.set()
    await putting
    assert marks.are_standing

    await marks.delete_known({7: 2})

    assert await place.list() == []


async def test_a_mark_is_kept_until_a_manifest_has_all_of_its_epochs(catalog: Catalog, place: MarkPlace) -> None:
    marks = marks_of(place, catalog)
    await marks.put([stream(7, 2), stream(8, 5)])
    await marks.delete_known({7: 2, 8: 4})  # of a catalog that has gone back
    assert len(await read_owner_marks(place)) == 1

    await marks.delete_known({7: 3})  # stream 8 was deleted

    assert await read_owner_marks(place) == []
    assert not marks.are_standing


async def test_a_deletion_that_failed_is_repeated(catalog: Catalog, place: MarkPlace) -> None:
    async def refuse(call: str, _key: str) -> None:
        if call == "delete":
            raise StoreError("no delete")

    assert isinstance(place.store, MemoryStore)
    marks = marks_of(place, catalog)
    await marks.put([stream(7, 2)])
    place.store.hook = refuse
    await marks.delete_known({7: 2})
    place.store.hook = let_through
    assert marks.are_standing

    await marks.delete_known({7: 2})

    assert await place.list() == []


async def test_marks_of_an_earlier_process_are_deleted_too_and_a_damaged_one_is_left(
    catalog: Catalog, place: MarkPlace
) -> None:
    await marks_of(place, catalog).put([stream(7, 2)])
    await marks_of(place, catalog, 2).put([stream(7, 3, node_id=2)])
    damaged = f"{place.prefix}1/{0:020}-{0:020}-5-5"
    await place.store.put(damaged, [b"?"], writer_id="w")
    marks = marks_of(place, catalog)
    with capture_logs() as said:
        await marks.find()

    await marks.delete_known({7: 9})

    assert [line["event"] for line in said] == ["a damaged mark of owners is left in the store"]
    assert {place.key(mark) for mark in await place.list(1)} == {damaged}
    assert len(await place.list(2)) == 1
