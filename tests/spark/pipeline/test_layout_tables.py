"""Layout of real tables: specs, orders and properties as the formats report them, what is pruned, and what changes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.pipeline.check import check_pipeline
from anabranch.spark.pipeline.delta import DeltaTable
from anabranch.spark.pipeline.errors import AnotherDriver, SettingError
from anabranch.spark.pipeline.iceberg import IcebergTable
from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import (
    DAY_MS,
    JANUARY_MS,
    every_offset_once,
    forget_last_commit,
    make_pipeline,
    need,
    numbered,
    offsets,
    run,
)
from tests.support.events import send

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def make(folder: Path, name: str, table_format: str, **table: object) -> PipelineSettings:
    return make_pipeline("127.0.0.1:1", folder, name, table_format, table=table)


def iceberg(spark: SparkSession, pipeline: PipelineSettings) -> IcebergTable:
    need("iceberg")
    table, _ = open_tables(spark, pipeline)
    assert isinstance(table, IcebergTable)
    return table


def records(spark: SparkSession, numbers: Sequence[int]) -> DataFrame:
    """Two topics, a key for each number, a day for each four, and a name for each two."""
    return spark.createDataFrame([(n,) for n in numbers], "n INT").selectExpr(
        "IF(n % 2 = 0, 'even', 'odd') AS topic",
        "CAST('key' || n AS BINARY) AS key",
        "TIMESTAMP '2013-01-01 12:00:00' + MAKE_INTERVAL(0, 0, 0, n DIV 4) AS timestamp",
        "NAMED_STRUCT('n', n, 'name', CHAR(97 + n DIV 2) || 'x') AS data",
    )


def spec_of(table: IcebergTable) -> list[tuple[str, str]]:
    loaded = table.load()
    return [
        (field.transform().toString(), loaded.schema().findColumnName(field.sourceId()))
        for field in loaded.spec().fields()
    ]


def planned(table: IcebergTable, expression: Any = None) -> set[str]:
    """Files that a scan would read."""
    scan = table.load().newScan()
    scan = scan if expression is None else scan.filter(expression)
    tasks, found = scan.planFiles().iterator(), set()
    while tasks.hasNext():
        found.add(str(tasks.next().file().location()))
    return found


def files_of(table: IcebergTable, condition: str) -> set[str]:
    """Files that have such rows."""
    return {row[0] for row in table.read().filter(condition).selectExpr("_file").distinct().collect()}


def test_iceberg_partitions_by_what_the_file_names_and_reads_only_those(spark: SparkSession, tmp_path: Path) -> None:
    partition_by = ["topic", "bucket(4, key)", "truncate(1, data.name)", "day(timestamp)"]
    table = iceberg(spark, make(tmp_path, "many", "iceberg", partition_by=partition_by))
    table.append(records(spark, range(8)), "q", 0)
    assert spec_of(table) == [
        ("identity", "topic"), ("bucket[4]", "key"), ("truncate[1]", "data.name"), ("day", "timestamp")
    ]  # fmt: skip
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Iceberg's scans have no Python interface
    expressions, buffers = jvm.org.apache.iceberg.expressions.Expressions, jvm.java.nio.ByteBuffer
    every = planned(table)
    day = (JANUARY_MS // DAY_MS + 1) * DAY_MS * 1000
    for expression, condition in (
        (expressions.equal("topic", "even"), "topic = 'even'"),
        (expressions.equal("key", buffers.wrap(b"key5")), "key = X'6B657935'"),
        (expressions.startsWith("data.name", "b"), "data.name LIKE 'b%'"),
        (expressions.greaterThanOrEqual("timestamp", day), "timestamp >= '2013-01-02'"),
    ):
        found = planned(table, expression)
        assert files_of(table, condition) <= found < every, condition
    assert sorted(row["data"]["n"] for row in table.read().collect()) == list(range(8))


def test_files_are_sorted_when_written_and_when_rewritten(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = make_pipeline(
        "127.0.0.1:1", tmp_path, "sorted", compaction={"files_min": 2},
        table={"partition_by": ["topic"], "sort_by": ["data.name desc", "key nulls last"]},
    )  # fmt: skip
    table = iceberg(spark, pipeline)
    table.append(records(spark, [3, 9, 1, 7, 0, 12]), "q", 0)
    table.append(records(spark, [5, 11, 2, 13, 10, 4]), "q", 1)

    def names(folder: str = "") -> list[list[str]]:
        return [
            [row["name"] for row in pq.ParquetFile(path.removeprefix("file:")).read().to_pydict()["data"]]
            for path in planned(table)
            if folder in path
        ]

    assert len(names()) == 4, "a file for each topic and micro-batch"
    assert all(each == sorted(each, reverse=True) for each in names())
    # So that a rewrite of the two files of a topic makes two again, which then share no range of names.
    sizes = [row[0] for row in spark.table(f"{table.name}.files").select("file_size_in_bytes").collect()]
    table.target_file_bytes = max(sizes) * 7 // 5
    assert table.compact() == 4
    assert len(names()) == 4
    assert all(each == sorted(each, reverse=True) for each in names())
    for topic in ("even", "odd"):
        upper, lower = sorted(names(f"topic={topic}"), reverse=True)
        assert upper[-1] > lower[0]
    assert {row[0] for row in spark.table(f"{table.name}.files").select("sort_order_id").collect()} == {1}
    order = table.load().sortOrder()
    assert [field.toString() for field in order.fields()] == [
        f"identity({order.schema().findField('data.name').fieldId()}) DESC NULLS LAST",
        f"identity({order.schema().findField('key').fieldId()}) ASC NULLS LAST",
    ]


@pytest.mark.interop
def test_an_iceberg_table_gets_the_layout_of_a_changed_file(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    need("iceberg")

    def pipeline(**table: object) -> PipelineSettings:
        return make_pipeline(
            servers, tmp_path, topic, table=table, source={"offsets_per_batch_max": 30}, compaction={"files_min": 2}
        )

    old = pipeline(partition_by="day")
    send(servers, topic, numbered(0, 60))
    run(spark, old)
    table = iceberg(spark, old)
    # A field that the schema did not have, a transform less and two more, and an order.
    (tmp_path / "values.ddl").write_text("n INT, name STRING, city STRING")
    new = pipeline(partition_by=["bucket(2, key)", "data.city"], sort_by=["data.n desc"])
    said = [
        "partition_by changes from day(timestamp) to bucket(2, key), data.city; files that exist stay as they are",
        "sort_by changes from none to data.n desc nulls last; files that exist stay as they are",
    ]
    assert check_pipeline(spark, new) == [f"{table.name}: {line}" for line in said]
    assert spec_of(table) == [("day", "timestamp")], "a check changes nothing"
    snapshots = table.load().snapshots().size()
    forget_last_commit(Path(old.checkpoint))
    told: list[str] = []
    send(servers, topic, numbered(60, 120))
    running = start_pipeline(spark, new, tell=told.append)
    running.query.awaitTermination()
    assert told == [f"{table.name}: {line}" for line in said]
    assert sorted(spec_of(table)) == [("bucket[2]", "key"), ("identity", "data.city")]
    assert offsets(table.read()) == every_offset_once(120)
    assert table.load().snapshots().size() == snapshots + 2, "the change itself is no snapshot, nor the repeated batch"
    assert running.batches is not None
    assert sum(running.batches.counted.values()) == 60, "sorting reads nothing twice"
    assert specs_of_files(spark, table) == {0, 1}

    assert check_pipeline(spark, new) == []
    # A file that names no layout leaves that of the table alone.
    run(spark, pipeline())
    assert sorted(spec_of(table)) == [("bucket[2]", "key"), ("identity", "data.city")]
    assert iceberg(spark, new).compact() > 0
    assert offsets(table.read()) == every_offset_once(120)
    forget_last_commit(Path(new.checkpoint))
    run(spark, new)
    assert offsets(table.read()) == every_offset_once(120)

    run(spark, pipeline(partition_by="day", sort_by=[]))
    assert (spec_of(table), table.load().spec().specId()) == ([("day", "timestamp")], 0)
    assert not table.load().sortOrder().isSorted()
    assert offsets(table.read()) == every_offset_once(120)
    assert table.committed(running.query.id) >= 3


def specs_of_files(spark: SparkSession, table: IcebergTable) -> set[int]:
    return {row[0] for row in spark.table(f"{table.name}.files").select("spec_id").collect()}


def test_compaction_brings_files_of_an_earlier_spec_into_the_new_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def table(*partition_by: str) -> IcebergTable:
        return iceberg(
            spark,
            make_pipeline(
                "127.0.0.1:1", tmp_path, "specs", compaction={"files_min": 2},
                table={"partition_by": list(partition_by)},
            ),
        )  # fmt: skip

    old, new = table("topic"), table("day(timestamp)")
    old.append(records(spark, range(8)), "q", 0)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "publish", lambda *_: None)
        old.append(records(spark, range(8, 16)), "q", 1)
    new.apply_layout(old.read().schema)
    old.publish("q", 1)  # a driver that still runs, and staged before the change
    new.append(records(spark, range(16, 24)), "q", 2)
    with pytest.raises(AnotherDriver):
        new.append(records(spark, range(8, 16)), "q", 1)
    assert specs_of_files(spark, new) == {0, 1}
    assert new.compact() > 0
    assert specs_of_files(spark, new) == {1}
    assert sorted(row["data"]["n"] for row in new.read().collect()) == list(range(24))
    assert new.committed("q") == 2


def test_properties_of_iceberg(spark: SparkSession, tmp_path: Path) -> None:
    def table(**properties: str) -> IcebergTable:
        return iceberg(spark, make(tmp_path, "properties", "iceberg", partition_by="none", properties=properties))

    codec = "write.parquet.compression-codec"
    old = table(**{codec: "gzip", "team": "it's \\ air"})
    old.append(records(spark, range(3)), "q", 0)
    columns = old.read().schema
    assert old.layout_changes(columns) == []
    new = table(**{codec: "snappy", "team": "it's \\ air", "format-version": "3"})
    assert new.apply_layout(columns) == [
        f"property {codec} changes from gzip to snappy", "property format-version changes from 2 to 3"
    ]  # fmt: skip
    assert new.apply_layout(columns) == []
    new.append(records(spark, range(3, 5)), "q", 1)
    found = new.load().properties()
    assert (found[codec], found["team"]) == ("snappy", "it's \\ air")
    assert found["write.wap.enabled"] == "true"
    assert (new.committed("q"), new.read().count()) == (1, 5)
    assert table().layout_changes(columns) == [], "what the file no longer names stays"
    with pytest.raises(SettingError, match=r"table.properties: Cannot downgrade v3 table to v2"):
        table(**{"format-version": "2"}).apply_layout(columns)


def test_properties_of_delta(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")

    def table(**properties: str) -> DeltaTable:
        found, _ = open_tables(spark, make(tmp_path, "p", "delta", partition_by="none", properties=properties))
        assert isinstance(found, DeltaTable)
        return found

    old = table(**{"delta.appendOnly": "true", "team": "it's \\ air"})
    columns = records(spark, []).schema
    assert old.apply_layout(columns) == [], "there is no table yet"
    old.append(records(spark, range(3)), "q", 0)
    assert old.layout_changes(columns) == []
    first = (Path(old.location) / "_delta_log" / "00000000000000000000.json").read_text()
    assert '"delta.appendOnly":"true"' in first, "from the first version on"
    new = table(**{"delta.appendonly": "false", "delta.feature.deletionVectors": "supported"})
    assert new.layout_changes(columns) == [
        "property delta.appendonly changes from true to false",
        "property delta.feature.deletionVectors changes from none to supported",
    ]
    assert len(new.apply_layout(columns)) == 2
    assert new.layout_changes(columns) == []
    new.append(records(spark, range(3, 5)), "q", 1)
    assert (new.committed("q"), new.read().count()) == (1, 5)
    with pytest.raises(SettingError, match=r"table.properties: delta.appendOnly: .*perhaps"):
        table(**{"delta.appendOnly": "perhaps"}).apply_layout(columns)


def test_delta_partitions_by_columns_and_periods_and_keeps_them(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")
    pipeline = make(tmp_path, "p", "delta", partition_by=["topic", "month(timestamp)"])
    table, _ = open_tables(spark, pipeline)
    table.append(records(spark, range(8)).selectExpr("*", "date_format(timestamp, 'yyyy-MM') AS month"), "q", 0)
    odd = table.read().filter("topic = 'odd'").inputFiles()
    assert 0 < len(odd) < len(table.read().inputFiles())
    assert all("topic=odd/month=2013-01" in path for path in odd)
    assert check_pipeline(spark, pipeline) == []
    with pytest.raises(SettingError) as caught:
        check_pipeline(spark, make(tmp_path, "p", "delta", partition_by="none"))
    assert str(caught.value) == (
        f"table.partition_by: {table.place} is partitioned by topic and month, and would be by nothing; a table of "
        f"format delta cannot change that: use a new checkpoint and another location"
    )


@pytest.mark.interop
def test_parquet_partitions_by_columns_and_keeps_them(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    def pipeline(*partition_by: str) -> PipelineSettings:
        return make_pipeline(servers, tmp_path, topic, "parquet", table={"partition_by": list(partition_by)})

    send(servers, topic, numbered(0, 30))
    run(spark, pipeline("partition", "year(timestamp)"))
    read = spark.read.parquet(str(tmp_path / "table"))
    assert offsets(read) == every_offset_once(30)
    assert sorted(map(tuple, read.select("partition", "year").distinct().collect())) == [(n, 2013) for n in range(3)]
    with pytest.raises(SettingError, match=r"table.partition_by: .* by partition and year, and would be by partition;"):
        check_pipeline(spark, pipeline("partition"))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"partition_by": ["data.nothing"]}, "partition_by: there is no column data.nothing; data has n, name"),
        ({"partition_by": ["day(key.x)"]}, "partition_by: there is no column key.x; key has no fields"),
        ({"partition_by": ["data"]}, "partition_by: "),
        ({"partition_by": ["day(data.name)"]}, "partition_by: Invalid source type string for transform: day"),
        ({"partition_by": ["day(timestamp)", "hour(timestamp)"]}, "partition_by: Cannot add redundant partition"),
        ({"partition_by": "none", "sort_by": ["data.nothing"]}, "sort_by: there is no column data.nothing"),
        ({"partition_by": "none", "sort_by": ["headers"]}, "sort_by: "),
    ],
)
def test_what_the_columns_do_not_allow(
    spark: SparkSession, tmp_path: Path, table: dict[str, object], words: str
) -> None:
    need("iceberg")
    with pytest.raises(SettingError) as caught:
        check_pipeline(spark, make(tmp_path, "wrong", "iceberg", **table))
    assert str(caught.value).startswith(f"table.{words}")
    assert str(caught.value).isprintable(), "one line"
