"""`anabranch spark compact` with the real Spark: the node's own invariants, also when processes are killed."""

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from anabranch.compaction.execution import ExecutionContext, OutputId
from anabranch.compaction.joins.execute import JoinedObject, JoinInputs, execute_join
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.errors import ObjectNotFound
from anabranch.s3stream.model import ObjectKind, object_key
from anabranch.spark.compact import SparkCompaction, SparkCompactionSummary
from anabranch.spark.storage import StorageLocation, find_storage
from anabranch.spark.tasks import TasksFailed
from tests.conftest import QUICK_JVM
from tests.spark.kafka_objects import KafkaObjects, kafka_objects
from tests.spark.programs import WAIT_S, Program, program
from tests.support.catalog_node import CLUSTER
from tests.support.events import Event, committed_records, create_topic, send
from tests.support.node import NodeProcess
from tests.support.soak import LONG

pytestmark = pytest.mark.spark

KIB, MIB = 1024, 1024 * 1024
SMALL = CompactionSettings(memory_bytes=256 * KIB, split_bytes=48 * KIB, block_bytes=16 * KIB)
"""Several tasks, and outputs of both kinds, from a few hundred KiB."""


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[KafkaObjects]:
    """Two streams with enough for objects of their own, and three without."""
    with kafka_objects(tmp_path / "storage") as made:
        ids = list(asyncio.run(made.made.start(5)))
        made.upload(ids[:2], objects=6, batches=4, value_bytes=2000)
        made.upload(ids, objects=2, batches=1, value_bytes=100)
        yield made


def compact(
    spark: SparkSession,
    filled: KafkaObjects,
    tell: Callable[[str], None] = lambda _: None,
    settings: CompactionSettings = SMALL,
) -> SparkCompactionSummary:
    return compact_at(spark, filled.location, settings, filled.made.clock.now_ms, tell)


def compact_at(
    spark: SparkSession,
    location: StorageLocation,
    settings: CompactionSettings,
    now_ms: Callable[[], int],
    tell: Callable[[str], None] = lambda _: None,
) -> SparkCompactionSummary:
    numbers = itertools.count()
    run = SparkCompaction(
        spark, location, settings, now_ms=now_ms, new_writer_id=lambda: f"spark-{next(numbers)}", report=tell
    )
    return asyncio.run(run.run())


def test_a_backlog_becomes_few_objects_and_loses_nothing(spark: SparkSession, filled: KafkaObjects) -> None:
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


def test_small_streams_of_a_running_node_are_work_for_several_tasks(spark: SparkSession, tmp_path: Path) -> None:
    """61 partitions of little each, which is old enough for objects of their own."""
    random = Random(1)
    settings = CompactionSettings(memory_bytes=8 * MIB, force_split_ms=0)
    said: list[str] = []
    with NodeProcess(tmp_path, compaction_enabled=False, storage_upload_age_ms=100) as node:
        create_topic(node.bootstrap, "small", 61)
        for _ in range(3):
            send(node.bootstrap, "small", [Event(each, random.randbytes(100 * KIB), b"k") for each in range(61)])
            node.wait_uploaded()
        before = committed_records(node.bootstrap, "small")
        location = find_storage({"dataDir": str(node.data_dir)})
        summary = compact_at(spark, location, settings, lambda: time.time_ns() // 1_000_000, said.append)
        assert (summary.refused, summary.commits) == ([], 1)
        assert summary.objects_out >= 61, "two of a partition if it was alone in an upload between others"
        assert summary.tasks == 5, said
        assert node.terminate() == 0
        node.start()
        assert committed_records(node.bootstrap, "small") == before
        assert node.terminate() == 0


def test_small_groups_share_a_task_and_a_damaged_object_costs_only_its_own(spark: SparkSession, tmp_path: Path) -> None:
    with kafka_objects(tmp_path / "storage") as made:
        ids = fill_stream_objects(made, 12)
        before = made.contents()
        damaged = asyncio.run(made.made.catalog.list_stream_objects(ids[7]))[1].object.object_id
        path = made.objects / object_key(CLUSTER, damaged)
        data = path.read_bytes()
        path.write_bytes(data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
        summary = compact(spark, made, settings=CompactionSettings())
        assert (summary.tasks, summary.commits, summary.left_alone) == (1, 11, [damaged])
        path.write_bytes(data)
        assert made.contents() == before
        assert made.counts()["SO committed"] == 11 + 3


def fill_stream_objects(made: KafkaObjects, streams: int, *, value_bytes: int = 1000) -> Sequence[int]:
    """Three stream objects of each stream."""

    async def put() -> Sequence[int]:
        ids = await made.made.start(streams)
        for _ in range(3):
            await made.made.upload(*((ObjectKind.SO, [made.batch(stream, value_bytes)]) for stream in ids))
        return ids

    return asyncio.run(put())


def test_every_attempt_at_a_task_has_ids_of_its_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[OutputId] = []

    async def record(_run: SparkCompaction, tasks: Sequence[Any], _execute: object) -> None:
        for task in tasks:
            used.extend(chain.from_iterable(join.ids for join in getattr(task, "joins", ())))
            used.extend(chain.from_iterable(ids.values() for ids in getattr(task, "ids", ())))
        raise TasksFailed("recorded")

    monkeypatch.setattr(SparkCompaction, "_run_tasks", record)
    with kafka_objects(tmp_path / "storage") as made:
        ids = fill_stream_objects(made, 2)
        made.upload(list(ids), objects=2, batches=4, value_bytes=1000)
        summary = compact(spark, made)
    assert summary.refused == ["recorded", "recorded"]
    attempts = 4
    assert len(used) == (2 + 2) * attempts
    assert len({each.object_id for each in used}) == len(used)


async def node_compacts(filled: KafkaObjects, *, are_gone: bool) -> None:
    """Compact as the node itself does. With `are_gone`, the objects that it replaces are deleted at once."""
    report = await filled.made.service(SMALL).run_once()
    assert not report.errors
    if are_gone:
        files = filled.files()
        filled.made.clock.ms += SMALL.delete_delay_ms + 1
        await filled.made.collect()
        assert filled.files() < files


def node_is_faster(filled: KafkaObjects, *, are_gone: bool) -> Callable[[str], None]:
    """Report of a job, during which the node itself compacts: after the plan, before the tasks."""

    def report(_: str) -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(asyncio.run, node_compacts(filled, are_gone=are_gone)).result()

    return report


@pytest.mark.parametrize("are_gone", [False, True], ids=["kept", "deleted"])
def test_of_two_that_join_the_same_one_commits(spark: SparkSession, tmp_path: Path, *, are_gone: bool) -> None:
    with kafka_objects(tmp_path / "storage") as made:
        fill_stream_objects(made, 2)
        before = made.contents()
        summary = compact(spark, made, node_is_faster(made, are_gone=are_gone))
        assert (summary.commits, summary.overtaken) == (0, 2)
        assert not summary.refused
        assert not summary.left_alone
        assert made.contents() == before


@pytest.mark.parametrize("are_gone", [False, True], ids=["kept", "deleted"])
def test_of_two_that_compact_the_same_one_commits(
    spark: SparkSession, filled: KafkaObjects, capfd: pytest.CaptureFixture[str], *, are_gone: bool
) -> None:
    before = filled.contents()
    summary = compact(spark, filled, node_is_faster(filled, are_gone=are_gone))
    assert (summary.commits, summary.overtaken) == (0, 1)
    assert not summary.refused
    assert not summary.left_alone
    assert "Traceback" not in capfd.readouterr().err
    assert filled.contents() == before
    assert filled.counts()["SSO committed"] <= 1


def test_a_join_whose_inputs_go_before_the_store_copies_them_is_planned_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = []

    async def overtaken(join: JoinInputs, output: OutputId, execution: ExecutionContext) -> JoinedObject:
        await asyncio.to_thread(lambda: asyncio.run(node_compacts(made, are_gone=True)))
        try:
            return await execute_join(join, output, execution)
        except Exception as error:
            errors.append(error)
            raise

    async def run_here(_run: SparkCompaction, tasks: Sequence[Any], execute: Callable[..., Any]) -> list[Any]:
        return await asyncio.to_thread(lambda: [execute(made.location, SMALL, task) for task in tasks])

    monkeypatch.setattr("anabranch.spark.compact.execute_join", overtaken)
    monkeypatch.setattr(SparkCompaction, "_run_tasks", run_here)
    with kafka_objects(tmp_path / "storage") as made:
        fill_stream_objects(made, 1, value_bytes=600_000)
        before = made.contents()
        summary = compact(spark, made)
        assert [type(error) for error in errors] == [ObjectNotFound]
        assert (summary.commits, summary.overtaken, summary.refused, summary.left_alone) == (0, 1, [], [])
        assert made.contents() == before


def test_a_node_that_starts_anew_fences_the_job(spark: SparkSession, filled: KafkaObjects) -> None:
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


def test_a_damaged_input_is_left_alone_and_the_others_are_compacted(spark: SparkSession, filled: KafkaObjects) -> None:
    infos = asyncio.run(filled.made.catalog.list_node_ssos(1, limit=100))
    path = filled.objects / object_key(CLUSTER, infos[3].object_id)
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    summary = compact(spark, filled)
    assert summary.left_alone == [infos[3].object_id]
    assert summary.commits >= 1
    assert filled.counts()["SSO committed"] <= 2


def test_attempts_that_are_lost_and_a_driver_that_dies_leave_all_as_it_was_and_the_next_run_does_it(
    spark: SparkSession, filled: KafkaObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts whose objects are lost with their executor, and a driver that dies before its first commit."""
    before = filled.contents()

    class Died(Exception):
        pass

    async def die(*_: object) -> None:
        raise Died

    async def run_twice(_run: SparkCompaction, tasks: Sequence[Any], execute: Callable[..., Any]) -> list[Any]:
        def attempt(number: int) -> list[Any]:
            monkeypatch.setattr(TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: number))
            return [execute(filled.location, SMALL, task) for task in tasks]

        files = filled.files()
        await asyncio.to_thread(attempt, 0)
        lost = filled.files()
        done = await asyncio.to_thread(attempt, 1)
        assert len(filled.files() - lost) == len(lost - files) > 0, "each attempt writes its own objects"
        return done

    monkeypatch.setattr(SparkCompaction, "_run_tasks", run_twice)
    with monkeypatch.context() as patched:
        patched.setattr("anabranch.spark.compact.commit_sets", die)
        with pytest.raises(Died):
            compact(spark, filled)
    assert filled.contents() == before
    summary = compact(spark, filled)
    assert not summary.refused
    assert summary.commits
    assert filled.contents() == before
    assert filled.counts()["SO committed"] == 2
    # What the dead driver and the lost attempts wrote is still prepared; it is reaped after its deadline.
    assert any("prepared" in name.lower() for name in filled.counts())
    asyncio.run(reap(filled))
    assert not [name for name in filled.counts() if "prepared" in name.lower()]
    assert filled.contents() == before


# killed


@contextmanager
def job(filled: KafkaObjects, master: str) -> Iterator[Program]:
    """The job as a separate process."""
    root = str(Path(__file__).parents[2])
    command = [
        sys.executable, "-m", "anabranch.spark", "compact", "--catalog", filled.location.catalog_url,
        "--objects", str(filled.objects), "--cluster", CLUSTER, "--task-mib", "32", "--master", master,
        "--conf", f"spark.executor.extraJavaOptions={QUICK_JVM}",
        "--conf", f"spark.local.dir={filled.folder / 'spark'}",
        "--conf", f"spark.executorEnv.PYTHONPATH={root}",
    ]  # fmt: skip
    with program(command, filled.folder, "job", {"PYTHONPATH": root}) as started:
        yield started


@pytest.fixture
def large(tmp_path: Path) -> Iterator[KafkaObjects]:
    """Enough for several tasks of the command, each of which takes a while."""
    with kafka_objects(tmp_path / "storage") as made:
        ids = list(asyncio.run(made.made.start(8)))
        made.upload(ids, objects=6, batches=4, value_bytes=50_000)
        yield made


@LONG
@pytest.mark.slow
def test_an_executor_that_is_killed_costs_nothing_but_time(large: KafkaObjects) -> None:
    before, files = large.contents(), large.files()
    with job(large, "local-cluster[1,1,1024]") as started:
        started.wait(lambda: len(large.files()) > len(files))
        started.kill_executor()
        assert started.process.wait(WAIT_S) == 0, started.log.read_text()
    assert large.contents() == before
    assert large.counts()["SO committed"] == 8


@LONG
@pytest.mark.slow
def test_an_executor_and_the_driver_that_are_killed_leave_all_as_it_was_and_the_next_run_does_it(
    spark: SparkSession, large: KafkaObjects
) -> None:
    before, files = large.contents(), large.files()
    with job(large, "local-cluster[1,1,1024]") as started:
        started.wait(lambda: len(large.files()) > len(files))
        started.kill_executor()
        left = large.files()
        started.wait(lambda: len(large.files()) > len(left))  # the next executor has begun
    assert large.contents() == before
    summary = compact(spark, large, settings=CompactionSettings())
    assert not summary.refused
    assert summary.commits
    assert large.contents() == before
    assert large.counts()["SO committed"] == 8
    # The objects of the dead run are still prepared; they are reaped after their deadline.
    asyncio.run(reap(large))
    assert not [name for name in large.counts() if "prepared" in name.lower()]


async def reap(filled: KafkaObjects) -> None:
    from anabranch.s3stream.maintain.gc import GarbageCollector

    filled.made.clock.ms = time.time_ns() // 1_000_000 + 25 * 3_600_000  # the killed job went by the real time
    collector = GarbageCollector(
        catalog=filled.made.catalog,
        stores={"local": filled.made.store},
        cluster=CLUSTER,
        now_ms=filled.made.clock.now_ms,
    )
    await collector.collect()
