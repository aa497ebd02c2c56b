"""Spark's part of the demo: topic to table with the project's own job, then the query of the table."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.session import build_session
from scripts.demo.delays import FLIGHT_SCHEMA, departure_delays
from scripts.demo.flights import Tally

RECORDS_PER_BATCH = 50_000
"""Limit of a micro-batch, so that there is progress to show."""
PROGRESS_EVERY_S = 1
SESSION_SETTINGS = {"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "1g"}


class DelayRow(NamedTuple):
    """Departures of one carrier in one hour of the day."""

    carrier: str
    hour: int
    flights: int
    delay_mean: float | None
    late_share: float | None


@dataclass(frozen=True, slots=True)
class TableResult:
    """Contents of the table."""

    tally: Tally
    distinct_offsets: int
    files: int
    size_bytes: int
    delays: Sequence[DelayRow]


def start_session(master: str = "local[*]") -> SparkSession:
    """Start a Spark session for the demo."""
    return build_session("anabranch demo", master=master, settings=SESSION_SETTINGS)


def ingest(spark: SparkSession, servers: str, topic: str, folder: Path, progress: Callable[[int], None]) -> None:
    """Copy the topic into a table under `folder`, and end. `progress` receives the number of records so far."""
    schema = folder / "flights.ddl"
    schema.write_text(FLIGHT_SCHEMA)
    pipeline = PipelineSettings.model_validate(
        {
            "checkpoint": str(folder / "checkpoint"),
            "source": {
                "bootstrap_servers": servers,
                "topics": [topic],
                "options": {"maxOffsetsPerTrigger": RECORDS_PER_BATCH},
            },
            "decode": {"format": "json", "schema_file": str(schema)},
            "table": {"format": "parquet", "location": str(folder / "table"), "partition_by": "month"},
        }
    )
    for query in start_pipeline(spark, pipeline).queries:
        while not query.awaitTermination(PROGRESS_EVERY_S):
            progress(sum(each["numInputRows"] for each in query.recentProgress))


def examine(spark: SparkSession, folder: Path) -> TableResult:
    """Count the table's rows and query the delays."""
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
    delays = departure_delays(table.select("data.*")).collect()
    files = [file for file in (folder / "table").rglob("*.parquet") if file.is_file()]
    return TableResult(
        tally=tally,
        distinct_offsets=table.select("partition", "offset").distinct().count(),
        files=len(files),
        size_bytes=sum(file.stat().st_size for file in files),
        delays=[
            DelayRow(row["carrier"], row["hour"], row["flights"], row["delay_mean"], row["late_share"])
            for row in delays
        ],
    )
