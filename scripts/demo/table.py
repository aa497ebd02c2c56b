"""The topic as a table: one query of it in SQL, by DuckDB and by Spark."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from scripts.demo.clients import DemoError
from scripts.demo.flights import TEXTS, Tally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS: Final = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)
SCHEMA: Final = {
    "type": "object",
    "properties": {name: {"type": ["string" if name in TEXTS else "integer", "null"]} for name in COLUMNS},
}
"""JSON Schema of a flight. Cancelled flights have no `dep_delay`."""
QUERY: Final = """
SELECT
    carrier, hour, count(*) AS flights, count(*) - count(dep_delay) AS cancelled, sum(dep_delay) AS delay_minutes,
    sum(distance) AS distance, sum({milliseconds}) AS timestamps_ms,
    count(DISTINCT _kafka.partition * 10000000000 + _kafka.offset) AS places
FROM {table} GROUP BY carrier, hour ORDER BY carrier, hour
"""
"""Departures by carrier and scheduled hour. Only what SQL has no standard for differs between the engines."""
SPARK_SETTINGS: Final = {"spark.sql.shuffle.partitions": "4", "spark.driver.memory": "1g"}
CATALOG: Final = "spark.sql.catalog.anabranch"


class Departures(NamedTuple):
    """Departures of one carrier in one hour of the day, as a row of the query has them."""

    carrier: str
    hour: int
    flights: int
    cancelled: int
    delay_minutes: int | None
    distance: int
    timestamps_ms: int
    places: int
    """Number of different partitions and offsets."""

    @property
    def delay_mean(self) -> float | None:
        """Mean delay in minutes of those that were not cancelled."""
        departed = self.flights - self.cancelled
        return self.delay_minutes / departed if departed and self.delay_minutes is not None else None


def tally_of(rows: Sequence[Departures]) -> Tally:
    """Return what the rows add up to."""
    tally = Tally()
    for row in rows:
        tally.rows += row.flights
        tally.distance += row.distance
        tally.delay_minutes += row.delay_minutes or 0
        tally.cancelled += row.cancelled
        tally.timestamps_ms += row.timestamps_ms
        tally.by_carrier += Counter({row.carrier: row.flights})
    return tally


def anabranch(*arguments: str) -> str:
    """Run a command of `anabranch`, as a user would, and return its output. Raises DemoError."""
    done = subprocess.run([sys.executable, "-m", "anabranch", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise DemoError(f"anabranch {' '.join(arguments[:3])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def ask_duckdb(admin: str, table: str) -> list[Departures]:
    """Query the table with the command that reads its files by DuckDB. Raises DemoError."""
    sql = QUERY.format(table=table, milliseconds="epoch_ms(_kafka.timestamp)")
    rows = json.loads(anabranch("table", "query", table, sql, "--output", "json", "--admin", admin))
    return [Departures(**row) for row in rows]


def start_session(admin: str) -> "SparkSession":
    """Start Spark with the catalog of the node. Raises the errors of a missing Java or Spark."""
    from anabranch.spark.session import build_session

    catalog = {
        CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        f"{CATALOG}.type": "rest",
        f"{CATALOG}.uri": f"http://{admin}/iceberg",
    }
    return build_session("anabranch demo", settings={**SPARK_SETTINGS, **catalog}, table_formats=["iceberg"])


def ask_spark(spark: "SparkSession", table: str) -> list[Departures]:
    """Query the table by Iceberg's REST catalog, which the node serves."""
    sql = QUERY.format(table=f"anabranch.default.{table}", milliseconds="unix_millis(_kafka.timestamp)")
    return [Departures(**row.asDict()) for row in spark.sql(sql).collect()]
