"""Layout of a table in a pipeline's file: notation, and what is refused with its line."""

from pathlib import Path

import pytest

from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.layout import (
    PartitionColumn,
    SortColumn,
    TableLayout,
    format_columns,
    parse_partition_column,
    parse_sort_column,
)
from anabranch.spark.pipeline.toml_file import parse_pipeline

FILE = Path("/pipes/flights.toml")
TEXT = """\
checkpoint = "checkpoint"
source.topics = ["flights"]
[decode]
format = "json"
schema_file = "flights.ddl"
[table]
"""
PLACES = {
    "iceberg": 'name = "lake.db.flights"\n',
    "delta": 'format = "delta"\nlocation = "table"\n',
    "parquet": 'format = "parquet"\nlocation = "table"\n',
}


def layout_of(settings: str, table_format: str = "iceberg") -> TableLayout:
    return parse_pipeline(TEXT + PLACES[table_format] + settings, FILE).layout


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("topic", PartitionColumn("topic")),
        ("data.place.city", PartitionColumn("data.place.city")),
        ("bucket(16, key)", PartitionColumn("key", "bucket", 16)),
        (" truncate ( 8 , data.x ) ", PartitionColumn("data.x", "truncate", 8)),
        ("year(data.at)", PartitionColumn("data.at", "year")),
        ("hour(event_time)", PartitionColumn("event_time", "hour")),
    ],
)
def test_columns_to_partition_by(text: str, column: PartitionColumn) -> None:
    assert parse_partition_column(text) == column
    assert parse_partition_column(str(column)) == column
    assert PartitionColumn.of_iceberg(*in_iceberg(column)) == column


def in_iceberg(column: PartitionColumn) -> tuple[str, str]:
    width = "" if column.width is None else f"[{column.width}]"
    return f"{column.transform}{width}", column.column


@pytest.mark.parametrize(
    ("text", "column", "whole"),
    [
        ("key", SortColumn("key"), "key asc nulls first"),
        ("data.n DESC", SortColumn("data.n", descending=True, nulls_first=False), "data.n desc nulls last"),
        ("key nulls last", SortColumn("key", nulls_first=False), "key asc nulls last"),
        ("key desc  nulls first", SortColumn("key", descending=True), "key desc nulls first"),
    ],
)
def test_columns_to_sort_by(text: str, column: SortColumn, whole: str) -> None:
    assert parse_sort_column(text) == column
    assert str(column) == whole
    assert parse_sort_column(whole) == column


def test_the_layout_of_a_file() -> None:
    assert layout_of("") == TableLayout((PartitionColumn("timestamp", "day"),)), "nothing is named"
    assert layout_of("partition_by = 'none'") == TableLayout(partitions_named=True)
    by_time = layout_of("partition_by = 'month'\nevent_time = 'data.at'")
    assert format_columns(by_time.partitions) == "month(event_time)"
    named = layout_of("partition_by = ['topic', 'day(timestamp)']\nsort_by = ['key']\nproperties = {a = 1, b = true}")
    assert format_columns(named.partitions) == "topic, day(timestamp)"
    assert format_columns(named.order) == "key asc nulls first"
    assert named.properties == {"a": "1", "b": "true"}
    assert (named.partitions_named, named.order_named) == (True, True)
    assert format_columns(layout_of("partition_by = 'day'", "delta").partitions) == "day(timestamp)"
    assert format_columns(layout_of("partition_by = 'day'", "parquet").partitions) == "topic, day(timestamp)"
    assert format_columns(layout_of("partition_by = ['partition']", "parquet").partitions) == "partition"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("partition_by = 'topic'", ":8: table.partition_by = 'topic': expected none, hour, day or month, or a list"),
        ("partition_by = []", ":8: table.partition_by = []: expected none, hour, day or month, or a list"),
        ("partition_by = [7]", ":8: table.partition_by = [7]: expected none"),
        ("partition_by = ['topic', 'topic']", ": a column is named twice"),
        ("partition_by = ['bucket(key)']", ": 'bucket(key)': expected bucket(N, key) with a number from 1 to 2147"),
        ("partition_by = ['bucket(0, key)']", ": 'bucket(0, key)': expected bucket(N, key) with a number from 1"),
        ("partition_by = ['truncate(99999999999, key)']", ": expected truncate(N, key) with a number from 1 to 21"),
        ("partition_by = ['day(2, timestamp)']", ": 'day(2, timestamp)': expected day(timestamp)"),
        ("partition_by = ['week(timestamp)']", ": 'week(timestamp)': the transforms are year, month, day, hour, buck"),
        ("partition_by = ['bucket(16, key']", ": 'bucket(16, key' is neither a column nor a transform such as"),
        ("partition_by = ['data..x']", ": 'data..x' is neither a column nor a transform such as bucket(16, key)"),
        ("partition_by = ['day']", ":8: table.partition_by: there is no column day; the table has topic, partition, "),
        ("partition_by = ['day']", "; write day(COLUMN)"),
        ("partition_by = ['day(event_time)']", ": there is no column event_time, since table.event_time is not set"),
        ("partition_by = ['value']", "there is no column value; the table has topic, partition, offset, timestamp"),
        ("sort_by = 'key'", ":8: table.sort_by = 'key': expected a list such as ['data.name', 'timestamp desc']"),
        ("sort_by = ['key up']", ":8: table.sort_by = ['key up']: 'key up' is not a column, such as 'data.name' or"),
        ("sort_by = ['key', 'key desc']", ":8: table.sort_by = ['key', 'key desc']: a column is named twice"),
        ("sort_by = ['what.ever']", ":8: table.sort_by: there is no column what.ever; the table has topic"),
        (
            "target_file_bytes = 5_000_000\n[table.properties]\n'write.wap.enabled' = false",
            ":10: table.properties.write.wap.enabled: the pipeline sets it itself",
        ),
        ("properties = {'anabranch.progress.x' = 7}", ":8: table.properties.anabranch.progress.x: the pipeline sets"),
        ("properties = {'write.target-file-size-bytes' = 1}", ": set table.target_file_bytes instead"),
        ("properties = {'current-schema' = '{}'}", ":8: table.properties.current-schema: Iceberg computes it"),
        ("options = {'write.format.default' = 'orc'}", ":8: table.options.write.format.default: a property of the ta"),
        ("options = {Branch = 'b'}", ":8: table.options.Branch: the pipeline sets it itself"),
        ("options = {mergeSchema = true}", ": table.options.mergeSchema: the pipeline adds new columns itself"),
    ],
)
def test_what_is_refused_with_its_line(settings: str, words: str) -> None:
    assert words in refused(settings, "iceberg")


@pytest.mark.parametrize("table_format", ["delta", "parquet"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("partition_by = ['bucket(16, key)']", "hour(timestamp) only, and not by bucket(16, key); format iceberg"),
        ("partition_by = ['data.x']", "partitioned by topic, partition, year(timestamp), month(timestamp), day(times"),
        ("partition_by = ['day(timestamp)']\nevent_time = 'data.at'", "hour(event_time) only, and not by day(timest"),
        ("sort_by = ['key']", ":9: table.sort_by: only tables of format iceberg are sorted; "),
        ("sort_by = []", ":9: table.sort_by: only tables of format iceberg are sorted; "),
    ],
)
def test_what_only_iceberg_has(table_format: str, settings: str, words: str) -> None:
    assert words in refused(settings, table_format)


@pytest.mark.parametrize(
    ("table_format", "settings", "words"),
    [
        ("parquet", "properties = {a = 'b'}", ":9: table.properties.a: has no effect: a table of format parquet has"),
        ("parquet", "options = {path = 'b'}", ":9: table.options.path: the pipeline sets it itself"),
        ("delta", "properties = {'delta.setTransactionRetentionDuration' = 'x'}", ": Delta would forget which micro-"),
        ("delta", "options = {'delta.appendOnly' = true}", ": a property of the table: put it into table.properties"),
        ("delta", "options = {txnVersion = 7}", ":9: table.options.txnVersion: the pipeline sets it itself"),
    ],
)
def test_what_other_formats_refuse(table_format: str, settings: str, words: str) -> None:
    assert words in refused(settings, table_format)


@pytest.mark.parametrize(
    ("table_format", "settings"),
    [
        ("iceberg", "options = {fanout-enabled = true, 'snapshot-property.team' = 'air'}"),
        ("iceberg", "properties = {'write.distribution-mode' = 'none', format-version = 3}"),
        ("delta", "options = {maxRecordsPerFile = 9}\nproperties = {'delta.logRetentionDuration' = 'interval 1 day'}"),
        ("parquet", "options = {compression = 'zstd'}"),
    ],
)
def test_what_is_accepted(table_format: str, settings: str) -> None:
    layout_of(settings, table_format)


def refused(settings: str, table_format: str) -> str:
    with pytest.raises(PipelineError) as caught:
        layout_of(settings, table_format)
    text = str(caught.value)
    assert text.startswith(str(FILE))
    assert text.isprintable(), "one line"
    return text
