"""Where a stream is cut to keep so many bytes."""

from pathlib import Path

import pytest

from s3stream.size_lookup import SLACK_SHARE
from tests.support.storage import fill, memory_cluster

BATCH = 3_000
COUNT = 12


@pytest.mark.parametrize("trimmed", [0, 30, 35])
@pytest.mark.parametrize("uploads", [1, 4])
async def test_the_cut_keeps_at_least_the_limit_and_hardly_more(tmp_path: Path, trimmed: int, uploads: int) -> None:
    """A batch is a block of its own here."""
    async with memory_cluster(tmp_path) as cluster, cluster.engine() as engine:
        (stream,) = await engine.open_streams(await cluster.create(1))
        for _ in range(uploads):
            fill(stream, COUNT // uploads, size_bytes=BATCH)
            await engine.flush()
        await stream.trim(trimmed)
        for limit in range(0, 13 * BATCH, 1_000):
            cut = await stream.offset_for_size(limit)
            assert cut % 10 == 0 or cut == trimmed
            kept = sum(BATCH for base in range(0, 120, 10) if base + 10 > max(cut, trimmed))
            whole = sum(BATCH for base in range(0, 120, 10) if base + 10 > trimmed)
            assert cut >= trimmed
            if cut > trimmed:
                assert kept * 1.05 >= limit, "never below the limit"
            if kept > limit + max(BATCH, limit // SLACK_SHARE) * 1.05:
                raise AssertionError(f"limit {limit}: kept {kept} of {whole}")


async def test_what_is_not_in_objects_counts_and_stays(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster, cluster.engine() as engine:
        (stream,) = await engine.open_streams(await cluster.create(1))
        fill(stream, 4, size_bytes=BATCH)
        assert await stream.offset_for_size(0) == 0
        await engine.flush()
        fill(stream, 4, size_bytes=BATCH)
        assert await stream.offset_for_size(0) == 40
        assert await stream.offset_for_size(4 * BATCH) == 40
        assert await stream.offset_for_size(6 * BATCH) == 20
        assert await stream.offset_for_size(8 * BATCH) == 0
