"""The storage engine: cost of calls, speed of cold reads, and memory of ten thousand streams.

    python -m benchmarks.s3stream [--quick] [--json FILE] [--only PART ...]

The WAL and, except for the part on a real S3 server, objects are in memory, so the figures are the engine's own.
Latency is injected: 30 ms to the first byte of every GET, on a virtual clock, so that those figures are exact and
repeatable.
"""

import asyncio
import gc
import mmap
import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import structlog

from anabranch.broker.operator.cli.node_process import CYCLE_THRESHOLDS
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import StorageFull
from anabranch.s3stream.model import StreamBatch
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.store.local import LocalStore
from anabranch.s3stream.store.s3 import S3Store
from anabranch.wal.device import open_device
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import WalSettings
from benchmarks.support import CONSOLE, Report, middle, p99, parser
from scripts.tools import go_program
from tests.support.memory_wal import MemoryWal
from tests.support.s3 import s3_server
from tests.support.storage import EngineCluster, fill, memory_cluster
from tests.support.virtual_time import run_virtual

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LATENCY_S = 0.03
FETCH_BYTES = 1 * MIB


@dataclass(frozen=True)
class Sizes:
    """Amount of work."""

    calls_bytes: int
    cold_bytes: int
    s3_bytes: int
    isolation_appends: int
    streams: int
    repeats: int


QUICK = Sizes(512 * MIB, 128 * MIB, 512 * MIB, 3_000, 10_000, 3)
FULL = Sizes(2 * GIB, 512 * MIB, 1 * GIB, 20_000, 10_000, 5)


@asynccontextmanager
async def cluster(settings: StorageSettings, *, wal_bytes: int = 4 * GIB) -> AsyncIterator[EngineCluster]:
    """Open an empty cluster in a separate folder."""
    with tempfile.TemporaryDirectory() as folder:
        async with memory_cluster(Path(folder), settings, wal_bytes=wal_bytes) as made:
            yield made


async def produce(engine: S3Stream, streams: list[Stream], total_bytes: int, batch_bytes: int) -> None:
    """Append round robin, as fast as the engine accepts."""
    payload = memoryview(os.urandom(batch_bytes))
    for number in range(total_bytes // batch_bytes):
        while not engine.writable:
            await engine.wait_writable()
        stream = streams[number % len(streams)]
        base = stream.next_offset
        batch = StreamBatch(stream.stream_id, base, base + 1, 1, number, payload)
        try:
            _ = stream.append(batch)
        except StorageFull:
            await engine.wait_writable()
            _ = stream.append(batch)
        if number % 256 == 255:
            await asyncio.sleep(0)


# calls


async def calls_per_gib(partitions: int, total_bytes: int) -> tuple[float, str]:
    """Return the store calls for each GiB written, by kind."""
    settings = StorageSettings(upload_threshold_bytes=512 * MIB, log_cache_bytes=2 * GIB)
    async with cluster(settings) as made, made.engine() as engine:
        streams = await engine.open_streams(await made.create(partitions))
        await produce(engine, streams, total_bytes, 16 * KIB)
        await engine.flush()
        calls = made.store.calls
        scale = GIB / total_bytes
        kinds = {"PUT": calls.put, "part": calls.part, "create and complete": calls.multipart}
        return scale * sum(kinds.values()), ", ".join(f"{count * scale:.0f} {kind}" for kind, count in kinds.items())


async def measure_calls(report: Report, sizes: Sizes) -> None:
    """Measure that the number of calls follows bytes, not partitions."""
    found = {}
    for partitions in (10, 1_000, 10_000):
        found[partitions], kinds = await calls_per_gib(partitions, sizes.calls_bytes)
        report.add(f"calls per GiB written, {partitions:,} partitions ({kinds})", found[partitions], "calls")
    spread = max(found.values()) / min(found.values())
    report.add("calls per GiB, most over least", spread, "ratio", "<= 1.1")


# cold reads


async def cold_seconds(settings: StorageSettings, total_bytes: int) -> tuple[float, int]:
    """Return the seconds (of the virtual clock) in which one reader reads the whole stream, and its GETs."""
    async with cluster(replace(settings, log_cache_bytes=2 * GIB, upload_threshold_bytes=2 * GIB)) as made:
        (stream_id,) = await made.create(1)
        async with made.engine() as engine:
            streams = await engine.open_streams([stream_id])
            await produce(engine, streams, total_bytes, 128 * KIB)
            await engine.close()
        made.crash()
        made.settings = settings
        async with made.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            await stream.read(0, 1)

            async def latency(_call: str, _key: str) -> None:
                await asyncio.sleep(LATENCY_S)

            made.store.hook = latency
            gets = engine.stats.gets
            began = asyncio.get_running_loop().time()
            await read_through(stream)
            return asyncio.get_running_loop().time() - began, engine.stats.gets - gets


async def read_through(stream: Stream) -> None:
    """Read a stream as a consumer does."""
    offset = stream.start_offset
    while offset < stream.confirmed_offset:
        offset = (await stream.read(offset, FETCH_BYTES)).next_offset


def measure_cold(report: Report, sizes: Sizes) -> None:
    """Measure the effect of read-ahead and adaptive read sizes when every GET takes 30 ms."""
    base = StorageSettings(block_cache_bytes=256 * MIB)
    fixed = replace(base, read_bytes_max=512 * KIB, reads_in_flight=4)
    one = replace(base, read_ahead_bytes_max=0)
    runs = {
        "default": base,
        "no read-ahead": one,
        "fixed reads of 512 KiB": replace(fixed),
        "adaptive": replace(base, reads_in_flight=4),
    }
    found = {name: run_virtual(cold_seconds(settings, sizes.cold_bytes)) for name, settings in runs.items()}
    gib = sizes.cold_bytes / GIB
    for name, (seconds, gets) in found.items():
        report.add(f"cold sequential read, {name}: GETs per GiB", gets / gib, "GETs")
        report.add(f"cold sequential read, {name}: rate at 30 ms a GET", sizes.cold_bytes / MIB / seconds, "MiB/s")
    gain = found["no read-ahead"][0] / found["default"][0]
    report.add("read-ahead with double buffering over none", gain, "ratio", ">= 1.4")
    gain = found["fixed reads of 512 KiB"][0] / found["adaptive"][0]
    report.add("adaptive over fixed small reads, 4 connections", gain, "ratio", ">= 2")


# memory


async def measure_memory(report: Report, sizes: Sizes) -> None:
    """Measure ten thousand streams under small limits."""
    settings = StorageSettings(
        upload_threshold_bytes=12 * MIB,
        log_cache_bytes=32 * MIB,
        block_cache_bytes=8 * MIB,
        index_cache_bytes=8 * MIB,
        uploads_in_flight=1,
    )
    limits = settings.log_cache_bytes + settings.block_cache_bytes + settings.index_cache_bytes
    async with cluster(settings, wal_bytes=64 * MIB) as made, made.engine() as engine:
        ids = await made.create(sizes.streams)
        gc.collect()
        tracemalloc.start()
        streams = await engine.open_streams(ids)
        gc.collect()
        idle = tracemalloc.get_traced_memory()[0] / sizes.streams
        for _ in range(4):
            for stream in streams:
                while not engine.writable:
                    await engine.wait_writable()
                fill(stream, 1, size_bytes=1000)
        await engine.flush()
        for stream in streams[:: sizes.streams // 100]:
            await read_through(stream)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - sum(len(data) for data, _, _ in made.store.objects.values())
        tracemalloc.stop()
    report.add("memory of an open, idle stream", idle, "bytes")
    report.add(f"memory with {sizes.streams:,} streams, after writing 40 MB", used / MIB, "MiB")
    report.add("the same over the configured sum of the caches", used / limits, "ratio", "<= 1.25")
    report.add("RocketMQ's design names, for 1,000 queues", 4096, "MiB")


async def measure_rss(report: Report, sizes: Sizes) -> None:
    """Measure the growth of the process with the same streams, log and objects in files, written and read back."""
    settings = StorageSettings(
        upload_threshold_bytes=32 * MIB,
        log_cache_bytes=128 * MIB,
        block_cache_bytes=64 * MIB,
        index_cache_bytes=8 * MIB,
        uploads_in_flight=1,
    )
    limits = settings.log_cache_bytes + settings.block_cache_bytes + settings.index_cache_bytes
    with tempfile.TemporaryDirectory() as folder:
        async with cluster(settings) as made, real_wal(made, Path(folder) / "wal"):
            store = LocalStore("main", Path(folder) / "objects")
            await store.open()
            made.stores = {"main": store}
            ids = await made.create(sizes.streams)
            before = resident_bytes()
            try:
                async with made.engine() as engine:
                    streams = await engine.open_streams(ids)
                    for _ in range(40):
                        for stream in streams:
                            while not engine.writable:
                                await engine.wait_writable()
                            fill(stream, 1, size_bytes=1000)
                        await asyncio.sleep(0)
                    await engine.flush()
                    for stream in streams[:: sizes.streams // 1000]:
                        await read_through(stream)
                    grown = resident_bytes() - before
            finally:
                await store.close()
    report.add(f"resident memory with {sizes.streams:,} streams, 400 MB written", grown / MIB, "MiB")
    report.add("the same over the configured sum of the caches", grown / limits, "ratio", "<= 1.25")


def resident_bytes() -> int:
    """Return the memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


# isolation


async def append_latencies(stream: Stream, count: int) -> list[float]:
    """Return seconds from append to the owner's callback, and to the reader that receives the batch."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        base = stream.next_offset
        await stream.append(StreamBatch(stream.stream_id, base, base + 1, 1, -1, memoryview(bytes(1024))))
        assert stream.read_cached(base, FETCH_BYTES) is not None
        found.append(time.perf_counter() - began)
        await asyncio.sleep(0.0005)
    return found


async def measure_isolation(report: Report, sizes: Sizes) -> None:
    """Measure tail latency during a read of all history."""
    settings = StorageSettings(upload_threshold_bytes=64 * MIB, log_cache_bytes=128 * MIB, block_cache_bytes=64 * MIB)
    with tempfile.TemporaryDirectory() as folder:
        async with cluster(settings) as made, real_wal(made, Path(folder) / "wal"):
            store = LocalStore("main", Path(folder) / "objects")
            await store.open()
            made.stores = {"main": store}
            try:
                async with made.engine() as engine:
                    await isolate(report, sizes, made, engine)
            finally:
                await store.close()


@asynccontextmanager
async def real_wal(made: EngineCluster, path: Path) -> AsyncIterator[None]:
    """Give the cluster a Delta WAL in a file."""
    settings = WalSettings(capacity_bytes=256 * MIB, allow_volatile=True)
    device = open_device(path, settings)
    wal = DeltaWal(device, settings, node_id=1, node_epoch=1, now_ms=lambda: time.time_ns() // 10**6)
    made.wal = cast("MemoryWal", wal)
    yield
    await wal.close()


async def isolate(report: Report, sizes: Sizes, made: EngineCluster, engine: S3Stream) -> None:
    """Alternate between the tail alone and the tail during a read of history, on one engine."""
    history, tail = await engine.open_streams(await made.create(2))
    await produce(engine, [history], 512 * MIB, 64 * KIB)
    await engine.flush()
    gc.collect()
    gc.freeze()
    ratios, alone, beside = [], [0.0], [0.0]
    for _ in range(sizes.repeats):
        alone = await append_latencies(tail, sizes.isolation_appends)
        catching_up = asyncio.create_task(read_for_ever(history))
        beside = await append_latencies(tail, sizes.isolation_appends)
        catching_up.cancel()
        await asyncio.wait([catching_up])
        ratios.append(p99(beside) / p99(alone))
    gc.unfreeze()
    report.add("p99 of append and tail read alone", p99(alone) * 1e6, "us")
    report.add("p99 of append and tail read beside a catch-up reader", p99(beside) * 1e6, "us")
    report.add("p99 beside a catch-up reader over alone", middle(ratios), "ratio", "<= 1.5")


async def read_for_ever(stream: Stream) -> None:
    """Read history repeatedly, at the rate of one consumer on a fast network (about 500 MB/s)."""
    while True:
        offset = stream.start_offset
        while offset < stream.confirmed_offset:
            offset = (await stream.read(offset, FETCH_BYTES)).next_offset
            await asyncio.sleep(0.002)


# costs


async def measure_costs(report: Report) -> None:
    """Measure the CPU of the hot paths, in memory."""
    settings = StorageSettings(upload_threshold_bytes=4 * GIB, log_cache_bytes=8 * GIB)
    async with cluster(settings) as made, made.engine() as engine:
        (stream,) = await engine.open_streams(await made.create(1))
        payload = memoryview(bytes(1024))
        count = 50_000
        began = time.process_time()
        for base in range(count):
            _ = stream.append(StreamBatch(stream.stream_id, base, base + 1, 1, -1, payload))
        report.add("append of 1 KiB, the memory WAL's copy included", (time.process_time() - began) / count * 1e6, "us")
        await asyncio.sleep(0)
        began = time.process_time()
        for _ in range(count):
            stream.read_cached(count - 1, FETCH_BYTES)
        report.add("read of the last batch from the log cache", (time.process_time() - began) / count * 1e6, "us")
        began = time.process_time()
        for _ in range(1000):
            stream.read_cached(0, FETCH_BYTES)
        report.add("read of 1,024 batches from the log cache", (time.process_time() - began) / 1000 * 1e6, "us")


# a real S3 server


async def measure_s3(report: Report, sizes: Sizes, folder: Path) -> None:
    """Measure upload and cold read against plain parallel PUTs and ranged GETs of the same bytes by the same client."""
    with s3_server(folder) as server:
        store = S3Store("main", server.new_bucket().settings(), rng=random.Random(1))
        await store.open()
        try:
            await beside_plain_client(report, sizes, store)
        finally:
            await store.close()


async def beside_plain_client(report: Report, sizes: Sizes, store: S3Store) -> None:
    """Alternate between both, and compare the medians."""
    total = sizes.s3_bytes
    puts, uploads, gets, reads = [], [], [], []
    for turn in range(sizes.repeats):
        plain_put = await plain_puts(store, total, turn)
        ours_put, plain_get, ours_get = await engine_client(store, total)
        puts.append(plain_put)
        gets.append(plain_get)
        uploads.append(plain_put / ours_put)
        reads.append(plain_get / ours_get)
    report.add("plain parallel PUTs of 8 MiB", total / MIB / middle(puts), "MiB/s")
    report.add("plain parallel ranged GETs of 8 MiB of the same objects", total / MIB / middle(gets), "MiB/s")
    report.add("upload over plain parallel PUTs", middle(uploads), "ratio", ">= 0.8")
    report.add("cold read over plain ranged GETs", middle(reads), "ratio", ">= 0.8")


async def plain_puts(store: ObjectStore, total: int, turn: int) -> float:
    """Return the seconds to PUT `total` bytes, with eight concurrent calls of 8 MiB."""
    data = memoryview(os.urandom(8 * MIB))
    slots = asyncio.Semaphore(8)

    async def put(number: int) -> None:
        async with slots:
            await store.put(f"plain/{turn}/{number}", [data], writer_id="plain")

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(total // (8 * MIB)):
            group.create_task(put(number))
    return time.perf_counter() - began


async def plain_gets(store: ObjectStore, keys: Mapping[str, int]) -> float:
    """Return the seconds to GET whole objects, with eight concurrent ranged calls of up to 8 MiB."""
    slots = asyncio.Semaphore(8)

    async def get(key: str, start: int, end: int) -> None:
        async with slots:
            await store.get(key, start, end)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for key, size in keys.items():
            for start in range(0, size, 8 * MIB):
                group.create_task(get(key, start, min(start + 8 * MIB, size)))
    return time.perf_counter() - began


async def engine_client(store: ObjectStore, total: int) -> tuple[float, float, float]:
    """Return the seconds of the engine's upload, of a plain client's GETs, and of the engine's reads.

    The engine uploads `total` bytes of 8 streams in 4 blocks; 8 readers read the streams with a block cache full of
    other data, as in a running node.
    """
    settings = StorageSettings(upload_threshold_bytes=4 * GIB, log_cache_bytes=4 * GIB)
    async with cluster(settings) as made:
        made.stores = {"main": store}
        # Object ids restart with each catalog; keys must not.
        made.cluster = f"bench-{store.calls.put}-{store.calls.multipart}"
        ids = await made.create(9)
        upload = 0.0
        async with made.engine() as engine:
            *streams, other = await engine.open_streams(ids)
            for _ in range(4):
                await produce(engine, streams, total // 4, 64 * KIB)
                began = time.perf_counter()
                await engine.flush()
                upload += time.perf_counter() - began
            keys = {each.key: each.size_bytes async for each in store.list() if f"/{made.cluster}/" in each.key}
            await produce(engine, [other], settings.block_cache_bytes * 5 // 4, 64 * KIB)
            await engine.close()
        made.crash()
        gc.collect()
        gc.freeze()
        made.settings = replace(settings, log_cache_bytes=1, upload_threshold_bytes=None)
        async with made.engine() as engine:
            *streams, other = await engine.open_streams(ids)
            await read_through(other)
            plain = await plain_gets(store, keys)
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for stream in streams:
                    group.create_task(read_through(stream))
            seconds = time.perf_counter() - began
        gc.unfreeze()
        return upload, plain, seconds


PARTS = ("costs", "calls", "cold", "memory", "isolation", "s3")


def measure(part: str, report: Report, sizes: Sizes) -> None:
    """Run one part."""
    gc.set_threshold(*CYCLE_THRESHOLDS)  # as a node does
    if part == "costs":
        asyncio.run(measure_costs(report))
    elif part == "calls":
        asyncio.run(measure_calls(report, sizes))
    elif part == "cold":
        measure_cold(report, sizes)
    elif part == "memory":
        asyncio.run(measure_rss(report, sizes))
        asyncio.run(measure_memory(report, sizes))
    elif part == "isolation":
        asyncio.run(measure_isolation(report, sizes))
    elif go_program("versitygw").is_file():
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(measure_s3(report, sizes, Path(folder)))
    else:
        CONSOLE.print("upload and cold read beside a plain client: left out, the S3 server is missing (`make tools`)")


def main() -> None:
    """Run every part, or the selected ones."""
    options_of = parser(__doc__ or "")
    options_of.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    options = options_of.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    report = Report("Storage engine")
    for part in options.only:
        measure(part, report, QUICK if options.quick else FULL)
    report.finish(options)


if __name__ == "__main__":
    main()
