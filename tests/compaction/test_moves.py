"""Topics that are cloned or detached: compaction continues with the others, and each reader finds its own data."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.blocks import renumber_block
from anabranch.compaction.interface import CleaningHooks, CleanPolicy
from anabranch.compaction.joins.run import plan_joins, run_join
from anabranch.compaction.service import CompactionService
from anabranch.compaction.sets.run import commit_sets, plan_sets, run_sets
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import NodeIdentity, ObjectKind, StreamBatch
from anabranch.s3stream.object.format import decode_block, encode_block
from tests.compaction.cleaning.test_cleaner import kafka_batch, table
from tests.compaction.sets.test_run import SMALL, every_object_is_accounted_for, fill
from tests.support.catalog_node import NODE_ID, UploadingNode, delete_topic, uploading_node

SO, SSO = ObjectKind.SO, ObjectKind.SSO


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        yield made


def twins(contents: Mapping[int, Sequence[StreamBatch]], pairs: Mapping[int, int]) -> bool:
    """True if each clone has the same contents as its original."""
    return all(
        [batch._replace(stream_id=clone) for batch in contents[original]] == contents[clone]
        for original, clone in pairs.items()
    )


async def test_a_clones_data_in_shared_objects_becomes_its_own(some: UploadingNode) -> None:
    await fill(some, 4, 6)
    pairs = await some.clone()
    before = await some.contents()
    assert twins(before, pairs)
    summary = await some.service(SMALL).run_once()
    assert (summary.sso_after, summary.errors) == (1, [])
    assert await some.contents() == before
    await every_object_is_accounted_for(some)
    # From here on they are independent.
    original, clone = next(iter(pairs.items()))
    await some.upload((SSO, [some.batch(original, 500), some.batch(clone, 700)]))
    await some.trim(original, some.ends[original] - 10)
    before = await some.contents()
    await some.service(SMALL).run_once()
    assert await some.contents() == before
    await delete_topic(some.catalog, "t", now_ms=some.clock.ms, delete_after_ms=some.clock.ms)
    before = await some.contents()
    assert set(before) == set(pairs.values())
    assert not (await some.service(SMALL).run_once()).errors
    assert await some.contents() == before
    await every_object_is_accounted_for(some)


async def test_stream_objects_of_a_clone_stay_shared(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    for _ in range(5):
        await some.upload((SO, [some.batch(stream, 1_000)]))
    pairs = await some.clone()
    for _ in range(3):
        await some.upload((SO, [some.batch(stream, 1_000)]), (SO, [some.batch(pairs[stream], 1_000)]))
    before = await some.contents()
    summary = await some.service().run_once()
    # The five are shared; the three of each are joined.
    assert (summary.so_before, summary.so_after, summary.errors) == (11, 7, [])
    assert await some.contents() == before
    await delete_topic(some.catalog, "t", now_ms=some.clock.ms, delete_after_ms=some.clock.ms)
    before = await some.contents()
    assert (await some.service().run_once()).errors == []
    assert await some.contents() == before
    await every_object_is_accounted_for(some)


async def test_a_clone_made_while_a_run_goes_on_loses_nothing(some: UploadingNode) -> None:
    """Between the reads and the commit: the commit is refused, and the next run takes both."""
    await fill(some, 4, 6)
    stream = min(some.ends)
    for _ in range(4):
        await some.upload((SO, [some.batch(stream, 1_000)]))
    node = some.compaction_context(SMALL)
    (plan,) = await plan_sets(node, full=True)
    (group,) = await plan_joins(node, full=True)
    pairs = await some.clone()
    before = await some.contents()
    with pytest.raises(CatalogError):
        await run_sets(node, plan, timed=False, under_pressure=lambda: False, report=lambda _: None)
    with pytest.raises(CatalogError):
        await run_join(node, group, throttle=Throttle(0), under_pressure=lambda: False)
    assert await some.contents() == before
    await every_object_is_accounted_for(some)
    summary = await some.service(SMALL).run_once()
    assert (summary.sso_after, summary.errors) == (1, [])
    assert await some.contents() == before
    assert twins(before, pairs)


async def test_a_refused_run_is_reported_and_the_rest_goes_on(
    some: UploadingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(some, 4, 6)
    stream = min(some.ends)
    for _ in range(4):
        await some.upload((SO, [some.batch(stream, 1_000)]))
    real = commit_sets

    async def late(*args: object) -> object:
        monkeypatch.undo()
        await some.clone()
        return await real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("anabranch.compaction.sets.run.commit_sets", late)
    service = some.service(SMALL)
    summary = await service.run_once()
    assert summary.sso_after == 6
    assert "live in the inputs" in summary.errors[0]
    assert (await service.run_once()).sso_after == 1


async def test_a_detached_topic_keeps_its_data(some: UploadingNode) -> None:
    """Detached between the reads and the commit, compacted while it is away, and attached again."""
    await fill(some, 4, 6)
    streams = list(some.ends)
    node = some.compaction_context(SMALL)
    (plan,) = await plan_sets(node, full=True)
    before = await some.contents()
    topic = await some.find_topic("t")
    ends = {stream: some.ends[stream] for stream in streams}
    await some.catalog.detach_topic(
        "t", topic.topic_id, ends=ends, node=NodeIdentity(NODE_ID, some.epoch), now_ms=some.clock.ms
    )
    await run_sets(node, plan, timed=False, under_pressure=lambda: False, report=lambda _: None)
    assert await some.contents() == before
    assert (await some.service(SMALL).run_once()).errors == []
    assert await some.contents() == before
    await some.catalog.attach_topic(topic.topic_id, "t", node=NodeIdentity(NODE_ID, some.epoch))
    assert (await some.service(SMALL).run_once()).errors == []
    assert await some.contents() == before
    await every_object_is_accounted_for(some)


async def test_a_compacted_topic_and_its_clone_are_cleaned_each_by_itself(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    for at in range(4):
        await some.upload((SO if at % 2 else SSO, [kafka_batch(some, stream, [(b"k", b"%d" % at), (b"x", b"x")])]))
    clone = (await some.clone())[stream]
    policy = CleanPolicy(dirty_ratio_min=0.0, lag_ms_min=0, lag_ms_max=1 << 60, delete_retention_ms=0)

    def service(*streams: int) -> CompactionService:
        cleaning = CleaningHooks(KafkaBatches(), lambda: dict.fromkeys(streams, policy))
        return CompactionService(replace(some.compaction_context(), cleaning=cleaning))

    before = await table(some, stream)
    assert (await service(clone).run_once()).records_removed == 6
    assert await table(some, clone) == [(6, b"k", b"3"), (7, b"x", b"x")]
    assert await table(some, stream) == before
    assert (await service(stream, clone).run_once()).records_removed == 6
    assert await table(some, stream) == await table(some, clone)
    await every_object_is_accounted_for(some)


@pytest.mark.parametrize("seed", range(4))
async def test_any_history_with_clones_reads_the_same(some: UploadingNode, seed: int) -> None:
    rng = random.Random(seed)
    ids = list(await some.start(3))
    node = replace(some.compaction_context(SMALL), sleep=lambda _: asyncio.sleep(0))
    service = CompactionService(node)
    names = ["t"]
    for _ in range(25):
        action = rng.choice(["sso", "so", "clone", "trim", "compact", "compact"])
        if action in {"sso", "so"}:
            batches = [some.batch(stream, rng.choice([10, 3_000, 30_000])) for stream in rng.sample(ids, 2)]
            if action == "sso":
                await some.upload((SSO, batches))
            else:
                await some.upload(*((SO, [batch]) for batch in batches))
        elif action == "clone" and len(names) < 4:
            source, name = rng.choice(names), f"c{len(names)}"
            names.append(name)
            ids += (await some.clone(source, name)).values()
        elif action == "trim":
            stream = rng.choice(ids)
            info = (await some.catalog.get_streams([stream]))[stream]
            await some.trim(stream, rng.randint(info.start_offset, info.end_offset))
        elif action == "compact":
            before = await some.contents()
            summary = await (service.run_once() if rng.random() < 0.5 else service.run_timed())
            assert summary.errors == []
            assert await some.contents() == before
        some.clock.ms += rng.randrange(3_600_000)
    assert service.stats.commits > 0
    await every_object_is_accounted_for(some)


def test_a_renumbered_block_holds_the_same_batches() -> None:
    batches = [StreamBatch(7, 0, 10, 10, 5, b"abc"), StreamBatch(7, 10, 1 << 40, 1, 6, b"de")]
    entry, parts = encode_block(batches, 0)
    found, block = renumber_block(entry, memoryview(b"".join(parts)), 9)
    decoded = decode_block(block, found, where="here")
    assert [batch._replace(payload=bytes(batch.payload)) for batch in decoded] == [
        batch._replace(stream_id=9) for batch in batches
    ]
