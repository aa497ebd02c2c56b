"""A table of Parquet belongs to one checkpoint and keeps its types."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from anabranch.spark.jobs import follow, wait_for_all
from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.parquet import COLUMNS, OWNER, ColumnChangedError, ParquetTable, merged
from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.sections import PartitionPeriod
from tests.spark.pipeline.support import every_offset_once, make_pipeline, numbered, offsets, run
from tests.support.events import send
from tests.support.waiting import wait_until


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.slow
def test_another_checkpoint_and_another_type_are_refused(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    send(servers, topic, numbered(0, 30))
    pipeline = make_pipeline(servers, tmp_path, topic, "parquet", table={"partition_by": "none"})
    run(spark, pipeline)
    other = pipeline.model_copy(update={"checkpoint": str(tmp_path / "other")})
    with pytest.raises(PipelineError, match=r"table.location: .* belongs to one checkpoint"):
        start_pipeline(spark, other)
    assert not (tmp_path / "other").exists(), "nothing was started"
    # As of a version that wrote no owners: a checkpoint that has run is trusted, a new one is not.
    (tmp_path / "table" / OWNER).unlink()
    with pytest.raises(PipelineError, match=r"table.location: .* belongs to one checkpoint"):
        start_pipeline(spark, other)

    by_day = pipeline.model_copy(
        update={"table": pipeline.table.model_copy(update={"partition_by": PartitionPeriod.DAY})}
    )
    with pytest.raises(PipelineError, match="files are partitioned by topic, and would be by topic and day"):
        start_pipeline(spark, by_day)
    (tmp_path / "values.ddl").write_text("n STRING, name STRING")
    with pytest.raises(PipelineError, match=r"table.location: .* data.n is int and would become string"):
        start_pipeline(spark, pipeline)
    (tmp_path / "values.ddl").write_text("n INT, place STRING")
    send(servers, topic, numbered(30, 60))
    run(spark, pipeline)
    assert (tmp_path / "table" / OWNER).is_file()
    table = spark.read.option("mergeSchema", value=True).parquet(str(tmp_path / "table"))
    assert offsets(table) == every_offset_once(60)
    assert set(table.select("data.*").columns) == {"n", "name", "place"}
    # Columns that it has had are remembered.
    (tmp_path / "values.ddl").write_text("n INT, name DOUBLE")
    with pytest.raises(PipelineError, match=r"data.name is string and would become double"):
        start_pipeline(spark, pipeline)


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.slow
def test_a_pipeline_ends_with_the_query_of_its_dead_letters(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    trigger = {"mode": "processing-time", "interval": "1 second"}
    pipeline = make_pipeline(servers, tmp_path, topic, "parquet", trigger=trigger)
    send(servers, topic, numbered(0, 30))
    running = start_pipeline(spark, pipeline)
    try:
        letters = tmp_path / "checkpoint-dead-letters"
        wait_until((letters / "commits" / "0").exists, "dead letters of the first micro-batch")
        shutil.rmtree(letters / "offsets")
        (letters / "offsets").touch()
        send(servers, topic, numbered(30, 60))
        assert list(follow(running.queries, {}, lambda _status: None))[-1].endswith("rows from this run")
        with pytest.raises(PipelineError, match=r"the pipeline failed: .*checkpoint-dead-letters/offsets"):
            wait_for_all(running)
    finally:
        running.stop()


@pytest.mark.spark
@pytest.mark.parametrize("name", [OWNER, COLUMNS])
def test_a_file_that_a_dead_driver_left_empty_is_named(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = spark.createDataFrame([], "n INT")
    table = ParquetTable(spark, "table.location", str(tmp_path), str(tmp_path / "checkpoint"), "q", rows)
    table.check()
    (tmp_path / name).touch()
    with pytest.raises(PipelineError, match=f"{name} is incomplete.* remove it"):
        table.check()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("a INT", "a INT, b STRING", "a INT, b STRING"),
        ("a INT, b STRING", "b STRING", "a INT, b STRING"),
        ("s STRUCT<a: INT>", "s STRUCT<b: INT>", "s STRUCT<a: INT, b: INT>"),
        ("s ARRAY<STRUCT<a: INT>>", "s ARRAY<STRUCT<b: INT>>", "s ARRAY<STRUCT<a: INT, b: INT>>"),
        ("m MAP<STRING, INT>", "m MAP<STRING, INT>", "m MAP<STRING, INT>"),
        ("a INT", "a BIGINT", "a is int and would become bigint"),
        ("s STRUCT<a: ARRAY<INT>>", "s STRUCT<a: INT>", "s.a is array<int> and would become int"),
        ("m MAP<STRING, INT>", "m MAP<STRING, DATE>", "m is int and would become date"),
    ],
)
def test_columns_of_two_versions(spark: SparkSession, old: str, new: str, wanted: str) -> None:
    def struct(text: str) -> StructType:
        return spark.createDataFrame([], text).schema

    if " is " in wanted:
        with pytest.raises(ColumnChangedError, match=wanted):
            merged(struct(old), struct(new), ())
    else:
        assert merged(struct(old), struct(new), ()) == struct(wanted)
