"""Checks of a pipeline that need Spark: schema, SQL, and access to the table. They write nothing."""

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark.pipeline.decode import DecoderFactory
from spark.pipeline.errors import SettingError, reason_of
from spark.pipeline.parquet import parquet_tables
from spark.pipeline.settings import PipelineSettings, TableFormat
from spark.pipeline.source import check_event_time, decoded, table_columns
from spark.pipeline.tables import open_tables

RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""Columns of both sources."""


def check_pipeline(spark: SparkSession, pipeline: PipelineSettings) -> None:
    """Raise SettingError for a schema that cannot be read, SQL that does not fit it, or a table out of reach."""
    decoding = DecoderFactory(pipeline).current()
    records = decoded(spark.createDataFrame([], RECORDS), decoding)
    try:
        records = check_event_time(records, pipeline)
        records.select(*table_columns(pipeline)).schema  # noqa: B018 - Spark analyses it
    except AnalysisException as error:
        raise SettingError("table.event_time", reason_of(error)) from error
    if pipeline.table.format is TableFormat.PARQUET:
        for table in parquet_tables(spark, pipeline, records, decoding):
            table.check()
        return
    place = "catalog" if pipeline.table.format is TableFormat.ICEBERG else "table.location"
    try:
        for each in open_tables(spark, pipeline):
            each.exists()
    except Exception as error:  # Iceberg's and Delta's errors have no common class
        raise SettingError(place, reason_of(error)) from error
