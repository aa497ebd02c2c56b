"""Tables of both formats by themselves, without a stream."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.pipeline.tables import open_tables
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
