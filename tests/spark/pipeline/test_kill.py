"""A pipeline over killed executors and drivers: on a local cluster, then on a standalone master with a worker."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.java import spark_environment
from spark.pipeline.settings import Trigger
from spark.pipeline.tables import open_tables
from spark.pipeline.toml_file import read_pipeline
from tests.conftest import QUICK_JVM
from tests.spark.pipeline.support import every_offset_once, numbered, offsets, run
from tests.support.events import send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(500)]

COUNT = 30_000
FILE = """\
name = "killed"
checkpoint = "checkpoint"

[source]
bootstrap_servers = "{servers}"
topics = ["{topic}"]
offsets_per_batch_max = 150

[decode]
format = "json"
schema_file = "values.ddl"

[table]
name = "killed.db.t"
partition_by = "none"

[trigger]
mode = "processing-time"
interval = "0 seconds"

[compaction]
batches = 4
files_min = 2

[spark]
master = "local-cluster[2,1,1024]"

[spark.conf]
"spark.driver.memory" = "1g"
"spark.executor.memory" = "1g"
"spark.cores.max" = 2
"spark.sql.shuffle.partitions" = 2
"spark.driver.extraJavaOptions" = "{jvm}"
"spark.executor.extraJavaOptions" = "{jvm}"
"spark.local.dir" = "{local}"
"""


@contextmanager
def process(
    command: Sequence[str], folder: Path, environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A process with all that it starts, killed at the end; and the lines that it says."""
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, cwd=folder,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert started.stdout is not None, "a pipe was asked for"
    with started.stdout as stream:
        try:
            yield started, iter(stream.readline, "")
        finally:
            kill_all(started)


def kill_all(started: subprocess.Popen[str]) -> None:
    """A power cut for a process and all its own."""
    if started.poll() is None:
        os.killpg(started.pid, signal.SIGKILL)
    started.wait(60)


def processes() -> dict[int, str]:
    """Command lines of all processes of this machine."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return found


def kill_executor(driver_url: str) -> None:
    """Kill one executor of the driver at this address."""
    executors = [
        pid for pid, command in processes().items()
        if "CoarseGrainedExecutorBackend" in command and driver_url in command
    ]  # fmt: skip
    assert executors, "a driver with no executors"
    os.kill(executors[0], signal.SIGKILL)


def next_batches(lines: Iterator[str], count: int) -> None:
    """Wait until so many more micro-batches are done."""
    said = []
    for line in lines:
        said.append(line)
        count -= line.startswith("batch ")
        if count == 0:
            return
    pytest.fail(f"the pipeline ended by itself: {said}")


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A standalone master and a worker, each a process; gives the master's address."""
    environ = {**spark_environment(), "SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": str(folder / "worker")}
    spark_class = str(Path(environ["SPARK_HOME"]) / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        _, lines = stack.enter_context(process([spark_class, f"{deploy}.master.Master", *place], folder, environ))
        url = next(found[1] for line in lines if (found := re.search(r"Starting Spark master at (\S+)", line)))
        worker = [spark_class, f"{deploy}.worker.Worker", *place, "--cores", "2", "--memory", "2g", url]
        _, lines = stack.enter_context(process(worker, folder, environ))
        assert any("Successfully registered with master" in line for line in lines)
        yield url


def driver_port() -> str:
    """A port for a driver, by which its executors are told from others'."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_every_record_is_there_once_over_killed_executors_and_drivers(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "values.ddl").write_text("n INT, name STRING")
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(servers=servers, topic=topic, jvm=QUICK_JVM, local=tmp_path / "local"))
    events = numbered(0, COUNT)
    # One in a hundred does not decode.
    events[50::100] = [event._replace(value=b"dead") for event in events[50::100]]
    send(servers, topic, events)

    def start(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "spark", "ingest", str(file), *arguments]

    port = driver_port()
    with process(start("--conf", f"spark.driver.port={port}"), tmp_path) as (driver, lines):
        next_batches(lines, 2)
        kill_executor(f":{port}")
        next_batches(lines, 2)
        kill_all(driver)
    with standalone(tmp_path) as master:
        port = driver_port()
        arguments = start("--master", master, "--conf", f"spark.driver.port={port}")
        with process(arguments, tmp_path) as (driver, lines):
            next_batches(lines, 2)
            kill_executor(f":{port}")
            next_batches(lines, 2)
            kill_all(driver)

    pipeline = read_pipeline(file)
    table, dead_letters = open_tables(spark, pipeline)
    assert 0 < table.read().count() < COUNT, "the drivers were killed in the middle"
    rest = {"trigger": Trigger(), "source": pipeline.source.model_copy(update={"offsets_per_batch_max": None})}
    run(spark, pipeline.model_copy(update=rest))
    dead = {(n % 3, n // 3) for n in range(50, COUNT, 100)}
    wanted = every_offset_once(COUNT)
    assert offsets(table.read()) == {place: 1 for place in wanted if place not in dead}
    assert offsets(dead_letters.read()) == dict.fromkeys(dead, 1)
    numbers = sum(n for n in range(COUNT) if n % 100 != 50)
    assert table.read().agg({"data.n": "sum"}).collect()[0][0] == numbers
