"""Reads topics directly from objects: `spark.read.format("anabranch")`, after `register(spark)`."""

from pyspark.sql import SparkSession

from spark.direct.source import NAME, AnabranchSource

__all__ = ["NAME", "register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register the format with a session, and enable filter pushdown, which is off by default."""
    spark.conf.set(PUSHDOWN, "true")
    parallelism = spark.sparkContext.defaultParallelism
    # A class made here is pickled by value, and with it the number of tasks that can run at once.
    made = type("AnabranchSource", (AnabranchSource,), {"default_parallelism": parallelism, "__module__": "__main__"})
    spark.dataSource.register(made)
