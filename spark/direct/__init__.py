"""Reads topics directly from objects: `spark.read.format("anabranch")`, after `register(spark)`."""

from pyspark.sql import SparkSession

from anabranch.spark.connect import is_connect
from anabranch.spark.direct.source import NAME, AnabranchSource

__all__ = ["NAME", "register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PARALLELISM_MAX = 10_000
"""Upper limit for the parallelism that a Spark Connect server reports."""


def register(spark: SparkSession) -> None:
    """Register the format with a session, and enable filter pushdown, which is off by default.

    In a session of Spark Connect this runs a small job, to find out how many tasks can run at once.
    """
    spark.conf.set(PUSHDOWN, "true")
    parallelism = parallelism_of(spark)
    # A class made here is pickled by value, and with it the number of tasks that can run at once.
    made = type("AnabranchSource", (AnabranchSource,), {"default_parallelism": parallelism, "__module__": "__main__"})
    spark.dataSource.register(made)


def parallelism_of(spark: SparkSession) -> int:
    """Return the number of tasks that can run at once, which is that of a range's partitions."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    partitions = spark.range(PARALLELISM_MAX).selectExpr("spark_partition_id() AS number")
    (row,) = partitions.selectExpr("max(number) + 1 AS parallelism").collect()
    return int(row["parallelism"])
