"""`anabranch spark compact` with the real Spark: the node's own invariants, also when things are killed."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compaction.settings import CompactionSettings
from s3stream.model import object_key
from spark.compact import CompactSummary, SparkCompaction
from tests.compaction.cluster import CLUSTER
from tests.spark.kafka_cluster import KafkaCluster, kafka_cluster

pytestmark = pytest.mark.spark

WAIT_S = 300
KIB = 1024
SMALL = CompactionSettings(memory_bytes=256 * KIB, split_bytes=48 * KIB, block_bytes=16 * KIB)
"""Several tasks, and outputs of both kinds, from a few hundred KiB."""


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Two streams with enough for objects of their own, and three without."""
    with kafka_cluster(tmp_path / "storage") as made:
        ids = list(asyncio.run(made.made.start(5)))
        made.upload(ids[:2], objects=6, batches=4, value_bytes=2000)
        made.upload(ids, objects=2, batches=1, value_bytes=100)
        yield made


def compact(spark: SparkSession, filled: KafkaCluster, tell: Callable[[str], None] = lambda _: None) -> CompactSummary:
    numbers = itertools.count()
    run = SparkCompaction(
        spark,
        filled.location,
        SMALL,
        now_ms=filled.made.clock.now_ms,
        new_writer_id=lambda: f"spark-{next(numbers)}",
        tell=tell,
    )
    return asyncio.run(run.run())


def test_a_backlog_becomes_few_objects_and_loses_nothing(spark: SparkSession, filled: KafkaCluster) -> None:
    before = filled.contents()
    summary = compact(spark, filled)
    assert not summary.refused
    assert summary.tasks >= 4
    assert filled.contents() == before
    counts = filled.counts()
    assert counts["SSO committed"] == 1
    assert counts["SO committed"] == 2
    assert not [name for name in counts if "prepared" in name.lower()], "unused names are forgotten"
    assert compact(spark, filled).commits == 0, "it comes to rest"


def test_of_two_that_compact_the_same_one_commits(spark: SparkSession, filled: KafkaCluster) -> None:
    before = filled.contents()

    def meanwhile(_: str) -> None:
        """The node itself compacts while Spark's tasks begin."""
        with ThreadPoolExecutor(1) as other:
            node = other.submit(lambda: asyncio.run(filled.made.service(SMALL).run_once())).result()
        assert not node.errors

    summary = compact(spark, filled, meanwhile)
    assert summary.commits == 0
    assert summary.refused
    assert filled.contents() == before
    assert filled.counts()["SSO committed"] <= 1


def test_a_node_that_starts_anew_fences_the_job(spark: SparkSession, filled: KafkaCluster) -> None:
    before = filled.contents()

    def restart(_: str) -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(
                lambda: asyncio.run(filled.made.catalog.register_node(1, "h", 1, now_ms=0, lease_ms=0))
            ).result()

    summary = compact(spark, filled, restart)
    assert summary.commits == 0
    assert "epoch" in summary.refused[0]
    assert filled.contents() == before


def test_a_damaged_input_is_left_alone_and_the_others_are_compacted(spark: SparkSession, filled: KafkaCluster) -> None:
    infos = asyncio.run(filled.made.catalog.list_node_ssos(1, limit=100))
    path = filled.objects / object_key(CLUSTER, infos[3].object_id)
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    summary = compact(spark, filled)
    assert summary.left_alone == [infos[3].object_id]
    assert summary.commits >= 1
    assert filled.counts()["SSO committed"] <= 2


# killed


def start(filled: KafkaCluster, master: str) -> subprocess.Popen[bytes]:
    """The job as a process of its own."""
    command = [
        sys.executable, "-m", "spark", "compact", "--catalog", filled.location.catalog_url,
        "--objects", str(filled.objects), "--cluster", CLUSTER, "--task-mib", "32", "--master", master,
        "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "--conf", f"spark.local.dir={filled.folder / 'spark'}",
        "--conf", "spark.executorEnv.PYTHONPATH=" + str(Path(__file__).parents[2]),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (filled.folder / "output.log").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=filled.folder)


def descendants(pid: int) -> dict[int, str]:
    """Living processes under a process, with their command lines."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text[text.rindex(")") + 2 :].split()[1])
    found, todo = {}, [pid]
    while todo:
        parent = todo.pop()
        children = [child for child, its in parents.items() if its == parent]
        todo += children
        for child in children:
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@pytest.fixture
def large(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Enough for several tasks of the command, each of which takes a while."""
    with kafka_cluster(tmp_path / "storage") as made:
        ids = list(asyncio.run(made.made.start(8)))
        made.upload(ids, objects=6, batches=4, value_bytes=100_000)
        yield made


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_executor_that_is_killed_costs_nothing_but_time(large: KafkaCluster) -> None:
    before, files = large.contents(), large.files()
    process = start(large, "local-cluster[2,1,1024]")
    log = large.folder / "output.log"
    try:
        wait(lambda: len(large.files()) > len(files), process, log)
        executors = [pid for pid, line in descendants(process.pid).items() if "CoarseGrainedExecutorBackend" in line]
        if executors:  # none when all tasks are done already
            os.kill(executors[0], signal.SIGKILL)
        assert process.wait(WAIT_S) == 0, log.read_text()
    finally:
        end(process)
    assert large.contents() == before
    assert large.counts()["SO committed"] == 8


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_driver_that_is_killed_leaves_all_as_it_was_and_the_next_run_does_it(
    spark: SparkSession, large: KafkaCluster
) -> None:
    before, files = large.contents(), large.files()
    process = start(large, "local[1]")
    try:
        wait(lambda: len(large.files()) > len(files), process, large.folder / "output.log")
    finally:
        end(process)
    assert large.contents() == before
    summary = compact(spark, large)
    assert not summary.refused
    assert large.contents() == before
    # What the dead run had written is prepared still; its deadline reaps it.
    asyncio.run(reap(large))
    assert not [name for name in large.counts() if "prepared" in name.lower()]


async def reap(filled: KafkaCluster) -> None:
    from s3stream.gc import GarbageCollector

    filled.made.clock.now = time.time_ns() // 1_000_000 + 25 * 3_600_000  # the killed job went by the real time
    collector = GarbageCollector(
        catalog=filled.made.catalog,
        stores={"local": filled.made.store},
        cluster=CLUSTER,
        now_ms=filled.made.clock.now_ms,
    )
    await collector.collect()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the job and all that it started."""
    below = descendants(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
