"""The stream of records of a pipeline, and the columns that a table gets of them."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.changes import DELETED, check_key, without_envelopes
from anabranch.spark.pipeline.decode import Decoding, RecordDecoding
from anabranch.spark.pipeline.layout import IDENTITY
from anabranch.spark.pipeline.sections import TableFormat, TableMode
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import source_options
from anabranch.spark.pipeline.watermark import duration_us

DECODED_KEY = "decoded_key"
RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
PERIOD_FORMATS: Mapping[str, str] = {"hour": "yyyy-MM-dd-HH", "day": "yyyy-MM-dd", "month": "yyyy-MM", "year": "yyyy"}


def read_stream(spark: SparkSession, pipeline: PipelineSettings) -> DataFrame:
    """Return the stream of records, undecoded."""
    source = pipeline.source
    name: str = source.kind
    if source.kind == "direct":
        from anabranch.spark.direct import NAME, register

        register(spark)
        name = NAME
    # Both take the same options. The direct source ignores those of a client.
    records = spark.readStream.format(name).options(**source_options(source)).load()
    if source.topic_pattern and (dead := pipeline.dead_letters.topic) is not None:
        # Or each dead letter would make another.
        records = records.filter(f.col("topic") != dead)
    return records


def decoded(records: DataFrame, decoding: RecordDecoding, mode: TableMode) -> DataFrame:
    """Add what is decoded to the record's columns: `data`, `decoded_key`, `error` and `deleted`.

    The first two only if there is something to decode. Raises SettingError for values that the mode cannot use.
    """
    deleted = f.col("value").isNull()
    records = records.withColumns({"error": f.lit(None).cast("string"), DELETED: deleted})
    records = _with_decoded(records, decoding.value, "value", "data", "")
    records = _with_decoded(records, decoding.key, "key", DECODED_KEY, "key: ")
    if mode is TableMode.CHANGELOG:
        assert decoding.value is not None, "the settings demand a schema"
        records = without_envelopes(records, decoding.value)
    return check_key(records, decoding.key) if mode.is_keyed else records


def _with_decoded(records: DataFrame, decoding: Decoding | None, source: str, target: str, prefix: str) -> DataFrame:
    """Decode one column into another. Its error counts unless there is one already."""
    if decoding is None:
        return records
    error = f.coalesce("error", f.concat(f.lit(prefix), f.col("_decoded.error")))
    records = records.withColumn("_decoded", decoding.column(f.col(source)))
    return records.withColumns({target: f.col("_decoded.data"), "error": error}).drop("_decoded")


def event_time(pipeline: PipelineSettings) -> Column:
    """Return the event's time: the file's expression, or the record's timestamp where that is null or not set."""
    expression = pipeline.table.event_time
    record_time = f.col("timestamp")
    return record_time if expression is None else f.coalesce(f.expr(expression).cast("timestamp"), record_time)


def check_event_time(records: DataFrame, pipeline: PipelineSettings) -> DataFrame:
    """Add an error to decoded records whose event time can't be read, or lies too far beyond the record's own.

    A time in the far future would make all later records late. Records that delete a row have no event time.
    """
    expression = pipeline.table.event_time
    if expression is None:
        return records
    time = f.expr(expression).cast("timestamp")
    error = f.col("error")
    if pipeline.decode.strict:
        unread = f.concat(f.lit("event_time: no time in this record by "), f.lit(expression))
        error = f.when(error.isNull() & ~f.col(DELETED) & time.isNull(), unread).otherwise(error)
    if pipeline.watermark is not None:
        ahead_us = f.unix_micros(time) - f.unix_micros(f.col("timestamp"))
        seconds = (ahead_us / 1_000_000).cast("decimal(20,1)").cast("string")
        ahead = f.concat(
            f.lit("event_time: "), time.cast("string"), f.lit(" is "), seconds, f.lit(" s after the record's time")
        )
        too_far = ahead_us > duration_us(pipeline.watermark.ahead_max)
        error = f.when(f.col("error").isNull() & too_far, ahead).otherwise(error)
    return records.withColumn("error", error)


def table_columns(pipeline: PipelineSettings) -> list[Column]:
    """Return the columns of the table, from decoded records."""
    undecoded = pipeline.decode.format == "none"
    names = [name for name in RECORD_COLUMNS if name != "value" or undecoded or pipeline.table.keep_value]
    key = "key" if pipeline.key.format == "none" else DECODED_KEY
    columns = [f.col(key).alias("key") if name == "key" else f.col(name) for name in names]
    if not undecoded:
        columns.append(f.col("data"))
    if pipeline.table.event_time is not None:
        columns.append(event_time(pipeline).alias("event_time"))
    if pipeline.table.format is not TableFormat.ICEBERG:
        periods = [each for each in pipeline.layout.partitions if each.transform != IDENTITY]
        time = event_time(pipeline)
        columns += [f.date_format(time, PERIOD_FORMATS[each.transform]).alias(each.folder_column) for each in periods]
    return columns


def dead_letter_columns(decoding: RecordDecoding, batch_id: Column) -> list[Column]:
    """Return the columns of the dead-letter table, from records with an error."""
    error = f.col("error")
    if decoding.value is not None and decoding.value.reason is not None:
        error = decoding.value.reason(f.col("value"), error).alias("error")
    return [*(f.col(name) for name in RECORD_COLUMNS), error, batch_id.cast("long").alias("batch_id")]
