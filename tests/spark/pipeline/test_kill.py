"""A pipeline over a killed executor and a killed driver, in long runs.

Rows that are merged lose more with an executor than those that are appended: what was persisted for the merge. By
default `test_changes` lets them be lost, `test_run` lets a driver die at each step, and `direct/test_clusters` kills
processes.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.java import spark_environment
from anabranch.spark.pipeline.sections import TriggerSection
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import open_tables
from anabranch.spark.pipeline.toml_file import read_pipeline
from tests.conftest import QUICK_JVM, QUICK_SQL
from tests.spark.pipeline.support import every_offset_once, need, numbered, offsets, run
from tests.spark.programs import Program, program
from tests.support.events import send
from tests.support.soak import LONG

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow, LONG]

ROOT = Path(__file__).resolve().parents[3]
BATCH = 150
COUNT = 40 * BATCH
"""Ten times the records processed when the driver is killed."""
KEYS = 96
"""A multiple of the partitions: a key stays in its own."""
FILE = """\
name = "killed"
checkpoint = "checkpoint"

[source]
bootstrap_servers = "{servers}"
topics = ["{topic}"]
offsets_per_batch_max = {batch}

[decode]
format = "json"
schema_file = "values.ddl"

[table]
name = "{catalog}.db.t"
partition_by = "none"
mode = "{mode}"

[key]
format = "text"

[trigger]
mode = "processing-time"
interval = "0 seconds"

[compaction]
batches = 2
files_min = 2

[spark.conf]
"spark.driver.memory" = "1g"
"spark.executor.memory" = "1g"
"spark.cores.max" = 2
"spark.executor.cores" = 1
"spark.executor.extraJavaOptions" = "{jvm}"
"spark.local.dir" = "{local}"
""" + "".join(f'"{name}" = "{value}"\n' for name, value in QUICK_SQL.items())


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Program]]:
    """A standalone master and a worker, each a process; gives the master's address and the worker."""
    folder = tmp_path_factory.mktemp("standalone")
    environ = {**spark_environment(), "SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": str(folder / "worker")}
    environ |= {"SPARK_DAEMON_JAVA_OPTS": QUICK_JVM, "PYTHONPATH": str(ROOT)}
    spark_class = str(Path(environ["SPARK_HOME"]) / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with program([spark_class, f"{deploy}.master.Master", *place], folder, "master", environ) as master:
        address = r".*Starting Spark master at (\S+)\n"
        master.wait(lambda: bool(master.said(address)))
        (url,) = master.said(address)
        command = [spark_class, f"{deploy}.worker.Worker", *place, "--cores", "2", "--memory", "2g", url]
        with program(command, folder, "worker", environ) as worker:
            worker.wait(lambda: bool(worker.said(".*Successfully registered with master")))
            yield url, worker


def next_batches(driver: Program, count: int) -> None:
    """Wait until so many more micro-batches are done."""
    done = len(driver.said("batch "))
    driver.wait(lambda: len(driver.said("batch ")) >= done + count)


def run_and_kill(folder: Path, file: Path, cluster: str, request: pytest.FixtureRequest) -> None:
    """Run the pipeline, kill an executor, which is of the worker or the driver, if there are some, then the driver."""
    master, worker = MASTERS.get(cluster) or request.getfixturevalue("standalone")
    if worker is not None:
        # Those of an earlier driver end by themselves.
        worker.wait(lambda: not worker.executors())
    command = [sys.executable, "-m", "anabranch.spark", "ingest", str(file), "--master", master]
    with program(command, folder, "driver", {"PYTHONPATH": str(ROOT)}) as driver:
        next_batches(driver, 1)
        if cluster != "threads":
            (worker or driver).kill_executor()
        next_batches(driver, 2)


MASTERS: dict[str, tuple[str, Program | None]] = {
    "threads": ("local[2]", None),
    "processes": ("local-cluster[2,1,1024]", None),
}


def run_rest(spark: SparkSession, pipeline: PipelineSettings) -> None:
    """Process what the killed driver has left, in two micro-batches."""
    rest = {"trigger": TriggerSection(), "source": pipeline.source.model_copy(update={"offsets_per_batch_max": None})}
    run(spark, pipeline.model_copy(update=rest))


@pytest.mark.parametrize("cluster", ["threads", "standalone", "processes"])
def test_every_record_is_there_once_over_a_killed_executor_and_driver(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, cluster: str, request: pytest.FixtureRequest
) -> None:
    need("iceberg")
    (tmp_path / "values.ddl").write_text("n INT, name STRING")
    file = tmp_path / "pipeline.toml"
    values = {"servers": servers, "topic": topic, "batch": BATCH, "jvm": QUICK_JVM, "local": tmp_path / "local"}
    file.write_text(FILE.format(catalog=f"killed_{cluster}", mode="append", **values))
    events = numbered(0, COUNT)
    # One in a hundred does not decode.
    events[50::100] = [event._replace(value=b"dead") for event in events[50::100]]
    send(servers, topic, events)

    run_and_kill(tmp_path, file, cluster, request)
    pipeline = read_pipeline(file)
    table, dead_letters = open_tables(spark, pipeline)
    assert 0 < table.read().count() < COUNT, "the driver was killed in the middle"
    run_rest(spark, pipeline)
    dead = {(n % 3, n // 3) for n in range(50, COUNT, 100)}
    wanted = every_offset_once(COUNT)
    assert offsets(table.read()) == {place: 1 for place in wanted if place not in dead}
    assert offsets(dead_letters.read()) == dict.fromkeys(dead, 1)
    numbers = sum(n for n in range(COUNT) if n % 100 != 50)
    assert table.read().agg({"data.n": "sum"}).collect()[0][0] == numbers


@pytest.mark.parametrize("cluster", ["standalone", "processes"])
def test_each_key_has_its_newest_row_over_a_killed_executor_and_driver(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, cluster: str, request: pytest.FixtureRequest
) -> None:
    need("iceberg")
    (tmp_path / "values.ddl").write_text("n INT, name STRING")
    file = tmp_path / "pipeline.toml"
    values = {"servers": servers, "topic": topic, "batch": BATCH, "jvm": QUICK_JVM, "local": tmp_path / "local"}
    file.write_text(FILE.format(catalog=f"merged_{cluster}", mode="upsert", **values))
    # Keys return in most micro-batches. One record in ten deletes, and one in a hundred does not decode.
    events = [event._replace(key=b"key%d" % (n % KEYS)) for n, event in enumerate(numbered(0, COUNT))]
    events[5::10] = [event._replace(value=None) for event in events[5::10]]
    events[50::100] = [event._replace(value=b"dead") for event in events[50::100]]
    send(servers, topic, events)

    run_and_kill(tmp_path, file, cluster, request)

    pipeline = read_pipeline(file)
    table, dead_letters = open_tables(spark, pipeline)
    newest = table.read().agg({"offset": "max"}).collect()[0][0]
    assert 0 < newest < COUNT // 3 - 1, "the driver was killed in the middle"
    run_rest(spark, pipeline)
    wanted: dict[str, int] = {}
    for n in range(COUNT):
        if n % 100 == 50:
            continue
        if n % 10 == 5:
            wanted.pop(f"key{n % KEYS}", None)
        else:
            wanted[f"key{n % KEYS}"] = n
    found = table.read().select("key", "data.n").collect()
    assert sorted(tuple(row) for row in found) == sorted(wanted.items())
    assert offsets(dead_letters.read()) == {(n % 3, n // 3): 1 for n in range(50, COUNT, 100)}
