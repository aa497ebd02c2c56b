"""Compaction with concurrent activity: slow readers, a new node epoch, restarts in the second level, many periods."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.interface import CleaningHooks, CleanPolicy
from anabranch.compaction.joins.run import plan_joins, run_join
from anabranch.compaction.service import CompactionService
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.errors import CatalogUnavailable, NodeFenced, ObjectNotFound, StoreError
from anabranch.s3stream.model import ObjectKind, ObjectState, StreamOwner, object_key
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.object.reader import read_index
from tests.compaction.cleaning.test_cleaner import kafka_batch, table
from tests.compaction.sets.test_run import SMALL, every_object_is_accounted_for, fill
from tests.support.catalog_node import CLUSTER, HOUR_MS, NODE_ID, WAL_ID, UploadingNode, delete_topic, uploading_node
from tests.support.memory_store import MemoryStore, let_through

SO, SSO = ObjectKind.SO, ObjectKind.SSO
MIB = 1 << 20


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        yield made


def memory(made: UploadingNode) -> MemoryStore:
    assert isinstance(made.store, MemoryStore)
    return made.store


async def delete_due(made: UploadingNode) -> None:
    """Delete objects past their deadline, as the node's garbage collection does."""
    due = await made.catalog.list_reapable(now_ms=made.clock.ms, limit=1_000)
    keys = {object_key(CLUSTER, info.object_id): info.object_id for info, _ in due}
    assert not await made.store.delete(list(keys))
    await made.catalog.forget_objects(list(keys.values()))


async def test_a_slow_reader_finds_its_object_until_the_delay_is_over(some: UploadingNode) -> None:
    await fill(some, 2, 4)
    stream = min(some.ends)
    (location, *_) = await some.catalog.find_ranges(stream, 0, 1, limit=1)
    key = object_key(CLUSTER, location.object.object_id)
    entries = (await read_index(some.store, key)).find(stream)
    before = await some.contents()
    await some.service(SMALL).run_once()
    some.clock.ms += SMALL.delete_delay_ms - 1
    await delete_due(some)
    read = []
    for entry in entries:
        read += decode_block(await some.store.get(key, entry.position, entry.end_position), entry, where=key)
    assert [bytes(batch.payload) for batch in read] == [batch.payload for batch in before[stream][: len(read)]]
    some.clock.ms += 1
    await delete_due(some)
    with pytest.raises(ObjectNotFound):
        await some.store.get(key, 0, 1)
    assert await some.contents() == before
    await every_object_is_accounted_for(some)


async def joinable(made: UploadingNode) -> int:
    (stream,) = await made.start(1)
    for size in (2 * MIB, 6 * MIB, 6 * MIB, 1_000):
        await made.upload((SO, [made.batch(stream, size)]))
    return stream


async def restart(made: UploadingNode) -> CompactionService:
    """The process is gone, and another one has its id."""
    node = await made.catalog.register_node(NODE_ID, "localhost", 1, now_ms=made.clock.ms, lease_ms=HOUR_MS)
    made.epoch = node.epoch
    return made.service(SMALL)


@pytest.mark.parametrize("call", ["part", "part_copy", "multipart"])
async def test_a_restart_when_half_is_copied_undoes_it(some: UploadingNode, call: str) -> None:
    """Nothing can be discarded, as nothing works any more; the deadline takes the upload that is left."""
    stream = await joinable(some)
    before = await some.contents()
    seen = 0

    async def die(what: str, _: str) -> None:
        nonlocal seen
        seen += what == call
        if seen:
            raise StoreError("gone")

    memory(some).hook = die
    with pytest.raises(StoreError):
        await some.service(SMALL).run_once()
    memory(some).hook = let_through
    assert await some.contents() == before
    assert len(await some.catalog.list_stream_objects(stream)) == 4
    some.clock.ms += SMALL.prepare_ttl_ms
    for info, upload_id in await some.catalog.list_reapable(now_ms=some.clock.ms, limit=10):
        if upload_id:
            await some.store.abort_multipart(object_key(CLUSTER, info.object_id), upload_id)
    await delete_due(some)
    assert not memory(some).uploads
    assert len(memory(some).objects) == 4
    assert (await (await restart(some)).run_once()).so_after == 1
    assert await some.contents() == before


async def test_a_restart_when_all_is_copied_but_not_committed_starts_again(some: UploadingNode) -> None:
    await joinable(some)
    before = await some.contents()
    node = some.compaction_context(SMALL)
    (group,) = await plan_joins(node, full=True)

    async def unreachable(_seconds: float) -> None:
        return

    class Catalog:
        def __getattr__(self, name: str) -> object:
            if name == "commit_compaction":
                raise CatalogUnavailable("away")
            return getattr(some.catalog, name)

    failing = replace(node, catalog=Catalog(), sleep=unreachable)  # type: ignore[arg-type]
    with pytest.raises(CatalogUnavailable):
        await run_join(failing, group, throttle=Throttle(0), under_pressure=lambda: False)
    # It may have been committed: nothing is discarded, the object is whole, and its deadline takes it.
    assert len(memory(some).objects) == 5
    assert await some.contents() == before
    service = await restart(some)
    assert (await service.run_once()).so_after == 1
    some.clock.ms += SMALL.prepare_ttl_ms
    await delete_due(some)
    assert len(memory(some).objects) == 1
    assert await some.contents() == before


async def test_a_restart_when_the_inputs_are_not_deleted_yet_is_finished(some: UploadingNode) -> None:
    await joinable(some)
    before = await some.contents()
    await some.service(SMALL).run_once()
    assert len(memory(some).objects) == 5
    service = await restart(some)
    assert (await service.run_once()).commits == 0
    some.clock.ms += SMALL.delete_delay_ms
    await delete_due(some)
    assert len(memory(some).objects) == 1
    assert await some.contents() == before


async def test_another_epoch_between_plan_and_commit_of_each_level(some: UploadingNode) -> None:
    """A new epoch of the stream does not disturb a commit of committed data. A new epoch of the node fences it."""
    stream = await joinable(some)
    node = some.compaction_context(SMALL)
    (group,) = await plan_joins(node, full=True)
    (opened,) = await some.catalog.open_streams([stream], StreamOwner(NODE_ID, some.epoch, WAL_ID))
    some.stream_epochs[stream] = opened.info.epoch
    await some.upload((SO, [some.batch(stream, 500)]))
    before = await some.contents()
    assert await run_join(node, group, throttle=Throttle(0), under_pressure=lambda: False) is not None
    assert await some.contents() == before
    (group,) = await plan_joins(node, full=True)
    await restart(some)
    stored = set(memory(some).objects)
    with pytest.raises(NodeFenced):
        await run_join(node, group, throttle=Throttle(0), under_pressure=lambda: False)
    assert set(memory(some).objects) == stored
    assert await some.contents() == before


async def test_a_trim_and_a_deletion_between_plan_and_commit_of_the_second_level(some: UploadingNode) -> None:
    stream = await joinable(some)
    node = some.compaction_context(SMALL)
    (group,) = await plan_joins(node, full=True)
    await some.trim(stream, 25)
    before = await some.contents()
    assert await run_join(node, group, throttle=Throttle(0), under_pressure=lambda: False) is not None
    assert await some.contents() == before
    await some.upload((SO, [some.batch(stream, 500)]))
    (group,) = await plan_joins(node, full=True)
    await delete_topic(some.catalog, "t", now_ms=some.clock.ms, delete_after_ms=some.clock.ms)
    await run_join(node, group, throttle=Throttle(0), under_pressure=lambda: False)
    assert not any(name.endswith(ObjectState.COMMITTED.name.lower()) for name in await some.catalog.count_objects())
    await every_object_is_accounted_for(some)


@pytest.mark.slow
async def test_a_compacted_topic_that_is_overwritten_for_ever_stays_bounded(some: UploadingNode) -> None:
    """Three days of periods: little data of a compacted and of another topic, in objects that many streams share."""
    rng = random.Random(1)
    stream, other = await some.start(2)
    policy = CleanPolicy(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=1 << 60, delete_retention_ms=HOUR_MS)
    cleaning = CleaningHooks(KafkaBatches(), lambda: {stream: policy})
    service = CompactionService(replace(some.compaction_context(), cleaning=cleaning))
    model: dict[bytes | None, bytes] = {}
    sizes, counts = [], []
    for _ in range(3 * 24 * 3):
        records = [(b"key-%d" % rng.randrange(20), rng.randbytes(20)) for _ in range(10)]
        model |= dict(records)
        await some.upload((SSO, [kafka_batch(some, stream, list(records)), some.batch(other, 100)]))
        some.clock.ms += 20 * 60_000
        await service.run_timed()
        ranges = await some.catalog.find_ranges(stream, 0, 1 << 40, limit=1_000)
        sizes.append(sum(each.range.size_bytes for each in ranges))
        counts.append(len(ranges))
    third = len(sizes) // 3
    assert max(sizes[2 * third :]) <= 1.1 * max(sizes[third : 2 * third])
    assert max(counts[third:]) <= 8
    # Less than three hours' worth: two until it is split off, and as much again dirty as clean.
    assert max(sizes[third:]) < 9 * 10 * (20 + 40) + 4_000
    assert {key: value for _, key, value in await table(some, stream)} == model
    assert service.stats.streams_cleaned > 5
