"""Whole pipelines with the real Spark, a real node, and real Iceberg and Delta tables."""

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError
from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import open_tables
from anabranch.spark.pipeline.writer import TableWriter
from tests.spark.pipeline.registry_server import running_registry
from tests.spark.pipeline.support import (
    DAY_MS,
    FORMATS,
    JANUARY_MS,
    every_offset_once,
    failure_of,
    forget_last_commit,
    make_pipeline,
    numbered,
    offsets,
    run,
    run_until_it_dies,
)
from tests.spark.pipeline.test_decoders import NEWER, PLAIN, avro, with_id
from tests.support.events import Event, send
from tests.support.soak import LONG

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def tables(spark: SparkSession, pipeline: PipelineSettings) -> tuple[DataFrame, DataFrame]:
    table, dead_letters = open_tables(spark, pipeline)
    return table.read(), dead_letters.read()


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_records_dead_letters_new_columns_and_a_restart(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    events = [
        Event(0, b'{"n":1,"name":"one"}', b"k", JANUARY_MS, [("h", b"1"), ("none", None)]),
        Event(0, b"not json", b"bad", JANUARY_MS + 1),
        Event(0, None, b"tombstone", JANUARY_MS + 2),
        Event(1, b'{"n":"text"}', None, JANUARY_MS + 3),
        Event(2, b'{"n":4}', b"\xff\x00", JANUARY_MS + 40 * DAY_MS),
    ]
    send(servers, topic, events)
    pipeline = make_pipeline(servers, tmp_path, topic, table_format)
    first = run(spark, pipeline)
    assert first.batches is not None
    assert first.batches.counted == {0: len(events)}
    table, dead_letters = tables(spark, pipeline)
    columns = ["topic", "partition", "offset", "timestamp", "key", "headers", "data"]
    assert table.columns == (columns if table_format == "iceberg" else [*columns, "day"])
    rows = table.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect()
    assert [(row["partition"], row["offset"], row["ms"]) for row in rows] == [
        (0, 0, JANUARY_MS), (0, 2, JANUARY_MS + 2), (2, 0, JANUARY_MS + 40 * DAY_MS)
    ]  # fmt: skip
    assert [row["data"] and tuple(row["data"]) for row in rows] == [(1, "one"), None, (4, None)]
    headers = [(header["key"], header["value"] and bytes(header["value"])) for header in rows[0]["headers"]]
    assert headers == list(events[0].headers)
    dead = dead_letters.orderBy("partition").collect()
    assert [(row["partition"], row["offset"], bytes(row["value"]), row["error"]) for row in dead] == [
        (0, 1, b"not json", "not JSON at character 0: expecting value"),
        (1, 0, b'{"n":"text"}', "n: expected int, found the text 'text'"),
    ]  # fmt: skip

    # The schema file has a new field, and no earlier record is read again.
    (tmp_path / "values.ddl").write_text("n INT, name STRING, place STRUCT<city: STRING>")
    send(servers, topic, [Event(1, b'{"n":5,"place":{"city":"Oslo"}}', timestamp_ms=JANUARY_MS)])
    run(spark, pipeline)
    run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    cities = table.filter("data IS NOT NULL").selectExpr("data.n", "data.place.city").orderBy("n").collect()
    assert [tuple(row) for row in cities] == [(1, None), (4, None), (5, "Oslo")]
    assert dead_letters.count() == 2


@FORMATS
def test_a_micro_batch_that_is_repeated_is_not_there_twice(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(servers, tmp_path, topic, table_format, table={"partition_by": "none"})
    send(servers, topic, numbered(0, 60))
    run(spark, pipeline)
    # A driver dies between the table's commit and the query's own ...
    forget_last_commit(Path(pipeline.checkpoint))
    send(servers, topic, [*numbered(60, 120), Event(0, b"dead")])
    run(spark, pipeline)
    assert offsets(tables(spark, pipeline)[0]) == every_offset_once(120)
    # ... and between the table and its dead letters.
    send(servers, topic, [*numbered(120, 150), Event(0, b"dead")])
    run_until_it_dies(spark, pipeline, monkeypatch, TableWriter, "_append_dead_letters")
    run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    found = table.selectExpr("data.n").orderBy("n").collect()
    assert [row["n"] for row in found] == list(range(150))
    assert offsets(dead_letters) == {(0, 40): 1, (0, 51): 1}


def test_a_schema_that_changes_before_a_micro_batch_is_repeated_loses_and_doubles_nothing(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = make_pipeline(servers, tmp_path, topic, table={"partition_by": "none"})
    former, later = "n INT, name STRING", "name STRING, gate INT"
    # The first fits both schemas, the second the former one, and the third the later one.
    values = [b'{"n":1,"name":"x"}', b'{"n":2,"name":"x","gate":"text"}', b'{"n":"text","name":"y"}']
    send(servers, topic, [Event(0, value, timestamp_ms=JANUARY_MS) for value in values])
    run_until_it_dies(spark, pipeline, monkeypatch, TableWriter, "_append_dead_letters")
    (tmp_path / "values.ddl").write_text(later)
    run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    assert (offsets(table), offsets(dead_letters)) == ({(0, 0): 1, (0, 1): 1}, {(0, 2): 1})
    # Settings that the former schema does not fit: the schema of now counts.
    forget_last_commit(Path(pipeline.checkpoint))
    (tmp_path / "values.ddl").write_text("name STRING, gate INT, at TIMESTAMP")
    timed = {"partition_by": "none", "event_time": "data.at"}
    run(spark, make_pipeline(servers, tmp_path, topic, table=timed))
    # Nothing of a micro-batch is there: likewise.
    send(servers, topic, [Event(0, values[2], timestamp_ms=JANUARY_MS)])
    (tmp_path / "values.ddl").write_text(former)
    run_until_it_dies(spark, pipeline, monkeypatch, TableWriter, "_append")
    (tmp_path / "values.ddl").write_text(later)
    run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    assert (offsets(table), offsets(dead_letters)) == ({(0, 0): 1, (0, 1): 1, (0, 3): 1}, {(0, 2): 1})


def test_a_checkpoint_that_is_older_than_its_table_skips_nothing(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    pipeline = make_pipeline(servers, tmp_path, topic, source={"offsets_per_batch_max": 15})
    send(servers, topic, numbered(0, 30))
    run(spark, pipeline)
    shutil.copytree(pipeline.checkpoint, tmp_path / "copy")
    send(servers, topic, numbered(30, 60))
    run(spark, pipeline)
    older = pipeline.model_copy(update={"checkpoint": str(tmp_path / "copy")})
    send(servers, topic, numbered(60, 70))
    failure = failure_of(start_pipeline(spark, older))
    assert isinstance(failure, AnotherDriver)
    assert "micro-batch 2 was committed by another driver, and 3 too" in str(failure)
    run(spark, pipeline)
    assert offsets(open_tables(spark, pipeline)[0].read()) == every_offset_once(70)


@FORMATS
def test_small_files_are_compacted_and_the_last_batch_stays_known(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    files_min = {"files_min": 2} if table_format == "iceberg" else {}
    pipeline = make_pipeline(
        servers, tmp_path, topic, table_format,
        source={"offsets_per_batch_max": 15}, table={"partition_by": "none"}, compaction={"batches": 3, **files_min},
    )  # fmt: skip
    send(servers, topic, numbered(0, 60))
    running = run(spark, pipeline)
    assert running.batches is not None
    assert running.batches.compaction_failure is None
    table, _ = open_tables(spark, pipeline)
    assert table.committed(running.query.id) == 3
    if table_format == "iceberg":
        # Once between micro-batches, and once at the end.
        assert spark.table(f"{pipeline.table.name}.snapshots").filter("operation = 'replace'").count() == 2
        assert spark.table(f"{pipeline.table.name}.files").count() == 1
    else:
        assert len(table.read().inputFiles()) == 1
    assert offsets(table.read()) == every_offset_once(60)
    forget_last_commit(Path(pipeline.checkpoint))
    run(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(60)


def test_avro_from_a_registry_with_a_new_version_between(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    with running_registry() as registry:
        old = registry.add(f"{topic}-value", PLAIN)
        pipeline = make_pipeline(
            servers, tmp_path, topic, decode={"format": "avro", "schema_file": None, "registry": registry.url}
        )
        send(servers, topic, [Event(0, with_id(old, avro(PLAIN, {"carrier": "AA", "delay": 3})))])
        run(spark, pipeline)
        new = registry.add(f"{topic}-value", NEWER)
        values = [
            with_id(old, avro(PLAIN, {"carrier": "UA", "delay": None})),
            with_id(new, avro(NEWER, {"carrier": "DL", "delay": 0, "gate": "B7"})),
            with_id(99, b"?"),
        ]
        send(servers, topic, [Event(1, value) for value in values])
        run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    found = table.selectExpr("data.carrier", "data.delay", "data.gate").orderBy("carrier").collect()
    assert [tuple(row) for row in found] == [("AA", 3, None), ("DL", 0, "B7"), ("UA", None, None)]
    (dead,) = dead_letters.collect()
    assert (bytes(dead["value"]), "has no /schemas/ids/99" in dead["error"]) == (values[2], True)


def test_late_records_and_partitions_by_the_events_own_time(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "values.ddl").write_text("at STRING")
    pipeline = make_pipeline(
        servers, tmp_path, topic,
        table={"event_time": "to_timestamp(data.at)", "partition_by": "hour"}, watermark={"delay": "1 hour"},
    )  # fmt: skip

    def at(*times: str) -> list[Event]:
        return [Event(0, json.dumps({"at": time}).encode(), timestamp_ms=JANUARY_MS) for time in times]

    send(servers, topic, at("2013-01-01 10:00:00", "2013-01-01 05:00:00"))
    run(spark, pipeline)
    send(servers, topic, at("2013-01-01 09:00:00", "2013-01-01 08:59:59", "2013-01-01 12:00:00", "never"))
    run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    # The first micro-batch has nothing before it; in the second, 08:59:59 is a second behind.
    hours = sorted(row[0] for row in table.selectExpr("date_format(event_time, 'HH:mm:ss')").collect())
    assert hours == ["05:00:00", "09:00:00", "10:00:00", "12:00:00"]
    errors = {bytes(row["value"]): row["error"] for row in dead_letters.collect()}
    assert errors == {
        b'{"at": "2013-01-01 08:59:59"}': "late: 1.0 s behind the watermark",
        b'{"at": "never"}': "event_time: no time in this record by to_timestamp(data.at)",
    }
    partitions = spark.table(f"{pipeline.table.name}.partitions").count()
    assert partitions == 4


def test_a_record_from_the_future_is_a_dead_letter_and_makes_no_other_late(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "values.ddl").write_text("at STRING")
    pipeline = make_pipeline(
        servers, tmp_path, topic,
        table={"event_time": "to_timestamp(data.at)", "partition_by": "none"},
        watermark={"delay": "2 hours", "ahead_max": "12 hours"},
    )  # fmt: skip

    def at(*times: str) -> list[Event]:
        return [Event(0, json.dumps({"at": time}).encode(), timestamp_ms=JANUARY_MS) for time in times]

    future = "2100-01-01 00:00:00"
    send(servers, topic, at("2013-01-01 12:00:00", future))
    run(spark, pipeline)
    send(servers, topic, at("2013-01-01 10:00:00", "2013-01-01 09:59:00"))
    run(spark, pipeline)
    table, dead_letters = tables(spark, pipeline)
    times = sorted(row[0] for row in table.selectExpr("date_format(event_time, 'HH:mm')").collect())
    assert times == ["10:00", "12:00"], "the newest good time is 12:00"
    errors = {json.loads(row["value"])["at"]: row["error"] for row in dead_letters.collect()}
    assert errors.pop(future) == "event_time: 2100-01-01 00:00:00 is 2745444800.0 s after the record's time"
    assert errors == {"2013-01-01 09:59:00": "late: 60.0 s behind the watermark"}


@pytest.mark.parametrize("table_format", ["iceberg", pytest.param("parquet", marks=LONG)])
def test_lenient_decoding_takes_what_it_can(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    (tmp_path / "values.ddl").write_text("at STRING")
    values = [b'{"at":"never"}', b'{"at":"2013-01-02"} {"at":"2013-01-03"}', b'{"at":"\xff"}', b'{"at":"2013-01-04"}']
    send(servers, topic, [Event(0, value, timestamp_ms=JANUARY_MS) for value in values])
    read = spark.table if table_format == "iceberg" else spark.read.parquet
    dead = ""
    for strict, days in ((False, [1, 2, 1, 4]), (True, [4])):
        folder = tmp_path / str(strict)
        folder.mkdir()
        pipeline = make_pipeline(
            servers, folder, topic, table_format,
            decode={"strict": strict, "schema_file": str(tmp_path / "values.ddl")},
            table={"event_time": "to_timestamp(data.at)"},
        )  # fmt: skip
        run(spark, pipeline)
        table = pipeline.table.name or pipeline.table.location
        found = read(str(table)).orderBy("offset").selectExpr("day(event_time)").collect()
        assert [row[0] for row in found] == days
        dead = pipeline.dead_letter_place
    assert [row["error"] for row in read(dead).orderBy("offset").collect()] == [
        "event_time: no time in this record by to_timestamp(data.at)",
        'text after the value, at character 20: \'{"at":"2013-01-03"}\'',
        "not valid UTF-8 at byte 7",
    ]


def test_parquet_through_sparks_own_sink(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    pipeline = make_pipeline(servers, tmp_path, topic, "parquet", table={"keep_value": True})
    send(servers, topic, [*numbered(0, 300), Event(1, b"dead")])
    run(spark, pipeline)
    for name in ("checkpoint", "checkpoint-dead-letters"):
        forget_last_commit(tmp_path / name)
    send(servers, topic, numbered(300, 330))
    run(spark, pipeline)
    table = spark.read.parquet(str(tmp_path / "table"))
    assert sorted(row["n"] for row in table.select("data.n").collect()) == list(range(330))
    days = {path.name for path in (tmp_path / "table" / f"topic={topic}").iterdir()}
    assert days == {"day=2013-01-01", "day=2013-01-02", "day=2013-01-03", "day=2013-01-04"}
    assert offsets(spark.read.parquet(pipeline.dead_letter_place)) == {(1, 100): 1}


def test_a_schema_that_can_not_be_read_is_said_before_anything_starts(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "values.ddl").write_text("n INT name")
    with pytest.raises(PipelineError, match=r"values.ddl: the schema can't be read"):
        start_pipeline(spark, make_pipeline(servers, tmp_path, topic))
