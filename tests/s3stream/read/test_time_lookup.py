"""Both boundaries by time, compared with a scan of every batch; and the blocks they read."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.model import StreamBatch
from anabranch.s3stream.read.time_lookup import first_at_or_after, last_at_or_before, offset_before
from tests.support.storage import EngineCluster, make_batch, memory_cluster

TIMES = (5, 3, 9, 9, 2, 12, 11, 20, 1, 30)


class Timed(NamedTuple):
    max_timestamp_ms: int


def batches_of(times: Iterable[int]) -> list[StreamBatch]:
    return [make_batch(1, 10 * at, timestamp=time, size_bytes=10) for at, time in enumerate(times)]


@given(st.lists(st.integers(0, 9)), st.integers(-1, 10))
def test_the_boundaries_are_neighbours(times: list[int], timestamp: int) -> None:
    items = [Timed(time) for time in times]
    first = first_at_or_after(items, timestamp + 1)
    last = last_at_or_before(items, timestamp)
    before = next((at for at, time in enumerate(times) if time > timestamp), len(times))
    assert (first is None) == (before == len(times))
    assert (last is None) == (before == 0)
    assert first is None or first is items[before]
    assert last is None or last is items[before - 1]


@given(st.lists(st.integers(0, 9)).map(sorted), st.integers(-1, 10))
def test_where_time_only_grows_the_last_is_the_newest_of_all(times: list[int], timestamp: int) -> None:
    last = last_at_or_before([Timed(time) for time in times], timestamp)
    assert (-1 if last is None else last.max_timestamp_ms) == max((t for t in times if t <= timestamp), default=-1)


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 9), st.integers(0, 60))
def test_the_offset_before_is_that_of_the_batch_before(times: list[int], timestamp: int, start: int) -> None:
    batches = batches_of(times)
    end = 10 * len(times)
    kept = [batch for batch in batches if batch.end_offset > start]
    last = last_at_or_before(kept, timestamp)
    found = offset_before(first_at_or_after(kept, timestamp + 1), start, end)
    assert found == (None if last is None else last.end_offset - 1)


async def open_stream(cluster: EngineCluster, engine: S3Stream) -> Stream:
    (stream_id,) = await cluster.create(1)
    (stream,) = await engine.open_streams([stream_id])
    return stream


async def fill(stream: Stream, engine: S3Stream, times: Sequence[int]) -> None:
    """Some of it into objects, several blocks each, the rest only into the log."""
    for at, time in enumerate(times):
        batch = make_batch(stream.stream_id, stream.next_offset, timestamp=time, size_bytes=2_500)
        await stream.append(batch)
        if at in {3, 6}:
            await engine.flush()


def expected_first(times: Sequence[int], timestamp: int, start: int) -> int | None:
    return next((10 * at for at, time in enumerate(times) if time >= timestamp and 10 * at + 10 > start), None)


@pytest.mark.parametrize("start", [0, 20, 45])
async def test_a_stream_finds_both_boundaries_wherever_the_data_lies(tmp_path: Path, start: int) -> None:
    async with memory_cluster(tmp_path) as cluster, cluster.engine() as engine:
        stream = await open_stream(cluster, engine)
        await fill(stream, engine, TIMES)
        await stream.trim(start)
        for timestamp in range(32):
            first = await stream.offset_for_time(timestamp)
            expected = expected_first(TIMES, timestamp, start)
            assert (None if first is None else first.base_offset) == expected
            newer = expected_first(TIMES, timestamp + 1, start)
            end = 100 if newer is None else newer
            assert await stream.last_offset_for_time(timestamp) == (end - 1 if end > start else None)


async def test_a_look_up_reads_one_index_and_one_block(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            await fill(stream, engine, TIMES[:7])
            await engine.close()
        for timestamp, last in ((9, False), (8, True)):
            cluster.crash()
            async with cluster.engine() as engine:
                (stream,) = await engine.open_streams([stream_id])
                gets = cluster.store.calls.get
                if last:
                    assert await stream.last_offset_for_time(timestamp) == 19
                else:
                    first = await stream.offset_for_time(timestamp)
                    assert first is not None
                    assert first.base_offset == 20
                assert cluster.store.calls.get - gets == 2
                assert engine.stats.block_cache_misses == 1


UNTIMED = b"untimed"


@pytest.mark.parametrize("flushed", [(), (3,), (3, 6), (9,)])
@pytest.mark.parametrize("untimed_end", [0, 25, 100])
@pytest.mark.parametrize("start", [0, 15, 60])
async def test_the_cut_by_age_is_before_the_first_that_is_young_or_has_no_time(
    tmp_path: Path, flushed: Sequence[int], untimed_end: int, start: int
) -> None:
    """Batches at time 5, or without one, or mixed, which only the payload tells; all committed long after 5."""
    times = (5, 5, -1, 5, 5, 5, 5, -1, 5, 5)
    mixed = {4}
    async with memory_cluster(tmp_path) as cluster, cluster.engine() as engine:
        stream = await open_stream(cluster, engine)
        for at, time in enumerate(times):
            payload = UNTIMED if at in mixed else b"x" * 2_500
            batch = make_batch(stream.stream_id, stream.next_offset)
            await stream.append(batch._replace(max_timestamp_ms=time, payload=memoryview(payload)))
            if at in flushed:
                await engine.flush()
        await stream.trim(start)
        committed_ms, end = cluster.clock.ms, stream.committed_offset
        untimed = {2, 7} | mixed

        def expected(since_ms: int) -> int:
            for at, time in enumerate(times):
                is_young = since_ms <= committed_ms or 10 * at >= end
                if 10 * at + 10 > start and (
                    time >= since_ms or (at in untimed and 10 * at < untimed_end and is_young)
                ):
                    return max(10 * at, start) if time < since_ms else 10 * at
            return 100

        for since_ms in (5, 6, committed_ms, committed_ms + 1):
            found = await stream.offset_for_age(since_ms, untimed_end, lambda payload: bytes(payload) == UNTIMED)
            assert found == expected(since_ms), since_ms
