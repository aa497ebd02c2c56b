"""Tables of both formats by themselves, without a stream."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from anabranch.spark.pipeline.delta import LOG_TASKS
from anabranch.spark.pipeline.names import quoted
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import make_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_type_that_changes_is_refused_and_changes_nothing(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "types", table_format, table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    table.append(spark.createDataFrame([(0,)], "n INT"), "q", 0)
    wider = spark.createDataFrame([(1,)], "n BIGINT")
    if table_format == "iceberg":
        table.append(wider, "q", 1)
    else:
        with pytest.raises(PySparkException, match="DELTA_FAILED_TO_MERGE_FIELDS"):
            table.append(wider, "q", 1)
    known = table.committed("q")
    for wrong in ("STRING", "STRUCT<a: INT>"):
        with pytest.raises(PySparkException):
            table.append(spark.createDataFrame([], f"n {wrong}"), "q", 2)
    assert table.committed("q") == known
    assert [row["n"] for row in table.read().orderBy("n").collect()] == list(range(known + 1))


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_frozen_table_has_no_later_rows(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "frozen", table_format, table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    table.append(spark.createDataFrame([(0,)], "n INT"), "q", 0)
    before = table.frozen()
    table.append(spark.createDataFrame([(1,)], "n INT"), "q", 1)
    assert (before.count(), table.frozen().count(), table.read().count()) == (1, 2, 2)


def test_an_earlier_table_can_be_updated_after_its_next_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "earlier", table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    table.append(spark.createDataFrame([(0, "x")], "n INT, name STRING"), "q", 0)
    spark.sql(f"ALTER TABLE {quoted(table.place)} SET TBLPROPERTIES ('write.spark.accept-any-schema' = 'true')")
    update = f"UPDATE {quoted(table.place)} SET name = 'y' WHERE n = 0"
    with pytest.raises(PySparkException):
        spark.sql(update)
    # Columns in another order, one less and one more.
    table.append(spark.createDataFrame([(True, 1)], "more BOOLEAN, n INT"), "q", 1)
    spark.sql(update)
    assert [tuple(row) for row in table.read().orderBy("n").collect()] == [(0, "y", None), (1, None, True)]


def test_deltas_log_is_read_in_few_tasks_unless_the_session_says_how_many(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "tasks", "delta", table={"partition_by": "none"})
    for given, expected in (("7", "7"), (None, str(2 * spark.sparkContext.defaultParallelism))):
        if given is None:
            session.conf.unset(LOG_TASKS)
        else:
            session.conf.set(LOG_TASKS, given)
        open_tables(session, pipeline)
        assert session.conf.get(LOG_TASKS) == expected
