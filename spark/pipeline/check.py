"""Checks of a pipeline that need Spark: schema, SQL, and access to the table. They write nothing."""

from collections.abc import Sequence
from contextlib import closing

from pyspark.sql import SparkSession

from anabranch.spark.pipeline.decode import RecordDecoder
from anabranch.spark.pipeline.errors import SettingError, UnusableSchema, reason_of
from anabranch.spark.pipeline.files import HadoopFolder
from anabranch.spark.pipeline.parquet import parquet_tables
from anabranch.spark.pipeline.sections import TableFormat, is_in_s3
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import rows_of, table_columns
from anabranch.spark.pipeline.tables import open_dead_letters, open_tables
from anabranch.spark.pipeline.topic_ids import TopicIds
from anabranch.spark.pipeline.topics import known_topics

RECORDS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""Columns of both sources."""


def check_pipeline(spark: SparkSession, pipeline: PipelineSettings, found: Sequence[str] = ()) -> list[str]:
    """Return what a start would change in the existing tables, a line for each change.

    With a table for each topic, also which one a topic has, or that it has no schema yet: of the topics that are known,
    and those that were `found`.

    Raises SettingError for a schema that cannot be read, SQL or a layout that does not fit it, or a table out of reach;
    PipelineError for a topic of dead letters that is, or a topic that was recreated.
    """
    check_places(spark, pipeline)
    lines: list[str] = []
    if pipeline.source.kind == "kafka":
        with closing(TopicIds.of(spark, pipeline)) as topic_ids:
            lines += topic_ids.changes()
    for topic in known_topics(spark, pipeline, found):
        own = pipeline.for_topic(topic)
        if topic is not None:
            lines.append(f"topic {topic}: table {own.table.place}")
        try:
            lines += _check_table(spark, own)
        except UnusableSchema as error:
            if topic is None or topic in pipeline.source.topics:
                raise
            lines.append(error.for_topic(topic))
    return lines


def _check_table(spark: SparkSession, pipeline: PipelineSettings) -> list[str]:
    decoding = RecordDecoder(pipeline).current()
    records = rows_of(spark.createDataFrame([], RECORDS), decoding, pipeline)
    columns = records.select(*table_columns(records, pipeline)).schema
    if pipeline.table.format is TableFormat.PARQUET:
        for each in parquet_tables(spark, pipeline, records, decoding):
            each.check()
        return []
    if pipeline.dead_letters.topic is not None:
        open_dead_letters(spark, pipeline).exists()
    place = "catalog" if pipeline.table.format is TableFormat.ICEBERG else "table.location"
    try:
        table, dead_letters = open_tables(spark, pipeline)
        if pipeline.has_dead_letter_table:
            dead_letters.exists()
        return [f"{table.place}: {line}" for line in table.layout_changes(columns)]
    except SettingError:
        raise
    except Exception as error:  # Iceberg's and Delta's errors have no common class
        raise SettingError(place, reason_of(error)) from error


def check_places(spark: SparkSession, pipeline: PipelineSettings) -> None:
    """Raise SettingError for a place in S3 that is out of reach. In other file systems what is missing is created."""
    for name, place in pipeline.places.items():
        if is_in_s3(place):
            try:
                HadoopFolder(spark, place).has("")
            except Exception as error:  # Java's, whose class depends on what is wrong
                raise SettingError(name, reason_of(error)) from error
