"""Claims of stores: one catalog wins, and comes back as often as it likes."""

import asyncio

import pytest

from anabranch.s3stream.errors import CatalogError, CorruptObject
from anabranch.s3stream.maintain.claim import check_claim, claim_key, claim_store
from anabranch.s3stream.model import parse_object_key
from tests.support.memory_store import MemoryStore

OURS, THEIRS = b"o" * 16, b"t" * 16


async def test_of_two_catalogs_one_claims_the_store_and_keeps_it() -> None:
    store = MemoryStore("main")
    assert not await check_claim(store, "c", OURS)

    first, second = await asyncio.gather(
        claim_store(store, "c", OURS), claim_store(store, "c", THEIRS), return_exceptions=True
    )

    assert first is None
    assert isinstance(second, CatalogError)
    assert f"catalog {OURS.hex()} has claimed it (claim/c), and this is catalog {THEIRS.hex()}" in str(second)
    await claim_store(store, "c", OURS)
    assert await check_claim(store, "c", OURS)
    with pytest.raises(CatalogError, match="belongs to another cluster of the name 'c'"):
        await check_claim(store, "c", THEIRS)
    assert [key async for key, *_ in store.list()] == [claim_key("c")]


async def test_a_copy_of_the_store_without_the_ids_of_writers_is_claimed() -> None:
    store, copy = MemoryStore("main"), MemoryStore("main")
    await claim_store(store, "c", OURS)
    await copy.put(claim_key("c"), [(await store.get_tail(claim_key("c"), 1000)).data], writer_id="")
    await claim_store(copy, "c", OURS)
    with pytest.raises(CatalogError, match=f"catalog {OURS.hex()} has claimed it"):
        await claim_store(copy, "c", THEIRS)


async def test_damage_is_named() -> None:
    store = MemoryStore("main")
    await store.put(claim_key("c"), [b"[]"], writer_id="w")
    with pytest.raises(CorruptObject, match="main:claim/c: not a claim"):
        await claim_store(store, "c", OURS)


async def test_clusters_of_different_names_share_a_store() -> None:
    store = MemoryStore("main")
    await claim_store(store, "c", OURS)
    await claim_store(store, "c2", THEIRS)
    assert await check_claim(store, "c2", THEIRS)


async def test_the_key_of_a_claim_is_no_key_of_an_object() -> None:
    assert parse_object_key(claim_key("7")) is None
