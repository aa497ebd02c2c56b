"""Growth: throughput, CPU, memory and time to start over partitions, connections, record size, catalog, cache and log.

    python -m benchmarks.growth [--quick] [--only CURVE ...] [--rounds N] [--json FILE] [--pictures DIR]

A node with its log and objects on one disk answers Produce requests that a small client in another process has built in
advance. Each sample takes at most 2 s and 160 MiB, so that no upload falls into it, except in the curve of the log
cache, which is about uploads. The upload of all partitions is measured by itself, when the node stops. The curves of
the catalog and of fetch sessions are measured inside one process. Samples of all points alternate, and figures are
medians. Tables are printed as Markdown, pictures written with `--pictures`.
"""

import argparse
import asyncio
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from anabranch.client.cluster import Cluster
from anabranch.client.connection import Connection
from benchmarks.lab.catalog import growth as catalog_growth
from benchmarks.lab.curves import Curve, Figures
from benchmarks.lab.hot_paths import idle_session
from benchmarks.lab.in_process import in_process_node
from benchmarks.lab.load import Load, Loaded
from benchmarks.lab.processes import Anabranch
from benchmarks.support import parser

KIB, MIB = 1 << 10, 1 << 20
NO_UPLOADS: Final = (
    *("--storage-upload-bytes", "512MiB"),
    *("--storage-upload-age-ms", "3600000"),
    *("--compaction-enabled", "false"),
)
TOPIC: Final = "growth"
LOAD: Final = Load(
    port=0,
    topic_id="",
    partitions=16,
    connections=8,
    in_flight=4,
    record_bytes=KIB,
    batch_bytes=16 * KIB,
    seconds=2,
    bytes_max=160 * MIB,
)
FILL_BATCH_BYTES: Final = 64 * KIB
LOG_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class Points:
    """Points of the curves, and the number of rounds."""

    rounds: int
    partitions: Sequence[int] = (1, 10, 100, 1_000, 10_000)
    connections: Sequence[int] = (1, 10, 100, 500, 2_000)
    record_bytes: Sequence[int] = (10, 100, KIB, 10 * KIB, 100 * KIB, 1_000 * KIB)
    cache_mib: Sequence[int] = (16, 64, 256, 768, 2_048)
    fill_percent: Sequence[int] = (0, 22, 45, 67, 90)
    ranges: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000)


FULL: Final = Points(rounds=3)
QUICK: Final = Points(
    rounds=1,
    partitions=(1, 100, 1_000),
    connections=(1, 100, 500),
    record_bytes=(10, KIB, 100 * KIB),
    cache_mib=(16, 256),
    fill_percent=(0, 45, 90),
    ranges=(1_000, 100_000),
)


class GrowthNode:
    """A node and its topic."""

    def __init__(self, stack: ExitStack, home: Path, partitions: int, flags: Sequence[str] = NO_UPLOADS) -> None:
        self.broker = Anabranch(home, (*flags, "--topic-partitions-max", "20000"))
        stack.enter_context(self.broker)
        began = time.perf_counter()
        self.broker.create_topic(TOPIC, partitions)
        self.create_s = time.perf_counter() - began
        with Cluster(f"127.0.0.1:{self.broker.port}", Connection) as cluster:
            self._topic_id = cluster.topics([TOPIC])[0].topic_id.hex()

    def run(self, load: Load) -> tuple[Loaded, float]:
        """Run a load. Returns its outcome, and the CPU seconds that the node used for it."""
        before = self.broker.cpu_s()
        done = replace(load, port=self.broker.port, topic_id=self._topic_id).run()
        return done, self.broker.cpu_s() - before

    def figures(self, load: Load) -> Figures:
        """Run a load, and return the figures of most curves."""
        done, cpu_s = self.run(load)
        return {
            "requests/s": done.requests / done.seconds,
            "MB/s": done.bytes / done.seconds / 1e6,
            "CPU us/request": cpu_s / done.requests * 1e6,
            "p50 ms": done.p50_ms,
            "p99 ms": done.p99_ms,
        }

    def timed_start(self) -> float:
        """Start the node again, and return the seconds until it answers."""
        began = time.perf_counter()
        self.broker.start()
        return time.perf_counter() - began


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def partitions(points: Points, home: Path) -> Sequence[Curve]:
    """Measure nodes with one topic each; then their upload when they stop, and two starts."""
    curve = Curve("partitions", "Requests over partitions", "partitions", ("MB/s", "CPU us/request"))
    life = Curve(
        "node", "Life of a node over partitions", "partitions", ("start s", "start after a crash s", "RSS MiB")
    )
    with ExitStack() as stack:
        nodes = {count: GrowthNode(stack, home / f"partitions-{count}", count) for count in points.partitions}
        load = {count: replace(LOAD, partitions=count) for count in nodes}
        curve.sweep(points.partitions, points.rounds, lambda count: nodes[count].figures(load[count]), say)
        for count, node in nodes.items():
            # One more request for each partition, so that the stop uploads a run of each.
            node.run(replace(load[count], seconds=60, bytes_max=max(count, 1_000) * KIB, batch_bytes=KIB))
            rss = node.broker.rss_bytes() / MIB
            node.broker.kill()
            crash_s = node.timed_start()
            before, began = node.broker.cpu_s(), time.perf_counter()
            cpu_s = node.broker.stop() - before
            stop_s = time.perf_counter() - began
            life.add(
                count,
                {
                    "create s": node.create_s,
                    "RSS MiB": rss,
                    "start after a crash s": crash_s,
                    "stop s": stop_s,
                    "stop CPU s": cpu_s,
                    "start s": node.timed_start(),
                    "RSS after start MiB": node.broker.rss_bytes() / MIB,
                },
            )
            say(life.last(count))
            node.broker.kill()
    return [curve, life]


def connections(points: Points, home: Path) -> Sequence[Curve]:
    """Measure single requests of many connections, each of which waits for its answer."""
    curve = Curve("connections", "Connections", "connections", ("requests/s", "CPU us/request", "p99 ms"))
    with ExitStack() as stack:
        node = GrowthNode(stack, home / "connections", 16)
        load = replace(LOAD, in_flight=1, batch_bytes=KIB)
        curve.sweep(points.connections, points.rounds, lambda n: node.figures(replace(load, connections=n)), say)
    return [curve]


def record_sizes(points: Points, home: Path) -> Sequence[Curve]:
    """Measure requests with a single record, from tiny to the largest that the default settings accept."""
    curve = Curve("record-size", "Record size", "record bytes", ("MB/s", "CPU us/request", "CPU s/GB"))
    with ExitStack() as stack:
        node = GrowthNode(stack, home / "record-size", 16)

        def measure(size: int) -> Figures:
            found = dict(node.figures(replace(LOAD, record_bytes=size, batch_bytes=size)))
            found["CPU s/GB"] = found["CPU us/request"] / size * 1e3
            return found

        curve.sweep(points.record_bytes, points.rounds, measure, say)
    return [curve]


def log_cache(points: Points, home: Path) -> Sequence[Curve]:
    """Measure sustained produce with uploads, which begin when a third of the cache is full."""
    curve = Curve("log-cache", "Log cache", "log cache MiB", ("MB/s", "CPU s/GB", "p99 ms"))

    def measure(size: int) -> Figures:
        with ExitStack() as stack:
            node = GrowthNode(
                stack,
                home / f"cache-{size}",
                16,
                ("--storage-log-cache-bytes", f"{size}MiB", "--compaction-enabled", "false"),
            )
            done, cpu_s = node.run(replace(LOAD, batch_bytes=64 * KIB, seconds=6, bytes_max=4 << 30))
            rss = node.broker.rss_bytes() / MIB
        shutil.rmtree(home / f"cache-{size}")
        return {
            "MB/s": done.bytes / done.seconds / 1e6,
            "CPU s/GB": cpu_s / done.bytes * 1e9,
            "p50 ms": done.p50_ms,
            "p99 ms": done.p99_ms,
            "RSS MiB": rss,
        }

    curve.sweep(points.cache_mib, points.rounds, measure, say)
    return [curve]


def recovery(points: Points, home: Path) -> Sequence[Curve]:
    """Measure the start after SIGKILL with a log that is filled to a part. Its records are in batches of 64 KiB."""
    curve = Curve("recovery", "Recovery", "percent of a log of 1 GiB", ("start s",))
    flags = (*NO_UPLOADS, "--storage-log-cache-bytes", "2GiB")
    with ExitStack() as stack:
        nodes = {}
        for percent in points.fill_percent:
            node = nodes[percent] = GrowthNode(stack, home / f"recovery-{percent}", 16, flags)
            objects = node.broker.home / "data" / "objects"
            # Uploads, which begin when the log is 60 % full, fail as long as a file is in the place of the folder.
            away = objects.rename(node.broker.home / "objects")
            objects.touch(exist_ok=False)
            size = int(LOG_BYTES * percent / 100 * 0.98)
            if size:
                batch = replace(LOAD, connections=2, batch_bytes=FILL_BATCH_BYTES, seconds=60, bytes_max=size)
                node.run(batch)
            node.broker.kill()
            objects.unlink()
            away.rename(objects)

        def measure(percent: int) -> Figures:
            node = nodes[percent]
            seconds = node.timed_start()
            rss = node.broker.rss_bytes() / MIB
            node.broker.kill()  # long before an upload could have ended and trimmed the log
            return {"start s": seconds, "recovered MiB": _recovered_bytes(node.broker) / MIB, "RSS MiB": rss}

        curve.sweep(points.fill_percent, points.rounds, measure, say)
    return [curve]


def _recovered_bytes(broker: Anabranch) -> int:
    lines = (broker.home / "output.log").read_text().splitlines()
    return next(int(json.loads(line)["recovered_bytes"]) for line in lines if '"event": "serving"' in line)


def catalog(points: Points, _home: Path) -> Sequence[Curve]:
    """Measure calls of a catalog on SQLite that grows."""
    curve = Curve("catalog", "Catalog", "ranges", ("find 64 us", "commit of 1,000 ms"))
    for ranges, found in asyncio.run(catalog_growth(points.ranges)):  # once: each point is a mean of many calls
        curve.add(ranges, found)
        say(curve.last(ranges))
    return [curve]


def fetch_sessions(points: Points, _home: Path) -> Sequence[Curve]:
    """Measure fetches that find nothing, in sessions of all partitions of a topic, without a network."""
    curve = Curve("fetch-session", "Fetch session", "partitions", ("CPU us/fetch",))

    async def run() -> None:
        async with in_process_node() as lab:
            runs = {count: await idle_session(lab, f"idle-{count}", count) for count in points.partitions}
            for _ in range(points.rounds):
                for count, fetch in runs.items():
                    repeats = max(3, 10_000 // count)
                    began = time.process_time()
                    await fetch(repeats)
                    curve.add(count, {"CPU us/fetch": (time.process_time() - began) / repeats * 1e6})
                    say(curve.last(count))

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(run())
    return [curve]


CURVES: Final[Mapping[str, Callable[[Points, Path], Sequence[Curve]]]] = {
    "partitions": partitions,
    "connections": connections,
    "record-size": record_sizes,
    "fetch-session": fetch_sessions,
    "catalog": catalog,
    "log-cache": log_cache,
    "recovery": recovery,
}


def run(options: argparse.Namespace, home: Path) -> None:
    """Measure the chosen curves; each is printed, drawn and stored when it is complete."""
    points = QUICK if options.quick else FULL
    if options.rounds is not None:
        points = replace(points, rounds=options.rounds)
    stored: list[dict[str, object]] = []
    for name in options.only:
        began = time.perf_counter()
        for curve in CURVES[name](points, home):
            say(f"\n**{curve.title}**\n\n{curve.markdown()}\n")
            stored += curve.as_rows()
            if options.pictures is not None:
                options.pictures.mkdir(parents=True, exist_ok=True)
                (options.pictures / f"growth-{curve.key}.svg").write_text(curve.svg())
        say(f"({name}: {time.perf_counter() - began:.0f} s)")
        if options.json is not None:
            options.json.write_text(json.dumps(stored, indent=1) + "\n")
        for folder in home.iterdir():
            shutil.rmtree(folder)


def main() -> None:
    """Run the benchmark."""
    made = parser("Curves of growth.")
    made.add_argument("--only", nargs="+", choices=CURVES, default=list(CURVES), metavar="CURVE")
    made.add_argument("--rounds", type=int, help="number of rounds, instead of the plan's")
    made.add_argument("--pictures", type=Path, metavar="DIR", help="draw each curve as DIR/growth-CURVE.svg")
    options = made.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-growth-") as home:
        run(options, Path(home))


if __name__ == "__main__":
    main()
