"""Compaction: rate compared with the store's, memory, bytes rewritten in a day, and benefit for readers.

    python -m benchmarks.compaction [--quick] [--part NAME]... [--json FILE] [--picture FILE.svg]

Rates are ratios within one run on one local directory. The day is simulated on a virtual clock with objects in memory
and a real catalog: one upload a minute, compaction every 20 minutes, retention of six hours.
"""

import asyncio
import gc
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer

from anabranch.broker.operator.cli.admin_port import AdminPort
from anabranch.compaction.service import CompactionService
from anabranch.compaction.sets.plan import InputObject, Survey, iterations
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectKind, object_key
from anabranch.s3stream.object.format import Footer, IndexEntry, encode_trailer
from anabranch.s3stream.object.reader import ObjectIndex, read_index
from anabranch.s3stream.store.local import LocalStore
from benchmarks.lab.curves import Curve
from benchmarks.support import CONSOLE, Report, p99, parser
from tests.support.catalog_node import CLUSTER, UploadingNode, uploading_node
from tests.support.memory_store import MemoryStore
from tests.support.node import NodeProcess

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
STATE_TIMEOUT_S = 5.0
MINUTE_MS = 60_000
SSO, SO = ObjectKind.SSO, ObjectKind.SO
PARALLEL = 8


@dataclass(frozen=True)
class Sizes:
    """Amount of work."""

    rate_objects: int
    plan_streams: int
    cold_objects: int
    day_minutes: int
    produce_seconds: int


QUICK = Sizes(rate_objects=12, plan_streams=1_000, cold_objects=15, day_minutes=24 * 60, produce_seconds=30)
FULL = Sizes(rate_objects=48, plan_streams=10_000, cold_objects=60, day_minutes=24 * 60, produce_seconds=180)


# rate and memory


async def fill(made: UploadingNode, objects: int, streams: int, batch_bytes: int, batches: int) -> None:
    """Write stream set objects that contain every stream."""
    ids = await made.start(streams)
    for _ in range(objects):
        await made.upload((SSO, [made.batch(stream, batch_bytes) for stream in ids for _ in range(batches)]))


async def raw_seconds(made: UploadingNode) -> tuple[float, int]:
    """Read every object in large pieces, and write as many bytes, several at a time: the store's own speed."""
    stored = [each async for each in made.store.list()]
    slots = asyncio.Semaphore(PARALLEL)

    async def copy(at: int, key: str, size: int) -> None:
        async with slots:
            pieces = [(start, min(size, start + 8 * MIB)) for start in range(0, size, 8 * MIB)]
            parts = [await made.store.get(key, start, end) for start, end in pieces]
            await made.store.put(f"raw/{at}", parts, writer_id="raw")

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for at, each in enumerate(stored):
            group.create_task(copy(at, each.key, each.size_bytes))
    seconds = time.perf_counter() - began
    await made.store.delete([f"raw/{at}" for at in range(len(stored))])
    return seconds, sum(each.size_bytes for each in stored)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def peak_resident(stop: asyncio.Event) -> int:
    peak = 0
    while not stop.is_set():
        peak = max(peak, resident_bytes())
        await asyncio.sleep(0.002)
    return peak


async def rate_and_memory(sizes: Sizes, report: Report) -> None:
    bound = 96 * MIB
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore("l", Path(folder) / "objects", threads=PARALLEL)
        async with uploading_node(f"sqlite:///{folder}/catalog.db", store) as made:
            await fill(made, sizes.rate_objects, streams=100, batch_bytes=16 * KIB, batches=10)
            warm, _ = await raw_seconds(made)
            raw, size = await raw_seconds(made)
            gc.collect()
            service = made.service(CompactionSettings(memory_bytes=bound))
            base = resident_bytes()
            stop = asyncio.Event()
            watching = asyncio.ensure_future(peak_resident(stop))
            began, cpu = time.perf_counter(), time.process_time()
            summary = await service.run_once()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            stop.set()
            peak = await watching - base
            again, _ = await raw_seconds(made)
    del warm
    assert summary.sso_after <= 1
    report.add("rate.raw_before", size / raw / 1e6, "MB/s")
    report.add("rate.raw_after", size / again / 1e6, "MB/s")
    report.add("rate.compaction", size / seconds / 1e6, "MB/s")
    report.add("rate.share_of_raw", (raw + again) / 2 / seconds, "x", ">= 0.6")
    report.add("rate.cpu", cpu / size * 1e9, "CPU s/GB")
    report.add("memory.bound", bound / MIB, "MiB")
    report.add("memory.peak_over_bound", peak / bound, "x", "<= 1.2")


# planner


def plan_scale(sizes: Sizes, report: Report) -> None:
    """Plan over 500 objects of many streams each, with a small block per stream."""
    objects, streams = 500, sizes.plan_streams
    sources = []
    for number in range(objects):
        entries = [IndexEntry(at, number, number + 1, 1, at * 4096, 4096, 0, 0) for at in range(streams)]
        index, _ = encode_trailer(entries, kind=SSO, object_id=number)
        footer = Footer(streams * 4096, len(index), streams, 0, SSO, number)
        sources.append(InputObject(number, ObjectIndex("k", footer, memoryview(index), 0), 0, streams * 4096))
    gc.collect()
    base, began = resident_bytes(), time.process_time()
    survey = Survey(dict.fromkeys(range(streams), 0))
    for source in sources:
        survey.add(source)
    peak = count = 0
    for _ in iterations(survey, CompactionSettings(), 176 * MIB, 0):
        count += 1
        peak = max(peak, resident_bytes() - base)
    blocks = objects * streams
    report.add("plan.blocks", blocks, "blocks")
    report.add("plan.iterations", count, "")
    report.add("plan.cpu_per_million_blocks", (time.process_time() - began) / blocks * 1e6, "CPU s", "<= 10")
    report.add("plan.peak_memory", peak / MIB, "MiB", "<= 200")


# what readers gain


async def read_history(made: UploadingNode, stream: int) -> tuple[int, int]:
    """Read a stream from its start, with one index and one ranged GET per run of blocks and object. Returns bytes and
    GETs."""
    info = (await made.catalog.get_streams([stream]))[stream]
    gets, size = made.store.calls.get, 0
    for location in await made.catalog.find_ranges(stream, info.start_offset, info.end_offset, limit=10_000):
        key = object_key(CLUSTER, location.object.object_id)
        entries = (await read_index(made.store, key)).find(stream)
        data = await made.store.get(key, entries[0].position, entries[-1].end_position)
        size += len(data)
    return size, made.store.calls.get - gets


async def cold_reads(sizes: Sizes, report: Report) -> None:
    """Read 1,000 partitions with a little data in every object, at 5 ms to the first byte."""

    async def latency(call: str, _key: str) -> None:
        if call == "get":
            await asyncio.sleep(0.005)

    store = MemoryStore("m")
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        async with uploading_node(f"sqlite:///{folder}/catalog.db", store) as made:
            await fill(made, sizes.cold_objects, streams=1_000, batch_bytes=2 * KIB, batches=1)
            chosen = random.Random(1).sample(sorted(made.ends), 10)
            found = []
            for phase in ("before", "after"):
                if phase == "after":
                    store.hook = no_latency
                    await made.service().run_once()
                store.hook = latency
                began = time.perf_counter()
                gets = 0
                for stream in chosen:
                    gets += (await read_history(made, stream))[1]
                found.append((gets / len(chosen), (time.perf_counter() - began) / len(chosen)))
                report.add(f"cold.gets_{phase}", found[-1][0], "GETs per partition")
                report.add(f"cold.seconds_{phase}", found[-1][1], "s per partition")
    report.add("cold.fewer_gets", found[0][0] / found[1][0], "x", ">= 10")
    report.add("cold.faster", found[0][1] / found[1][1], "x", ">= 5")


async def no_latency(_call: str, _key: str) -> None:
    pass


# a day


async def day(sizes: Sizes, report: Report, **changes: int) -> list[tuple[int, int, int]]:
    """Return the objects over a day of mixed load: (minute, SSOs, SOs), a point every 20 minutes."""
    rng = random.Random(1)
    scale = 1024
    settings = replace(
        CompactionSettings(),
        split_bytes=8 * MIB // scale,
        block_bytes=4 * KIB,
        memory_bytes=200 * MIB // scale,
        read_bytes_max=8 * MIB // scale,
        **changes,
    )
    curve: list[tuple[int, int, int]] = []
    store = MemoryStore("m")
    with tempfile.TemporaryDirectory(dir=fast_folder()) as folder:
        async with uploading_node(f"sqlite:///{folder}/catalog.db", store) as made:
            ids = list(await made.start(40))
            node = replace(made.compaction_context(settings), sleep=lambda _: asyncio.sleep(0))
            service = CompactionService(node)
            uploaded = 0
            ends: list[dict[int, int]] = []
            for minute in range(1, sizes.day_minutes + 1):
                made.clock.ms += MINUTE_MS
                batches = [
                    made.batch(stream, 60 if rank > 4 else 1_200)
                    for rank, stream in enumerate(ids)
                    if rank < 20 or rng.random() < 0.2
                ]
                uploaded += sum(len(batch.payload) for batch in batches)
                await made.upload((SSO, batches))
                ends.append(dict(made.ends))
                if minute % 20 == 0:
                    if minute > 6 * 60:
                        for stream in ids:
                            await made.trim(stream, ends[minute - 6 * 60][stream])
                    await service.run_timed()
                    counts = await made.catalog.count_objects()
                    ssos, sos = (counts.get(f"{kind} committed", (0, 0))[0] for kind in ("SSO", "SO"))
                    curve.append((minute, ssos, sos))
    stats = service.stats
    total = uploaded + stats.bytes_written + stats.bytes_copied
    report.add("day.minutes", sizes.day_minutes, "")
    report.add("day.write_amplification", total / uploaded, "x")
    report.add("day.stream_set_objects_most", max(point[1] for point in curve), "objects")
    quarter = len(curve) // 4
    totals = [ssos + sos for _, ssos, sos in curve]
    middle_of_day = mean(totals[quarter : 2 * quarter])
    report.add("day.objects", middle_of_day, "objects, mean of the second quarter")
    report.add("day.growth", mean(totals[3 * quarter :]) / middle_of_day, "x, last over second quarter", "<= 1.1")
    return curve


# beside produce


async def produce_latency(sizes: Sizes, report: Report) -> None:
    """Measure a slow producer's latency while a node under a steady 8 MB/s over 50 partitions compacts by its timer."""
    with (
        tempfile.TemporaryDirectory() as folder,
        NodeProcess(
            Path(folder),
            wal_capacity_bytes=256 * MIB,
            topic_num_partitions=50,
            storage_upload_age_ms=1_000,
            compaction_period_ms=sizes.produce_seconds * 1000 // 6,
        ) as node,
    ):
        host, _, port = node.admin.rpartition(":")
        state = partial(AdminPort(host, int(port)).call, "GET", "/compaction", STATE_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        end = loop.time() + sizes.produce_seconds
        running = False
        latencies: dict[bool, list[float]] = {False: [], True: []}

        async def watch() -> None:
            nonlocal running
            while loop.time() < end:
                running = (await asyncio.to_thread(state))["running"]
                await asyncio.sleep(0.05)

        async def load(producer: AIOKafkaProducer) -> None:
            payload = os.urandom(16 * KIB)
            sent = 0
            while loop.time() < end:
                await producer.send("load", payload, partition=sent % 50)
                sent += 1
                await asyncio.sleep(max(0.0, sent * len(payload) / 8e6 - (loop.time() - began)))

        async def probe(producer: AIOKafkaProducer) -> None:
            while loop.time() < end:
                before, start = running, loop.time()
                await producer.send_and_wait("probe", b"x" * KIB, partition=0)
                if running == before:
                    latencies[running].append(loop.time() - start)
                await asyncio.sleep(0.01)

        producers = [AIOKafkaProducer(bootstrap_servers=node.bootstrap, acks="all") for _ in range(2)]
        for producer in producers:
            await producer.start()
        began = loop.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            group.create_task(load(producers[0]))
            group.create_task(probe(producers[1]))
        for producer in producers:
            await producer.stop()
    without, during = (p99(latencies[key]) for key in (False, True))
    report.add("produce.share_of_time_compacting", len(latencies[True]) / sum(map(len, latencies.values())), "x")
    report.add("produce.p99_without", without * 1e3, "ms")
    report.add("produce.p99_during", during * 1e3, "ms")
    report.add("produce.p99_ratio", during / without, "x", "<= 1.3")


def draw(counts: Sequence[tuple[int, int, int]], path: Path) -> None:
    """Draw the objects at each full hour."""
    curve = Curve("day", "Objects over a day", "hours", ("all objects", "stream set objects"))
    for minute, ssos, sos in [(0, 0, 0), *counts]:
        if minute % 60 == 0:
            curve.add(minute // 60, {"all objects": ssos + sos, "stream set objects": ssos})
    path.write_text(curve.svg())


def fast_folder() -> str | None:
    """Return a folder where a catalog needs no disk syncs, for parts that measure other things."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


async def plan(sizes: Sizes, report: Report) -> None:
    plan_scale(sizes, report)


PARTS: Mapping[str, Callable[[Sizes, Report], Awaitable[Any]]] = {
    "rate": rate_and_memory,
    "plan": plan,
    "cold": cold_reads,
    "day": day,
    "produce": produce_latency,
}


async def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw the day's curve of objects")
    options.add_argument(
        "--part", action="append", choices=list(PARTS), metavar="NAME", help=f"only this: {', '.join(PARTS)}"
    )
    chosen = options.parse_args()
    sizes = QUICK if chosen.quick else FULL
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    report = Report("Compaction")
    for name in chosen.part or PARTS:
        CONSOLE.print(f"{name} ...")
        found = await PARTS[name](sizes, report)
        if found and chosen.picture is not None:
            draw(found, chosen.picture)
    report.finish(chosen)


if __name__ == "__main__":
    asyncio.run(main())
