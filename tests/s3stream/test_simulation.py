"""Random work under random faults: store and catalog fail before or after a call took effect, the node dies anywhere.

At times the clock jumps past the deadlines, and garbage collection runs concurrently with everything else. Every run is
reproducible from its seed. After each restart, acked batches must be read back once, in order, byte for byte.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import CatalogUnavailable, OffsetOutOfRange, StorageError, StorageFull, StoreError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import StreamBatch, object_key
from tests.s3stream.test_restart import (
    DEADLINES_MS,
    check_invariants,
    check_nothing_is_left,
    collector,
    end_as_text,
    note,
)
from tests.support.catalog_node import CLUSTER
from tests.support.steps import Steps, step_catalog, step_store
from tests.support.storage import SMALL, EngineCluster, make_batch, memory_cluster, read_all, same

LIVES = 5
SETTINGS = replace(
    SMALL,
    upload_threshold_bytes=12_000,
    split_bytes=4_000,
    log_cache_bytes=60_000,
    block_cache_bytes=20_000,
    index_cache_bytes=500,
    read_ahead_bytes_max=8_000,
    object_block_bytes=1_500,
    retry_ms_min=1,
    retry_ms_max=1,
)


class RandomFaults(Steps):
    """Fails a call before, or after, it took effect; a failed call may have happened."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.active = True

    async def at(self, name: str) -> None:
        """Fail now and then."""
        if self.active and "open_streams" not in name and self._rng.random() < 0.15:
            if "put" in name or "multipart" in name or name.endswith(("complete", "delete", "list")):
                raise StoreError(f"injected {name}")
            raise CatalogUnavailable(f"injected {name}")


class Life:
    """Knowledge of the node's clients, over all its restarts."""

    def __init__(self, rng: random.Random, ids: Sequence[int], collector: GarbageCollector) -> None:
        self.rng = rng
        self.ids = ids
        self.collector = collector
        self.sent: dict[int, list[StreamBatch]] = {key: [] for key in ids}
        self.acked: dict[int, list[StreamBatch]] = {key: [] for key in ids}
        self.starts: dict[int, int] = dict.fromkeys(ids, 0)
        self.reaped: set[int] = set()
        """Objects that the collector has taken from their writers."""

    async def check(self, stream: Stream) -> None:
        """Check that everything acked is there. Batches sent but not acked may be there too, in their place."""
        expected = [b for b in self.sent[stream.stream_id] if b.end_offset > stream.start_offset]
        found = await read_all(stream, bytes_max=self.rng.choice((1, 3_000, 50_000)))
        live = [b for b in found if b.end_offset > stream.start_offset]
        assert same(live, expected[: len(live)])
        acked = self.acked[stream.stream_id]
        assert not acked or stream.confirmed_offset >= acked[-1].end_offset

    async def replay(self, stream: Stream) -> None:
        """Check after a restart, then continue from the data that survived."""
        assert int(stream.snapshot or b"0") == stream.committed_offset
        start = self.starts[stream.stream_id]
        assert stream.start_offset >= start
        self.starts[stream.stream_id] = stream.start_offset
        await self.check(stream)
        kept = [b for b in self.sent[stream.stream_id] if b.end_offset <= stream.next_offset]
        self.sent[stream.stream_id] = kept
        self.acked[stream.stream_id] = list(kept)
        stream.snapshot_source = partial(end_as_text, stream)

    async def step(self, cluster: EngineCluster, engine: S3Stream, stream: Stream) -> None:
        """One random thing."""
        match self.rng.choice("aaaaaacccrftg"):
            case "a":
                for _ in range(self.rng.randint(1, 5)):
                    self.append(stream)
            case "c":
                cluster.wal.complete(None if self.rng.random() < 0.5 else min(1, len(cluster.wal.pending)))
            case "r":
                start = stream.start_offset
                try:
                    await self.check(stream)
                except OffsetOutOfRange:
                    # A trim whose answer was lost has taken effect, and the stream has the new start by now.
                    assert stream.start_offset > start
                    await self.check(stream)
            case "f" if self.rng.random() < 0.3:
                cluster.wal.complete()
                await engine.flush()
            case "t" if self.rng.random() < 0.3:
                end = stream.committed_offset
                with suppress(CatalogUnavailable):
                    await stream.trim(self.rng.randint(stream.start_offset, max(end, stream.start_offset)))
            case "g" if self.rng.random() < 0.5:
                cluster.clock.ms += self.rng.choice((0, 1000, DEADLINES_MS))
                await self.collector.collect()
            case _:
                await asyncio.sleep(0)

    async def remove_late(self, cluster: EngineCluster) -> None:
        """Delete objects that landed after they were reaped, and whose writer died or met a fault before it did so.

        Nothing else deletes them.
        """
        known = await cluster.catalog.get_objects(sorted(self.reaped))
        late = [object_key(CLUSTER, object_id) for object_id in self.reaped - set(known)]
        await cluster.store.delete([key for key in late if key in cluster.object_keys])

    def append(self, stream: Stream) -> None:
        """Append a batch if there is room."""
        base = stream.next_offset
        batch = make_batch(
            stream.stream_id, base, count=self.rng.randint(1, 9), size_bytes=self.rng.choice((10, 700, 5_000))
        )
        with suppress(StorageFull):
            durable = stream.append(batch)
            self.sent[stream.stream_id].append(batch)
            durable.add_done_callback(partial(note, self.acked[stream.stream_id], batch))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
async def test_nothing_acked_is_lost_in_a_hard_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    async with memory_cluster(tmp_path, SETTINGS, wal_bytes=200_000) as cluster:
        life = Life(rng, await cluster.create(3), collector(cluster))
        expire = cluster.catalog.expire_objects

        async def reap(object_ids: Sequence[int], *, now_ms: int) -> Sequence[int]:
            reaped = await expire(object_ids, now_ms=now_ms)
            life.reaped.update(reaped)
            return reaped

        monkeypatch.setattr(cluster.catalog, "expire_objects", reap)
        store = cluster.store
        cluster.wal.auto_complete = False
        for _ in range(LIVES):
            faults = RandomFaults(rng)
            cluster.wrap_catalog = partial(step_catalog, steps=faults)
            cluster.stores = {"main": step_store(store, faults)}
            async with cluster.engine() as engine:
                streams = await engine.open_streams(life.ids)
                for stream in streams:
                    await life.replay(stream)
                for _ in range(rng.randint(20, 80)):
                    await life.step(cluster, engine, rng.choice(streams))
                assert engine.error is None
            cluster.crash()
            cluster.stores = {"main": store}
            await life.remove_late(cluster)
            await check_invariants(cluster)
        cluster.wrap_catalog = lambda catalog: catalog
        async with cluster.engine() as engine:
            streams = await engine.open_streams(life.ids)
            for stream in streams:
                await life.replay(stream)
            cluster.wal.complete()
            await engine.close()
            for stream in streams:
                assert stream.committed_offset == stream.next_offset
        assert not cluster.wal.records
        await check_invariants(cluster)
        await check_nothing_is_left(cluster)


async def test_a_fault_that_cannot_heal_is_not_retried(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, SETTINGS) as cluster:
        (stream_id,) = await cluster.create(1)

        class Refusing(Steps):
            async def at(self, name: str) -> None:
                self.names.append(name)
                if name == "before commit_upload":
                    raise StorageError("refused for good")

        steps = Refusing()
        cluster.wrap_catalog = partial(step_catalog, steps=steps)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            _ = stream.append(make_batch(stream_id, 0))
            with pytest.raises(StorageError, match="refused for good"):
                await engine.flush()
            assert steps.names.count("before commit_upload") == 1
            assert engine.error is not None
            assert cluster.wal.used_bytes > 0
