"""Reads topics straight from objects: `spark.read.format("anabranch")`, once `register(spark)` was called."""

from pyspark.sql import SparkSession

from spark.direct.source import NAME, AnabranchSource

__all__ = ["NAME", "register"]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format known to a session, and have it push filters down (Spark's default is not to)."""
    spark.conf.set(PUSHDOWN, "true")
    parallelism = spark.sparkContext.defaultParallelism
    # A class of its own: it travels by value, and so does how many tasks can run at once.
    made = type("AnabranchSource", (AnabranchSource,), {"default_parallelism": parallelism, "__module__": "__main__"})
    spark.dataSource.register(made)
