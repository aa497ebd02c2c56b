"""Two drivers on one checkpoint: whatever they do at the same time, each record is in the table once."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.jobs import hint_of
from anabranch.spark.pipeline.errors import AnotherDriver
from anabranch.spark.pipeline.iceberg import IcebergTable
from anabranch.spark.pipeline.run import RunningPipeline, start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import open_tables
from anabranch.spark.pipeline.toml_file import read_pipeline
from anabranch.spark.pipeline.writer import TableWriter
from tests.spark.pipeline.support import WAIT_S, every_offset_once, make_pipeline, need, numbered, offsets, run
from tests.spark.programs import program
from tests.support.events import Event, send
from tests.support.soak import LONG
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
FILE = """\
name = "{topic}"
checkpoint = "checkpoint"

[source]
bootstrap_servers = "{servers}"
topics = ["{topic}"]
offsets_per_batch_max = 90

[decode]
format = "json"
schema_file = "values.ddl"

[table]
name = "twice{topic}.db.t"
partition_by = "none"

[compaction]
batches = 0

[spark.conf]
"spark.driver.memory" = "1g"
"spark.sql.shuffle.partitions" = 2
"spark.local.dir" = "{local}"
"""


def end(running: RunningPipeline) -> BaseException | None:
    """Wait for a pipeline that fails; returns its error in Python."""
    with pytest.raises(StreamingQueryException):
        running.query.awaitTermination(WAIT_S)
    running.stop()
    assert running.batches is not None
    return running.batches.failure


@contextmanager
def held_commit(
    spark: SparkSession, pipeline: PipelineSettings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningPipeline]:
    """Hold a driver before its first commit while the body runs, in which another driver commits the micro-batch."""
    arrived, go = threading.Event(), threading.Event()
    publish = IcebergTable.publish

    def wait(table: IcebergTable, query_id: str, batch_id: int) -> None:
        arrived.set()
        assert go.wait(WAIT_S)
        publish(table, query_id, batch_id)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "publish", wait)
        first = start_pipeline(spark, pipeline)
        try:
            assert arrived.wait(WAIT_S)
            patched.setattr(IcebergTable, "publish", publish)
            yield first
        finally:
            go.set()
        failure = end(first)
    assert isinstance(failure, AnotherDriver)
    assert "micro-batch 0 was committed by another driver" in str(failure)


def test_a_driver_that_was_taken_for_dead_adds_nothing(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second takes the micro-batch as Spark would repeat it, which runs one query of a checkpoint in a process."""
    pipeline = make_pipeline(servers, tmp_path, topic, table={"partition_by": "none"})
    send(servers, topic, [*numbered(0, 150), Event(0, b"dead", timestamp_ms=1)])
    second = TableWriter.of(spark, pipeline)
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**options).load()
    with held_commit(spark, pipeline, monkeypatch) as first:
        assert second.write(records, first.query.id, 0) == 151
    table, dead_letters = open_tables(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(150)
    assert offsets(dead_letters.read()) == {(0, 50): 1}
    # Nothing is in the way of the next run.
    send(servers, topic, numbered(150, 180))
    last = run(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(180) + Counter({(0, 60): 1}) - Counter({(0, 50): 1})
    assert table.committed(last.query.id) == 1


@LONG
def test_a_driver_in_a_process_of_its_own_is_another(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("iceberg")
    (tmp_path / "values.ddl").write_text("n INT, name STRING")
    file = tmp_path / "pipeline.toml"
    values = {"servers": servers, "topic": topic.replace("-", "_"), "local": tmp_path / "local"}
    file.write_text(FILE.format(**values).replace(f'["{values["topic"]}"]', f'["{topic}"]'))
    send(servers, topic, [*numbered(0, 150), Event(0, b"dead", timestamp_ms=1)])
    pipeline = read_pipeline(file)
    with held_commit(spark, pipeline, monkeypatch):
        # The second one finds the first's micro-batch unfinished, and repeats it and everything after it.
        command = [sys.executable, "-m", "anabranch.spark", "ingest", str(file), "--master", "local[2]"]
        with program(command, tmp_path, "second", {"PYTHONPATH": str(ROOT)}) as second:
            assert second.process.wait(WAIT_S) == 0, second.log.read_text()
        assert "151 rows from this run" in second.log.read_text()
    table, dead_letters = open_tables(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(150)
    assert offsets(dead_letters.read()) == {(0, 50): 1}
    # Nothing is in the way of the next run.
    send(servers, topic, numbered(150, 180))
    last = run(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(180) + Counter({(0, 60): 1}) - Counter({(0, 50): 1})
    assert table.committed(last.query.id) == 2


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "n INT")


def test_iceberg_publishes_a_micro_batch_once_however_it_was_staged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("iceberg")
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "staged", table={"partition_by": "none"})
    first, _ = open_tables(spark, pipeline)
    second, _ = open_tables(spark, pipeline)
    assert isinstance(first, IcebergTable)
    first.append(numbers(spark, 1), "q", 0)
    with monkeypatch.context() as patched:
        # Both stage before one of them publishes; so does a driver that dies in between.
        patched.setattr(IcebergTable, "publish", lambda *_: None)
        first.append(numbers(spark, 2), "q", 1)
        second.append(numbers(spark, 2), "q", 1)
    assert first.committed("q") == 0
    # Another query's append is in between: the published append is then a copy, which must be recognized as well.
    second.append(numbers(spark, 100), "other", 7)
    second.append(numbers(spark, 2), "q", 1)
    assert (first.committed("q"), first.committed("other"), first.committed("none")) == (1, 7, -1)
    for _ in range(2):
        with pytest.raises(AnotherDriver, match="micro-batch 1 was committed by another driver"):
            first.publish("q", 1)
    first.append(numbers(spark, 3), "q", 2)
    # A rewrite that began before that append does not include it.
    first.load().newAppend().set("anabranch.query-id", "q").set("anabranch.batch-id", "1").commit()
    assert sorted(row["n"] for row in first.read().collect()) == [1, 2, 3, 100]
    # No other driver's appends are staged.
    numbers(spark, 4).writeTo(first.name).append()
    assert first.read().count() == 5


def test_iceberg_publishes_the_first_micro_batch_of_a_new_table_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("iceberg")
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "new", table={"partition_by": "none"})
    first, second = (open_tables(spark, pipeline)[0] for _ in range(2))
    assert isinstance(first, IcebergTable)
    assert isinstance(second, IcebergTable)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "publish", lambda *_: None)
        first.append(numbers(spark, 1), "q", 0)
        found = iter([False])
        patched.setattr(IcebergTable, "exists", lambda *_: next(found, True))  # it was not there a moment ago
        second.append(numbers(spark, 1), "q", 0)
        second.append(numbers(spark, 2), "other", 0)
    second.publish("q", 0)
    with pytest.raises(AnotherDriver):
        first.publish("q", 0)
    first.publish("other", 0)
    assert sorted(row["n"] for row in first.read().collect()) == [1, 2]


def test_delta_refuses_the_second_of_two_commits_of_a_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "twice", "delta", table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    table.append(numbers(spark, 1), "q", 0)
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(table.append, waiting(numbers(spark, 2), tmp_path), "q", 1)
        wait_for(tmp_path / "arrived")
        table.append(numbers(spark, 2), "q", 1)
        (tmp_path / "go").touch()
        with pytest.raises(Exception, match="ConcurrentTransactionException") as caught:
            slow.result(WAIT_S)
    assert hint_of(str(caught.value))
    table.append(numbers(spark, 2), "q", 1)
    assert sorted(row["n"] for row in table.read().collect()) == [1, 2]


def wait_for(path: Path) -> None:
    wait_until(path.exists, f"{path} exists", timeout_s=WAIT_S)


def waiting(rows: DataFrame, folder: Path) -> DataFrame:
    """The same rows; the task that produces them signals its start, and waits until it may end."""

    def wait(n: int) -> int:
        (folder / "arrived").touch()
        wait_for(folder / "go")
        return n

    return rows.select(f.udf(wait, "INT", useArrow=False)("n").alias("n"))


def test_the_file_sink_takes_the_first_of_two_commits_of_a_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one").write_text("1\n")
    rows = spark.readStream.text(str(tmp_path / "in")).selectExpr("CAST(value AS INT) AS n")

    def start(checkpoint: str, rows: DataFrame) -> StreamingQuery:
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / checkpoint))
        return writer.option("path", str(tmp_path / "table")).trigger(availableNow=True).start()

    slow = start("first", waiting(rows, tmp_path))
    try:
        wait_for(tmp_path / "arrived")
        assert start("second", rows).awaitTermination(WAIT_S)
        (tmp_path / "go").touch()
        with pytest.raises(StreamingQueryException) as caught:
            slow.awaitTermination(WAIT_S)
    finally:
        (tmp_path / "go").touch()
        slow.stop()
    assert hint_of(str(caught.value))
    assert [row["n"] for row in spark.read.parquet(str(tmp_path / "table")).collect()] == [1]
