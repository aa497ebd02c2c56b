"""The ingest job with the real Spark against a real node."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.ingest import IngestError, IngestSettings, Period, parse_schema, start_ingest
from tests.support.events import Event, create_topic, send

pytestmark = [pytest.mark.spark, pytest.mark.interop]

JANUARY_MS = 1_357_000_000_000
DAY_MS = 86_400_000


def job(servers: str, folder: Path, topic: str) -> IngestSettings:
    return IngestSettings(
        bootstrap_servers=servers,
        table=str(folder / "table"),
        checkpoint=str(folder / "checkpoint"),
        topics=(topic,),
        schema="n INT, name STRING",
    )


def numbered(start: int, end: int, partitions: int = 3) -> list[Event]:
    return [
        Event(n % partitions, b'{"n":%d,"name":"x%d"}' % (n, n), b"key%d" % n, JANUARY_MS + n * DAY_MS // 100)
        for n in range(start, end)
    ]


def offsets(table: DataFrame) -> Counter[tuple[str, int, int]]:
    rows = table.select("topic", "partition", "offset").collect()
    return Counter((row["topic"], row["partition"], row["offset"]) for row in rows)


def every_offset_once(topic: str, count: int, partitions: int = 3) -> Counter[tuple[str, int, int]]:
    return Counter((topic, n % partitions, n // partitions) for n in range(count))


def run(spark: SparkSession, settings: IngestSettings) -> None:
    query = start_ingest(spark, settings)
    try:
        assert query.awaitTermination(100), "the job did not end"
    finally:
        query.stop()


def test_a_table_holds_every_record_with_all_that_came_with_it(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    events = [
        Event(0, b'{"n":1,"name":"one"}', b"k", JANUARY_MS, [("h", b"1"), ("h", b"2"), ("none", None)]),
        Event(0, b"not json", None, JANUARY_MS + 1),
        Event(0, None, b"tombstone", JANUARY_MS + 2),
        Event(2, b'{"n":4}', b"\xff\x00", JANUARY_MS + 40 * DAY_MS),
    ]
    send(servers, topic, events)
    settings = job(servers, tmp_path, topic)
    run(spark, settings)
    table = spark.read.parquet(settings.table)
    assert set(table.columns) == {
        "topic", "partition", "offset", "timestamp", "key", "value", "headers", "data", "day"
    }  # fmt: skip
    rows = table.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("partition", "offset").collect()
    assert [(row["partition"], row["offset"], row["ms"]) for row in rows] == [
        (0, 0, JANUARY_MS), (0, 1, JANUARY_MS + 1), (0, 2, JANUARY_MS + 2), (2, 0, JANUARY_MS + 40 * DAY_MS),
    ]  # fmt: skip
    assert [row["value"] and bytes(row["value"]) for row in rows] == [event.value for event in events]
    assert [row["key"] and bytes(row["key"]) for row in rows] == [event.key for event in events]
    headers = [(header["key"], header["value"] and bytes(header["value"])) for header in rows[0]["headers"]]
    assert headers == list(events[0].headers)
    assert (rows[0]["data"]["n"], rows[0]["data"]["name"]) == (1, "one")
    assert (rows[3]["data"]["n"], rows[3]["data"]["name"]) == (4, None)
    assert rows[1]["data"] is None or rows[1]["data"]["n"] is None
    assert {path.name for path in Path(settings.table, f"topic={topic}").iterdir()} == {
        "day=2013-01-01", "day=2013-02-10"
    }  # fmt: skip


def test_each_record_comes_once_over_restarts(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    settings = replace(job(servers, tmp_path, topic), offsets_per_batch_max=100, period=Period.NONE)
    send(servers, topic, numbered(0, 700))
    run(spark, settings)
    run(spark, settings)
    send(servers, topic, numbered(700, 1000))
    run(spark, settings)
    table = spark.read.parquet(settings.table)
    assert offsets(table) == every_offset_once(topic, 1000)
    assert table.agg({"data.n": "sum"}).collect()[0][0] == sum(range(1000))


def test_a_batch_that_was_written_but_not_committed_is_not_there_twice(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    settings = replace(job(servers, tmp_path, topic), period=Period.NONE)
    send(servers, topic, numbered(0, 300))
    run(spark, settings)
    # What a driver leaves that dies between the sink's commit and the query's own.
    for commit in Path(settings.checkpoint, "commits").glob("*0*"):
        commit.unlink()
    send(servers, topic, numbered(300, 600))
    run(spark, settings)
    assert offsets(spark.read.parquet(settings.table)) == every_offset_once(topic, 600)


def test_a_job_that_runs_on_is_stopped_in_the_middle_and_goes_on(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    settings = replace(
        job(servers, tmp_path, topic), period=Period.NONE, interval="0 seconds", offsets_per_batch_max=50
    )
    send(servers, topic, numbered(0, 600))
    query = start_ingest(spark, settings)
    try:
        while query.lastProgress is None or query.lastProgress["batchId"] < 1:
            assert not query.awaitTermination(1), "the job ended by itself"
    finally:
        query.stop()
    table = spark.read.parquet(settings.table)
    assert offsets(table).keys() < every_offset_once(topic, 600).keys()
    run(spark, replace(settings, interval=None))
    assert offsets(spark.read.parquet(settings.table)) == every_offset_once(topic, 600)


def test_a_pattern_takes_topics_that_are_there_at_each_start(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    settings = replace(
        job(servers, tmp_path, topic),
        topics=(),
        topic_pattern=f"{topic}.*",
        options={"kafka.metadata.max.age.ms": "500"},
    )
    send(servers, topic, numbered(0, 10))
    run(spark, settings)
    create_topic(servers, f"{topic}-more", 3)
    send(servers, f"{topic}-more", numbered(0, 20))
    run(spark, settings)
    wanted = every_offset_once(topic, 10) + every_offset_once(f"{topic}-more", 20)
    assert offsets(spark.read.parquet(settings.table)) == wanted


@pytest.mark.parametrize("text", ["n INT name", "INT", '{"type": "struct"}', '{"no": 1'])
@pytest.mark.usefixtures("spark")
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(IngestError, match="the schema"):
        parse_schema(text)
