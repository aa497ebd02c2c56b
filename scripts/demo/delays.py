"""Flights in Spark: their schema, and delays of departures by carrier and hour of the day."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

FLIGHT_SCHEMA = """
year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT,
arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT,
hour INT, minute INT, time_hour STRING
"""
"""JSON of one flight with the columns of the data set. Cancelled flights have no `dep_delay`."""
LATE_MINUTES = 15


def departure_delays(flights: DataFrame) -> DataFrame:
    """Return flights, cancelled flights, mean delay in minutes and share of late departures.

    There is a row for each carrier and scheduled hour.
    """
    return (
        flights.groupBy("carrier", "hour")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(f.col("dep_delay").isNull()).alias("cancelled"),
            f.sum("dep_delay").alias("delay_minutes"),
            f.avg("dep_delay").alias("delay_mean"),
            f.try_divide(f.count_if(f.col("dep_delay") > LATE_MINUTES), f.count("dep_delay")).alias("late_share"),
        )
        .orderBy("carrier", "hour")
    )
