"""A read that begins after log compaction's commit finds the removed records nowhere, caches included."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.model import ObjectKind, RangeLocation, StreamBatch, object_key
from tests.support.catalog_node import CLUSTER
from tests.support.steps import Steps, step_catalog
from tests.support.storage import EngineCluster, fill, memory_cluster, read_all, same

CLEANED = b"cleaned"


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[tuple[EngineCluster, S3Stream, Stream]]:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            yield cluster, engine, stream


async def clean(cluster: EngineCluster, engine: S3Stream, batches: Sequence[StreamBatch]) -> list[StreamBatch]:
    """Replace the objects that hold the batches by one with other payloads, as log compaction does."""
    stream_id, end = batches[0].stream_id, batches[-1].end_offset
    cleaned = [batch._replace(payload=CLEANED) for batch in batches]
    locations = await cluster.catalog.find_ranges(stream_id, 0, end, limit=100)
    assert locations[-1].range.end_offset == end
    node = await cluster.uploading_node()
    await node.compact([each.object for each in locations], (ObjectKind.SO, cleaned), block_bytes=4096)
    return cleaned


async def test_what_is_committed_leaves_the_log_cache_and_what_is_not_stays(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cluster, engine, stream):
        sent = fill(stream, 4)
        await engine.flush()
        sent += fill(stream, 4)
        await engine.flush()
        sent += fill(stream, 2)
        cleaned = await clean(cluster, engine, sent[:4])
        engine.supersede(stream.stream_id, 40)
        assert stream.cached_start() == 40
        assert same(await read_all(stream), cleaned + sent[4:])
        assert stream.read_cached(0, 1000) is None
        assert stream.cached_for_time(0, 0) == sent[4]


async def test_a_run_that_is_removed_in_part_leaves_as_a_whole(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cluster, engine, stream):
        sent = fill(stream, 4)
        await engine.flush()
        engine.supersede(stream.stream_id, 15)
        assert engine.log_cache_bytes == 0
        assert same(await read_all(stream), sent)
        more = fill(stream, 1)
        engine.supersede(stream.stream_id, 15)
        assert same(await read_all(stream), sent + more)
        assert cluster.store.calls.get > 0


async def test_what_is_not_known_to_be_committed_stays_until_it_is(tmp_path: Path) -> None:
    """The upload's commit took effect and its answer is still under way: compaction may have cleaned the new data."""
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        steps = Steps()
        cluster.wrap_catalog = partial(step_catalog, steps=steps)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 4)
            answer = steps.gates["after commit_upload"] = asyncio.Event()
            flushing = asyncio.create_task(engine.flush())
            await steps.seen("after commit_upload")
            cleaned = await clean(cluster, engine, sent)
            engine.supersede(stream_id, 40)
            assert same(await read_all(stream), sent), "nothing else is known to hold it"
            answer.set()
            await flushing
            assert same(await read_all(stream), cleaned)


async def test_no_read_joins_one_that_began_before(tmp_path: Path) -> None:
    """The earlier read has read the first object when it is replaced, and waits for the second."""
    async with opened(tmp_path) as (cluster, engine, stream):
        sent = fill(stream, 4)
        await engine.flush()
        sent += fill(stream, 4)
        await engine.flush()
        engine.supersede(stream.stream_id, 80)  # an earlier cleaning: memory has nothing now
        _, second = await cluster.catalog.find_ranges(stream.stream_id, 0, 80, limit=2)
        gate, waits = asyncio.Event(), asyncio.Event()

        async def hold(call: str, key: str) -> None:
            if call == "get" and key == object_key(CLUSTER, second.object.object_id):
                waits.set()
                await gate.wait()

        cluster.store.hook = hold
        before = asyncio.create_task(stream.read(0, 1 << 20))
        await waits.wait()
        cleaned = await clean(cluster, engine, sent[:4])
        engine.supersede(stream.stream_id, 40)
        after = asyncio.create_task(stream.read(0, 1 << 20))
        await asyncio.sleep(0)
        gate.set()
        assert same((await before).batches, sent), "as it was when the read began"
        assert same((await after).batches, cleaned + sent[4:])
        await engine.loads_done()


async def test_a_look_up_under_way_leaves_no_old_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as (cluster, engine, stream):
        sent = fill(stream, 4)
        await engine.flush()
        engine.supersede(stream.stream_id, 40)
        gate, found, find_ranges = asyncio.Event(), asyncio.Event(), cluster.catalog.find_ranges

        async def answer_late(stream_id: int, start: int, end: int, *, limit: int) -> Sequence[RangeLocation]:
            locations = await find_ranges(stream_id, start, end, limit=limit)
            found.set()
            await gate.wait()
            return locations

        monkeypatch.setattr(cluster.catalog, "find_ranges", answer_late)
        before = asyncio.create_task(stream.read(0, 1 << 20))
        await found.wait()
        monkeypatch.setattr(cluster.catalog, "find_ranges", find_ranges)
        cleaned = await clean(cluster, engine, sent)
        engine.supersede(stream.stream_id, 40)
        gate.set()
        _ = await before
        assert same((await stream.read(0, 1 << 20)).batches, cleaned)


async def test_a_stream_that_comes_back_shows_what_was_cleaned_elsewhere(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cluster, engine, stream):
        sent = fill(stream, 4)
        await engine.flush()
        await engine.close_stream(stream)
        cleaned = await clean(cluster, engine, sent)
        (again,) = await engine.open_streams([stream.stream_id])
        assert same(await read_all(again), cleaned)
