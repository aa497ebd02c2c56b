"""Contents of the table that Spark's pipeline fills in the demo of a cluster."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from scripts.demo.flights import Tally


@dataclass(frozen=True, slots=True)
class TableResult:
    """Contents of the table."""

    tally: Tally
    distinct_offsets: int
    files: int


def examine(spark: SparkSession, folder: Path) -> TableResult:
    """Count the rows of the Parquet table in `folder/table`."""
    table = spark.read.parquet(str(folder / "table"))
    carriers = table.groupBy("data.carrier").agg(
        f.count("*").alias("rows"),
        f.sum("data.distance").alias("distance"),
        f.sum("data.dep_delay").alias("delay_minutes"),
        f.count_if(f.col("data.dep_delay").isNull()).alias("cancelled"),
        f.sum(f.unix_millis("timestamp")).alias("timestamps_ms"),
    )
    tally = Tally()
    for row in carriers.collect():
        tally.rows += row["rows"]
        tally.distance += row["distance"]
        tally.delay_minutes += row["delay_minutes"]
        tally.cancelled += row["cancelled"]
        tally.timestamps_ms += row["timestamps_ms"]
        tally.by_carrier += Counter({row["carrier"]: row["rows"]})
    return TableResult(
        tally=tally,
        distinct_offsets=table.select("partition", "offset").distinct().count(),
        files=sum(file.is_file() for file in (folder / "table").rglob("*.parquet")),
    )
