"""Look-ups in a catalog with a million ranges, on SQLite.

    python -m benchmarks.catalog [--quick] [--json FILE]

Each stream gets one range in every stream set object, committed through the catalog's interface. Then random offsets
are looked up, one call after the other. `--quick` looks up less often in a catalog of the same size.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.support import Report, middle, p99, parser
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import UploadCommit
from s3stream.model import NewObject, ObjectKind, StreamRange

NODE = 1
STREAMS = 1_000
OBJECTS = 1_000
RECORDS_PER_RANGE = 100
MS_PER_OBJECT = 60_000
OBJECTS_PER_PREPARE = 50


async def fill(catalog: Catalog) -> list[int]:
    """Commit `OBJECTS` objects with a range of each of `STREAMS` streams. Returns the streams."""
    node = await catalog.register_node(NODE, "127.0.0.1", 9092, now_ms=0, lease_ms=10_000)
    topic = await catalog.create_topic("t", bytes(16), partitions=STREAMS, configs={}, leader=NODE, internal=False)
    streams = [partition.stream_id for partition in topic.partitions]
    await catalog.open_streams(streams, node_id=NODE, node_epoch=node.epoch)
    for first in range(0, OBJECTS, OBJECTS_PER_PREPARE):
        ids = await catalog.prepare_objects(
            OBJECTS_PER_PREPARE,
            node_id=NODE,
            node_epoch=node.epoch,
            writer_id="writer",
            store="main",
            now_ms=0,
            deadline_ms=10_000,
        )
        for number, object_id in enumerate(ids, first):
            begin = number * RECORDS_PER_RANGE
            end, peak = begin + RECORDS_PER_RANGE, number * MS_PER_OBJECT
            ranges = [StreamRange(stream, begin, end, RECORDS_PER_RANGE, 10_000, peak) for stream in streams]
            made = NewObject(object_id=object_id, kind=ObjectKind.SSO, size_bytes=10_000 * STREAMS + 48, ranges=ranges)
            await catalog.commit_upload(UploadCommit(NODE, node.epoch, [made], dict.fromkeys(streams, 1), {}, 0))
    return streams


async def look_up(report: Report, what: str, call: Callable[[], Awaitable[object]], count: int) -> None:
    """Measure the time of single calls."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1e3)
    report.add(what, middle(found), "ms")
    report.add(f"{what}, p99", p99(found), "ms")


async def measure(report: Report, count: int) -> None:
    """Fill a catalog and measure its look-ups."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.sqlite"
        catalog = Catalog(f"sqlite:///{path}")
        await catalog.open(cluster="bench")
        try:
            began = time.perf_counter()
            streams = await fill(catalog)
            report.add(
                f"commit of an object with {STREAMS:,} ranges", (time.perf_counter() - began) / OBJECTS * 1e3, "ms"
            )
            report.add(f"catalog of {STREAMS * OBJECTS:,} ranges", path.stat().st_size / (1 << 20), "MiB")
            end = OBJECTS * RECORDS_PER_RANGE

            def find(limit: int) -> Callable[[], Awaitable[object]]:
                return lambda: catalog.find_ranges(rng.choice(streams), rng.randrange(end), end, limit=limit)

            def find_time() -> Awaitable[object]:
                return catalog.find_time(rng.choice(streams), rng.randrange(OBJECTS * MS_PER_OBJECT))

            await look_up(report, "find the range of an offset", find(1), count)
            await look_up(report, "find an offset's range and the 63 after it", find(64), count)
            await look_up(report, "find the range of a time", find_time, count)
        finally:
            await catalog.close()


def main() -> None:
    """Run the benchmark."""
    options = parser("The catalog's look-ups among a million ranges.").parse_args()
    report = Report("Catalog")
    asyncio.run(measure(report, 2_000 if options.quick else 20_000))
    report.finish(options)


if __name__ == "__main__":
    main()
