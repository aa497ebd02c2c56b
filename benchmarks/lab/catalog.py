"""Commits and look-ups in a catalog on SQLite that grows.

Each stream gets one range in every stream set object, committed through the catalog's interface. Then random offsets
and times are looked up, one call after the other.
"""

import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, UploadCommit
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectKind, StreamOwner, StreamRange
from benchmarks.support import middle, p99

NODE = 1
STREAMS = 1_000
RECORDS_PER_RANGE = 100
MS_PER_OBJECT = 60_000
OBJECTS_PER_PREPARE = 50
COMMITS_MEASURED = 10


@dataclass
class Filler:
    """Commits objects with a range of each stream."""

    catalog: Catalog
    node: NodeInfo
    streams: Sequence[int]
    objects: int = 0

    @classmethod
    async def create(cls, catalog: Catalog, streams: int) -> Self:
        """Register a node and create a topic of so many partitions."""
        node = await catalog.register_node(NODE, "127.0.0.1", 9092, now_ms=0, lease_ms=10_000)
        topic = await catalog.create_topic("t", bytes(16), partitions=streams, configs={}, leader=NODE, internal=False)
        opened = [partition.stream_id for partition in topic.partitions]
        await catalog.open_streams(opened, StreamOwner(NODE, node.epoch, "bench"))
        return cls(catalog, node, opened)

    @property
    def end_offset(self) -> int:
        """End of each stream."""
        return self.objects * RECORDS_PER_RANGE

    async def commit(self, count: int) -> float:
        """Commit more objects; return the seconds of a commit."""
        began = time.perf_counter()
        for first in range(0, count, OBJECTS_PER_PREPARE):
            ids = await self.catalog.prepare_objects(
                min(OBJECTS_PER_PREPARE, count - first),
                node=NodeIdentity(NODE, self.node.epoch),
                writer_id="writer",
                store="main",
                now_ms=0,
                deadline_ms=10_000,
            )
            for object_id in ids:
                begin = self.end_offset
                end, peak = begin + RECORDS_PER_RANGE, self.objects * MS_PER_OBJECT
                ranges = [StreamRange(stream, begin, end, RECORDS_PER_RANGE, 10_000, peak) for stream in self.streams]
                size_bytes = 10_000 * len(self.streams) + 48
                made = NewObject(object_id=object_id, kind=ObjectKind.SSO, size_bytes=size_bytes, ranges=ranges)
                epochs = dict.fromkeys(self.streams, 1)
                await self.catalog.commit_upload(
                    UploadCommit(NodeIdentity(NODE, self.node.epoch), [made], epochs, {}, 0)
                )
                self.objects += 1
        return (time.perf_counter() - began) / count


async def growth(
    points: Sequence[int], streams: int = STREAMS, look_ups: int = 1_000
) -> list[tuple[int, dict[str, float]]]:
    """Measure a catalog while it grows to each of `points`, in ranges: commits of objects, and look-ups."""
    rng, results = random.Random(1), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.sqlite"
        catalog = Catalog(f"sqlite:///{path}")
        await catalog.open(cluster="bench")
        try:
            filler = await Filler.create(catalog, streams)
            for ranges in points:
                await filler.commit(ranges // streams - filler.objects)
                end, newest_ms = filler.end_offset, filler.objects * MS_PER_OBJECT

                def find(limit: int, end: int = end) -> Awaitable[object]:
                    return catalog.find_ranges(rng.choice(filler.streams), rng.randrange(end), end, limit=limit)

                def find_time(newest_ms: int = newest_ms) -> Awaitable[object]:
                    return catalog.find_time(rng.choice(filler.streams), rng.randrange(newest_ms))

                one = await timed_us(lambda: find(1), look_ups)
                many = await timed_us(lambda: find(64), look_ups)
                by_time = await timed_us(find_time, look_ups)
                commit_s = await filler.commit(COMMITS_MEASURED)
                figures = {
                    "find one us": middle(one),
                    "find 64 us": middle(many),
                    "find 64 p99 us": p99(many),
                    "find a time us": middle(by_time),
                    "commit of 1,000 ms": commit_s * 1e3,
                    "MiB": path.stat().st_size / (1 << 20),
                }
                results.append((ranges, figures))
        finally:
            await catalog.close()
    return results


async def timed_us(call: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Return the times of single calls, in us."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1e6)
    return found
