"""Streams whose store has changed: compaction writes to the new store, and never mixes stores in one object."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.context import CompactionContext
from anabranch.compaction.interface import CleaningHooks
from anabranch.compaction.service import CompactionService
from anabranch.s3stream.model import ObjectKind, ObjectState, RangeLocation
from tests.compaction.cleaning.test_cleaner import POLICY, kafka_batch, table
from tests.compaction.sets.test_run import SMALL
from tests.support.catalog_node import UploadingNode, uploading_node
from tests.support.memory_store import MemoryStore

SO, SSO = ObjectKind.SO, ObjectKind.SSO


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        yield made


def placed(some: UploadingNode, placement: dict[int, str]) -> tuple[CompactionContext, MemoryStore]:
    other = MemoryStore("other")
    return replace(
        some.compaction_context(SMALL), stores={"m": some.store, "other": other}, placement=placement.get
    ), other


async def locations(some: UploadingNode, stream: int) -> list[RangeLocation]:
    return list(await some.catalog.find_ranges(stream, 0, 2**62, limit=100))


async def test_streams_of_different_stores_share_no_output(some: UploadingNode) -> None:
    a, b, c = await some.start(3)
    for _ in range(3):
        await some.upload((SSO, [some.batch(stream, 500) for stream in (a, b, c)]))
    before = await some.contents()
    node, other = placed(some, {a: "m", b: "other"})
    assert not (await CompactionService(node).run_timed()).errors
    (moved,) = await locations(some, b)
    assert (moved.object.kind, moved.object.store) == (SO, "m"), "a separate run, which the second level moves"
    shared = {each.object.object_id for stream in (a, c) for each in await locations(some, stream)}
    assert moved.object.object_id not in shared
    assert other.objects == {}
    assert await some.contents() == before


async def test_what_is_joined_goes_where_the_stream_does(some: UploadingNode) -> None:
    a, b = await some.start(2)
    for _ in range(6):
        await some.upload((SO, [some.batch(a, 1_000)]), (SO, [some.batch(b, 1_000)]))
    old = await some.contents()
    node, other = placed(some, {a: "other"})
    assert not (await CompactionService(node).run_once()).errors
    (moved,) = await locations(some, a)
    assert moved.object.store == "other"
    assert moved.range.end_offset == 60
    assert list(other.objects) == [node.key(moved.object.object_id)]
    assert {each.object.store for each in await locations(some, b)} == {"m"}
    dead = [info for info in await some.catalog.list_objects(after=0, limit=100) if info.state is ObjectState.DESTROYED]
    assert {info.store for info in dead} == {"m"}
    some.store, some.stream_epochs = other, {a: some.stream_epochs[a]}
    assert await some.contents() == {a: old[a]}


async def test_log_compaction_goes_on_where_the_stream_moved_to(some: UploadingNode) -> None:
    (a,) = await some.start(1)
    node, other = placed(some, {a: "m"})
    node = replace(node, cleaning=CleaningHooks(KafkaBatches(), lambda: {a: POLICY}))
    await some.upload((SO, [kafka_batch(some, a, [(b"k", b"1"), (b"l", b"1")])]))
    await CompactionService(node).run_once()
    assert (await locations(some, a))[0].object.cleaned
    some.store = other
    await some.upload((SO, [kafka_batch(some, a, [(b"k", b"2")])]))
    summary = await CompactionService(replace(node, placement={a: "other"}.get)).run_once()
    assert (summary.streams_cleaned, summary.errors) == (1, [])
    assert {each.object.store for each in await locations(some, a)} == {"other"}
    assert await table(some, a) == [(1, b"l", b"1"), (2, b"k", b"2")]
