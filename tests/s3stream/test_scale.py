"""Ten thousand streams: memory within the configured sum, and objects that follow bytes, not streams."""

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.settings import KIB, MIB, StorageSettings
from tests.support.storage import fill, memory_cluster, read_all

STREAMS = 10_000
SETTINGS = StorageSettings(
    upload_threshold_bytes=6 * MIB,
    log_cache_bytes=16 * MIB,
    block_cache_bytes=4 * MIB,
    index_cache_bytes=4 * MIB,
    uploads_in_flight=1,
)
STREAM_BYTES = 2 * KIB
"""Memory allowed for one open stream: the stream object, its runs, its entries in tables."""


@pytest.mark.slow
async def test_memory_stays_within_the_configured_sum(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, SETTINGS, wal_bytes=64 * MIB) as cluster:
        ids = await cluster.create(STREAMS)
        async with cluster.engine() as engine:
            gc.collect()
            tracemalloc.start()
            streams = await engine.open_streams(ids)
            for _ in range(3):
                for stream in streams:
                    while not engine.writable:
                        await engine.wait_writable()
                    fill(stream, 1, size_bytes=500)
            await engine.flush()
            for stream in streams[:100]:
                assert len(await read_all(stream)) == 3
            gc.collect()
            used_bytes, peak_bytes = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            # The memory store keeps its objects, the memory WAL nothing any more.
            outside = sum(len(data) for data, _, _ in cluster.store.objects.values())
            limits = SETTINGS.log_cache_bytes + SETTINGS.block_cache_bytes + SETTINGS.index_cache_bytes
            assert used_bytes - outside < limits + STREAMS * STREAM_BYTES
            assert engine.log_cache_bytes <= SETTINGS.log_cache_bytes
            assert engine.block_cache_bytes <= SETTINGS.block_cache_bytes
            # On the way: a WAL that is copied in memory, and one upload's object.
            assert peak_bytes - outside < 2 * limits + STREAMS * STREAM_BYTES


@pytest.mark.parametrize("count", [1, 100, 1000])
async def test_calls_follow_bytes_not_streams(tmp_path: Path, count: int) -> None:
    settings = replace(SETTINGS, upload_threshold_bytes=64 * MIB, log_cache_bytes=64 * MIB)
    async with memory_cluster(tmp_path, settings, wal_bytes=64 * MIB) as cluster, cluster.engine() as engine:
        streams = await engine.open_streams(await cluster.create(count))
        for _ in range(2):
            for stream in streams:
                fill(stream, 2000 // count, size_bytes=1000)
            await engine.flush()
        calls = cluster.store.calls
        # An object and a mark for each upload, and the marks of earlier lives are listed once.
        assert (calls.put, calls.part, calls.multipart, calls.get, calls.list) == (4, 0, 0, 0, 1)
