"""Offsets by time, compared with a scan of every batch; and the blocks that are read for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.read.time_lookup import first_at_or_after
from tests.support.storage import EngineCluster, make_batch, memory_cluster

TIMES = (5, 3, 9, 9, 2, 12, 11, 20, 1, 30)


class Timed(NamedTuple):
    max_timestamp_ms: int


@given(st.lists(st.integers(0, 9)), st.integers(-1, 10))
def test_the_first_at_or_after_is_the_first_that_is_not_older(times: list[int], timestamp: int) -> None:
    items = [Timed(time) for time in times]
    before = next((at for at, time in enumerate(times) if time >= timestamp), len(times))
    assert first_at_or_after(items, timestamp) is (items[before] if before < len(times) else None)


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
async def test_a_stream_finds_an_offset_by_time_wherever_the_data_lies(tmp_path: Path, start: int) -> None:
    async with memory_cluster(tmp_path) as cluster, cluster.engine() as engine:
        stream = await open_stream(cluster, engine)
        await fill(stream, engine, TIMES)
        await stream.trim(start)
        for timestamp in range(32):
            first = await stream.offset_for_time(timestamp)
            expected = expected_first(TIMES, timestamp, start)
            assert (None if first is None else first.base_offset) == expected


async def test_a_look_up_reads_one_index_and_one_block(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            await fill(stream, engine, TIMES[:7])
            await engine.close()
        cluster.crash()
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            gets = cluster.store.calls.get
            first = await stream.offset_for_time(9)
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
