"""The stream of records of a pipeline, and the columns that a table gets of them."""

from collections.abc import Mapping

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.changes import (
    DELETED,
    DELETED_AT,
    IS_CURRENT,
    IS_DELETED,
    VALID_FROM,
    VALID_TO,
    check_key,
    without_envelopes,
)
from anabranch.spark.pipeline.columns import filtered, shaped, top_level_columns
from anabranch.spark.pipeline.decode import Decoding, RecordDecoding
from anabranch.spark.pipeline.errors import SettingError, reason_of
from anabranch.spark.pipeline.layout import IDENTITY
from anabranch.spark.pipeline.sections import KeyedRows, TableFormat, TableMode
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import source_options
from anabranch.spark.pipeline.watermark import duration_us

DECODED_KEY = "decoded_key"
EVENT_TIME = "event_time"
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


def rows_of(records: DataFrame, decoding: RecordDecoding, pipeline: PipelineSettings) -> DataFrame:
    """Return records decoded, checked and shaped as the file says. `table_columns` has the columns of the table.

    An error is what a dead letter of the record says, and an empty one leaves the record out. Raises SettingError for
    values that the mode cannot use, and for names and expressions that do not fit them.
    """
    records = decoded(records, decoding, pipeline.table.mode)
    columns = pipeline.columns
    if columns.filter is not None:
        key = "key" if decoding.key is None else DECODED_KEY
        records = filtered(records, columns.filter, key, is_keyed=pipeline.table.mode.is_keyed)
    return shaped(_with_event_time(records, pipeline), columns)


def decoded(records: DataFrame, decoding: RecordDecoding, mode: TableMode) -> DataFrame:
    """Add what is decoded to the record's columns: `data`, `decoded_key`, `error` and `DELETED`.

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


def _with_event_time(records: DataFrame, pipeline: PipelineSettings) -> DataFrame:
    """Add the event's time, if the file has an expression: the record's timestamp where that is null.

    A record whose event time can't be read, or lies too far beyond the record's own, gets an error: a time in the far
    future would make all later records late. Records that delete a row have no event time. Raises SettingError.
    """
    expression = pipeline.table.event_time
    if expression is None:
        return records
    try:
        records = records.withColumn(EVENT_TIME, f.expr(expression).cast("timestamp"))
    except (AnalysisException, ParseException) as failure:
        raise SettingError("table.event_time", reason_of(failure)) from failure
    time = f.col(EVENT_TIME)
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
    return records.withColumns({"error": error, EVENT_TIME: f.coalesce(time, f.col("timestamp"))})


def table_columns(records: DataFrame, pipeline: PipelineSettings) -> list[Column]:
    """Return the columns of the table, from `rows_of`. Raises UnusableSchema for names that two of them would have."""
    undecoded = pipeline.decode.format == "none"
    names = [name for name in RECORD_COLUMNS if name != "value" or undecoded or pipeline.table.keep_value]
    key = "key" if pipeline.key.format == "none" else DECODED_KEY
    columns = [f.col(key).alias("key") if name == "key" else f.col(name) for name in names]
    data_at = len(columns)
    marks = {name: column.alias(name) for name, column in _marks(pipeline.table.keyed_rows).items()}
    names += marks
    columns += marks.values()
    if pipeline.table.event_time is not None:
        names.append(EVENT_TIME)
        columns.append(f.col(EVENT_TIME))
    if pipeline.table.format is not TableFormat.ICEBERG:
        for each in pipeline.layout.partitions:
            if each.transform != IDENTITY:
                names.append(each.folder_column)
                period = f.date_format(pipeline.table.time_column, PERIOD_FORMATS[each.transform])
                columns.append(period.alias(each.folder_column))
    if not undecoded:
        is_top_level = pipeline.columns.top_level
        data = top_level_columns(records.schema["data"].dataType, names) if is_top_level else [f.col("data")]
        columns[data_at:data_at] = data
    return columns


def _marks(keyed: KeyedRows | None) -> dict[str, Column]:
    """Return the columns that say which rows of a key are deleted, or were the newest when."""
    deleted, time = f.col(DELETED), f.col("timestamp")
    if keyed is KeyedRows.HISTORY:
        # A merge knows the versions around each.
        never = f.lit(None).cast("timestamp")
        return {IS_DELETED: deleted, VALID_FROM: time, VALID_TO: never, IS_CURRENT: f.lit(True)}
    return {IS_DELETED: deleted, DELETED_AT: f.when(deleted, time)} if keyed is KeyedRows.MARKED else {}


def dead_letter_columns(decoding: RecordDecoding, batch_id: Column) -> list[Column]:
    """Return the columns of the dead-letter table, from records with an error."""
    error = f.col("error")
    if decoding.value is not None and decoding.value.reason is not None:
        error = decoding.value.reason(f.col("value"), error).alias("error")
    return [*(f.col(name) for name in RECORD_COLUMNS), error, batch_id.cast("long").alias("batch_id")]
