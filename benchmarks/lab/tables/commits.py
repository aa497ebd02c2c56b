"""The part `commits`: a table after a thousand commits: what its metadata and a plan of a scan cost, as they add up."""

import argparse
import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlparse

import structlog
from pyiceberg.table import StaticTable

from anabranch.client.connection import Connection
from anabranch.tables.upkeep.committer import TableCommitter
from benchmarks.lab.tables.records import Sender, batches_of
from benchmarks.support import CONSOLE, Report, middle
from tests.support.node import running_node
from tests.support.tables import created_slowly, own_committer

TOPIC = "events"
RECORDS = 10
"""Records of an append."""
SNAPSHOTS = 100
"""Rounds whose snapshots stay in the end."""
PLANS = 5
RECENT = 10
"""Rounds that the time of a commit is a median of."""
DELETE_DELAY_MS = 1_000


@dataclass(frozen=True)
class Round:
    """Cost of a round of the committer: an append, and joins that are due."""

    seconds: float
    node_cpu_s: float
    worker_cpu_s: float


def measure(report: Report, home: Path, options: argparse.Namespace) -> None:
    """Append to a table, as often as it takes for a thousand commits; then let snapshots expire."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    asyncio.run(_measure(report, home, 100 if options.quick else 1_000))


async def _measure(report: Report, home: Path, commits: int) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(home, storage_delete_delay_ms=DELETE_DELAY_MS))
        await created_slowly(node, TOPIC)
        committer = own_committer(node, TOPIC, home / "scratch", delete_delay_ms=DELETE_DELAY_MS)
        upkeep = node.upkeep.tables.upkeep
        assert upkeep is not None
        port = int(node.bootstrap.rpartition(":")[2])
        connection = stack.enter_context(await asyncio.to_thread(Connection, "127.0.0.1", port))
        sender = await asyncio.to_thread(Sender, connection, TOPIC)
        (batch,) = batches_of(b"value %d" % number for number in range(RECORDS))

        async def append() -> Round:
            await asyncio.to_thread(sender.send, {0: batch})
            await node.serving.storage.flush()
            return await run(committer, lambda: upkeep.cpu_s)

        async def look(name: str) -> None:
            figures = await asyncio.to_thread(figures_of, committer)
            figures["a round"] = middle([each.seconds for each in rounds]) * 1e3, "ms"
            figures["a round, CPU of the node"] = middle([each.node_cpu_s for each in rounds]) * 1e3, "ms"
            figures["a round, CPU of the worker"] = middle([each.worker_cpu_s for each in rounds]) * 1e3, "ms"
            for figure, (value, unit) in figures.items():
                report.add(f"{name}: {figure}", value, unit)
            CONSOLE.print(f"{name}: {figures}", highlight=False)

        rounds: deque[Round] = deque(maxlen=RECENT)
        began_ms: deque[int] = deque(maxlen=SNAPSHOTS)
        for count in (10, 30, 100, 300, 1_000):
            while count <= commits and committer.status.version < count:
                began_ms.append(upkeep.context.now_ms())
                rounds.append(await append())
            if count <= commits:
                await look(f"after {count} commits, with {committer.status.snapshots} snapshots")
        keep_for(committer, upkeep.context.now_ms() - began_ms[0])
        rounds.clear()
        for _ in range(RECENT):
            rounds.append(await append())
        tables = node.serving.catalog.tables
        while await tables.list_reapable(now_ms=upkeep.context.now_ms(), limit=1):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)
        await look(f"then, with {committer.status.snapshots} snapshots")


def keep_for(committer: TableCommitter, retention_ms: int) -> None:
    """Let snapshots expire that are older."""
    options = replace(committer.topic.options, snapshot_retention_ms=retention_ms)
    committer.topic = replace(committer.topic, options=options)


async def run(committer: TableCommitter, worker_cpu_s: Callable[[], float]) -> Round:
    """Bring a table up to its topic."""
    began_s, cpu_s, worker_s = time.perf_counter(), time.process_time(), worker_cpu_s()
    while any(await committer.run()):
        pass
    return Round(time.perf_counter() - began_s, time.process_time() - cpu_s, worker_cpu_s() - worker_s)


def figures_of(committer: TableCommitter) -> dict[str, tuple[float, str]]:
    """Return the figures of a table as it is now."""
    location = committer.status.metadata_location
    metadata_path = Path(urlparse(location).path)
    table = StaticTable.from_metadata(location)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    return {
        "plan of a scan by pyiceberg": (middle([plan_s(location) for _ in range(PLANS)]) * 1e3, "ms"),
        "metadata.json": (metadata_path.stat().st_size / 1e3, "KB"),
        "manifest list": (Path(urlparse(snapshot.manifest_list).path).stat().st_size / 1e3, "KB"),
        "manifests": (len(manifests), ""),
        "manifests, size": (sum(each.manifest_length for each in manifests) / 1e3, "KB"),
        "data files": (committer.status.files, ""),
        "files in the folder": (sum(each.is_file() for each in metadata_path.parents[1].rglob("[!.]*")), ""),
    }


def plan_s(location: str) -> float:
    """Return the seconds to load a table, and to list the files of a scan."""
    began_s = time.perf_counter()
    list(StaticTable.from_metadata(location).scan().plan_files())
    return time.perf_counter() - began_s
