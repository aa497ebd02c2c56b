"""The part `freshness`: time from an acknowledgement to a table that has the record, and what commits cost."""

import argparse
import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlparse

from benchmarks.lab.tables.node import Cpu, TableNode
from benchmarks.lab.tables.records import Sender, batches_of, small_kind, wait
from benchmarks.support import Report, middle, p99

PARTITIONS = 4
RATE = 500
"""Records a second."""
BATCH_RECORDS = 50
LOOK_S = 0.05
GOALS = (60, 10)
"""Intervals in seconds that a goal speaks of: half of the records are there in that time."""
OFFSETS = "anabranch.offsets"
"""Entry of a snapshot's summary: end offsets by partition."""
FLAGS = ("--compaction-enabled=false",)
"""Uploads are those that the table asks for."""


@dataclass(frozen=True)
class Plan:
    """Intervals of commits in seconds, and the time of the load."""

    intervals: tuple[int, ...]
    seconds: float


QUICK = Plan((10, 2), 25)
FULL = Plan((60, 10, 2), 190)


@dataclass
class Track:
    """A topic with its node, and the records that its table does not have yet: partition, offset and time of each."""

    node: TableNode
    interval_s: int
    """0: it is no table."""
    waiting: dict[int, deque[tuple[int, float]]] = field(
        default_factory=lambda: {n: deque() for n in range(PARTITIONS)}
    )
    delays_s: list[float] = field(default_factory=list)
    version: int = 0

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return f"every-{self.interval_s}"

    def look(self) -> None:
        """Load the table if it has a new version, and note the records that it has now."""
        version = self.node.pointer.version(self.topic)
        if version == self.version:
            return
        metadata = self.node.load_table(self.topic)
        now_s = time.perf_counter()
        current = metadata.get("current-snapshot-id")
        for snapshot in metadata.get("snapshots", ()):  # none before the first row
            if snapshot["snapshot-id"] == current:
                self._note(json.loads(snapshot["summary"].get(OFFSETS, "{}")), now_s)
        self.version = version

    def _note(self, ends: Mapping[str, int], now_s: float) -> None:
        """Note the records before the ends of partitions, which a snapshot has."""
        for idx, end in ends.items():
            line = self.waiting[int(idx)]
            while line and line[0][0] < end:
                self.delays_s.append(now_s - line.popleft()[1])


@dataclass(frozen=True)
class Costs:
    """Resources that a node has used."""

    cpu: Cpu
    calls: Mapping[str, float]
    commits: int

    @classmethod
    def of(cls, track: Track) -> "Costs":
        """Return those of a topic's node so far."""
        commits = track.node.pointer.version(track.topic) if track.interval_s else 0
        return cls(track.node.cpu(), track.node.store_calls(), commits)

    def __sub__(self, other: "Costs") -> "Costs":
        calls = {kind: count - other.calls[kind] for kind, count in self.calls.items()}
        return Costs(self.cpu - other.cpu, calls, self.commits - other.commits)


def measure(report: Report, home: Path, options: argparse.Namespace) -> None:
    """Load nodes with tables of different intervals, and one without, all at the same time."""
    plan = QUICK if options.quick else FULL
    values = small_kind(RATE * 10).values
    batches = [
        batch
        for some in (values[at : at + BATCH_RECORDS] for at in range(0, len(values), BATCH_RECORDS))
        for batch in batches_of(some)
    ]
    with ExitStack() as stack:
        tracks = []
        for interval_s in (*plan.intervals, 0):
            node = stack.enter_context(TableNode(home / f"node-{interval_s}", FLAGS))
            track = Track(node, interval_s)
            configs = {"table.enable": "true", "table.commit.interval.ms": f"{interval_s * 1000}"} if interval_s else {}
            node.create_topic(track.topic, PARTITIONS, configs)
            tracks.append(track)
        tables = [track for track in tracks if track.interval_s]
        with Load(tracks, batches):
            # What the first table of a node costs is in the part `rows`.
            wait(lambda: all(track.node.pointer.version(track.topic) for track in tables), "a table has no snapshot")
            for track in tables:
                track.look()
                track.delays_s.clear()
            before, began_s = [Costs.of(track) for track in tracks], time.perf_counter()
            while time.perf_counter() - began_s < plan.seconds:
                for track in tables:
                    track.look()
                time.sleep(LOOK_S)
            after, seconds = [Costs.of(track) for track in tracks], time.perf_counter() - began_s
        used = [late - early for early, late in zip(before, after, strict=True)]
        for track, each in zip(tracks, used, strict=True):
            if track.interval_s:
                add_figures(report, track, seconds, each - used[-1])


class Load:
    """Threads that send records to all topics at a steady rate, while the block runs."""

    def __init__(self, tracks: list[Track], batches: list[bytes]) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(track, batches)) for track in tracks]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _send(self, track: Track, batches: list[bytes]) -> None:
        """Send a batch every tenth of a second: its records are acknowledged together."""
        with track.node.connect() as connection:
            sender = Sender(connection, track.topic)
            turns = itertools.cycle(range(PARTITIONS))
            for batch in itertools.cycle(batches):
                idx = next(turns)
                (offset,) = sender.send({idx: batch}).values()
                track.waiting[idx].append((offset, time.perf_counter()))
                if self._stopping.wait(BATCH_RECORDS / RATE):
                    return


def add_figures(report: Report, track: Track, seconds: float, used: Costs) -> None:
    """Add the figures of one interval: `used` is what its node has used beyond one without a table."""
    name = f"commits each {track.interval_s} s"
    goal = f"<= {track.interval_s}" if track.interval_s in GOALS else None
    report.add(f"{name}: freshness p50", middle(track.delays_s), "s", goal)
    report.add(f"{name}: freshness p99", p99(track.delays_s), "s")
    report.add(f"{name}: CPU of the node", used.cpu.node_s / seconds * 100, "% of a core")
    report.add(f"{name}: CPU of the worker", used.cpu.worker_s / seconds * 100, "% of a core")
    report.add(f"{name}: CPU of a commit", used.cpu.all_s / used.commits * 1e3, "ms")
    a_minute = 60 / seconds
    report.add(f"{name}: commits", used.commits * a_minute, "a minute")
    report.add(f"{name}: PUTs", used.calls["put"] * a_minute, "a minute")
    report.add(f"{name}: GETs", used.calls["get"] * a_minute, "a minute")
    report.add(f"{name}: written", used.calls["bytes"] * a_minute / 1e6, "MB a minute")
    report.add(f"{name}: data files at the end", track.node.pointer.totals(track.topic).files, "")
    folder = Path(urlparse(track.node.load_table(track.topic)["location"]).path)
    report.add(f"{name}: files in its folder", sum(each.is_file() for each in folder.rglob("[!.]*")), "")
