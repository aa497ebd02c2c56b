"""The offset at which a stream is trimmed to keep a number of bytes."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import CompactionCommit
from anabranch.s3stream.model import NodeIdentity, ObjectKind, object_key
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.read.size_lookup import SLACK_SHARE
from tests.support.catalog_node import CLUSTER, NODE_ID
from tests.support.storage import fill, make_batch, memory_cluster

BATCH = 3_000
COUNT = 12


@pytest.mark.parametrize("trimmed", [0, 30, 35])
@pytest.mark.parametrize("uploads", [1, 4])
async def test_the_cut_keeps_at_least_the_limit_and_hardly_more(tmp_path: Path, trimmed: int, uploads: int) -> None:
    """Each batch is a separate block here."""
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


class Shifting:
    """A catalog in which something happens right after the first question for a size, or right before it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.before: Callable[[], Awaitable[object]] | None = None
        self.after: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    async def stream_bytes(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        before, self.before = self.before, None
        if before is not None:
            await before()
        sizes = await self._catalog.stream_bytes(stream_ids)
        after, self.after = self.after, None
        if after is not None:
            await after()
        return sizes


async def test_an_upload_meanwhile_is_not_counted_twice(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        shifting = Shifting(cluster.catalog)
        cluster.wrap_catalog = lambda _: cast("Catalog", shifting)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams(await cluster.create(1))
            for _ in range(2):
                fill(stream, 4, size_bytes=BATCH)
                await engine.flush()
            fill(stream, 4, size_bytes=BATCH)
            shifting.before = engine.flush
            assert await stream.offset_for_size(12 * BATCH) == 0
            assert await stream.offset_for_size(10 * BATCH) == 20


async def test_what_compaction_removes_meanwhile_is_not_cut_once_more(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        shifting = Shifting(cluster.catalog)
        cluster.wrap_catalog = lambda _: cast("Catalog", shifting)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams(await cluster.create(1))
            fill(stream, 12, size_bytes=BATCH)
            await engine.flush()

            async def shrink() -> None:
                (found,) = await cluster.catalog.find_ranges(stream.stream_id, 0, 120, limit=1)
                (object_id,) = await cluster.catalog.prepare_objects(
                    1, node=NodeIdentity(NODE_ID, 1), writer_id="w", store="main", now_ms=0, deadline_ms=1 << 60
                )
                key = object_key(CLUSTER, object_id)
                writer = ObjectWriter(cluster.store, key, object_id=object_id, kind=ObjectKind.SO, writer_id="w")
                await writer.write(make_batch(stream.stream_id, 0, count=120, size_bytes=4 * BATCH))
                await cluster.catalog.commit_compaction(
                    CompactionCommit(NodeIdentity(NODE_ID, 1), [found.object.object_id], [await writer.finish()], 0, 0)
                )

            shifting.after = shrink
            assert await stream.offset_for_size(4 * BATCH) == 0
            assert await stream.offset_for_size(4 * BATCH) == 0
