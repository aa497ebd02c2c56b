"""Spark's own Kafka source and sink against a node, used as data engineers do."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.jars import installed_spark_version, spark_line
from tests.support.events import QUIET, TIMEOUT_S, Event, create_topic, delete_topic, receive, send, wait_stable

pytestmark = [pytest.mark.spark, pytest.mark.interop]

START_MS = 1_600_000_000_000
COUNT = 300
PARTITIONS = 3
WAIT_S = 400


@pytest.fixture
def filled(servers: str, topic: str) -> str:
    """A topic of three partitions with a hundred records each, a second apart."""
    events = [
        Event(n % PARTITIONS, b"v%d" % n, b"k%d" % n, START_MS + n * 1000, [("n", b"%d" % n)]) for n in range(COUNT)
    ]
    send(servers, topic, events)
    return topic


def reader(spark: SparkSession, servers: str) -> DataFrameReader:
    return spark.read.format("kafka").option("kafka.bootstrap.servers", servers)


def numbers(records: DataFrame) -> list[int]:
    """The numbers in the values, sorted."""
    rows = records.selectExpr("CAST(substring(CAST(value AS STRING), 2) AS INT) AS n").collect()
    return sorted(row["n"] for row in rows)


def test_a_batch_reads_everything_with_keys_times_and_headers(spark: SparkSession, servers: str, filled: str) -> None:
    records = reader(spark, servers).option("subscribe", filled).option("includeHeaders", value=True).load()
    rows = records.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("ms").collect()
    assert len(rows) == COUNT
    for n, row in enumerate(rows):
        assert (bytes(row["key"]), bytes(row["value"])) == (b"k%d" % n, b"v%d" % n)
        assert (row["topic"], row["partition"], row["offset"]) == (filled, n % PARTITIONS, n // PARTITIONS)
        assert (row["ms"], row["timestampType"]) == (START_MS + n * 1000, 0)
        assert [(header["key"], bytes(header["value"])) for header in row["headers"]] == [("n", b"%d" % n)]


def test_ranges_of_offsets(spark: SparkSession, servers: str, filled: str) -> None:
    records = (
        reader(spark, servers)
        .option("subscribe", filled)
        .option("startingOffsets", json.dumps({filled: {"0": 10, "1": -2, "2": 99}}))
        .option("endingOffsets", json.dumps({filled: {"0": 12, "1": 1, "2": -1}}))
        .load()
    )
    assert numbers(records) == [1, 30, 33, 299]


def test_ranges_of_time(spark: SparkSession, servers: str, filled: str) -> None:
    records = (
        reader(spark, servers)
        .option("subscribe", filled)
        .option("startingTimestamp", str(START_MS + 100_500))
        .option("endingTimestamp", str(START_MS + 110_000))
        .load()
    )
    assert numbers(records) == list(range(101, 110))


def test_a_time_past_the_end_reads_nothing_when_asked_for(spark: SparkSession, servers: str, filled: str) -> None:
    records = (
        reader(spark, servers)
        .option("subscribe", filled)
        .option("startingOffsetsByTimestamp", json.dumps({filled: dict.fromkeys("012", START_MS + 10**9)}))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load()
    )
    assert numbers(records) == []


def test_assigned_partitions(spark: SparkSession, servers: str, filled: str) -> None:
    records = reader(spark, servers).option("assign", json.dumps({filled: [1]})).load()
    assert numbers(records) == list(range(1, COUNT, PARTITIONS))


def test_a_pattern_of_topics(spark: SparkSession, servers: str, filled: str) -> None:
    create_topic(servers, f"{filled}-other", 1)
    send(servers, f"{filled}-other", [Event(0, b"v1000")])
    records = reader(spark, servers).option("subscribePattern", f"{filled}.*").load()
    assert numbers(records) == [*range(COUNT), 1000]


def test_more_tasks_than_partitions(spark: SparkSession, servers: str, filled: str) -> None:
    records = reader(spark, servers).option("subscribe", filled).option("minPartitions", "9").load()
    assert records.rdd.getNumPartitions() >= 9
    assert numbers(records) == list(range(COUNT))


def test_read_committed_sees_committed_transactions_only(spark: SparkSession, servers: str, filled: str) -> None:
    def committed() -> list[int]:
        return numbers(source.option("kafka.isolation.level", "read_committed").load())

    source = reader(spark, servers).option("subscribe", filled)
    assert committed() == list(range(COUNT))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": filled, **QUIET})
    producer.init_transactions(TIMEOUT_S)
    for value, ending in ((1000, producer.commit_transaction), (2000, producer.abort_transaction)):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(filled, b"v%d" % (value + partition), partition=partition)
        ending(TIMEOUT_S)
    wait_stable(servers, filled)
    wanted = [*range(COUNT), 1000, 1001, 1002]
    assert committed() == wanted
    producer.begin_transaction()
    producer.produce(filled, b"v3000", partition=0)
    producer.flush(TIMEOUT_S)
    send(servers, filled, [Event(0, b"v4000"), Event(1, b"v4001")])
    # The open transaction of partition 0 holds back later records of this partition only.
    assert committed() == [*wanted, 4001]
    assert numbers(source.option("kafka.isolation.level", "read_uncommitted").load())[-3:] == [3000, 4000, 4001]
    producer.commit_transaction(TIMEOUT_S)
    wait_stable(servers, filled)
    assert committed() == [*wanted, 3000, 4000, 4001]


def test_a_stream_waits_for_the_end_of_an_open_transaction(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path
) -> None:
    options = {"subscribe": filled, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}

    def copied() -> list[int]:
        assert stream(spark, servers, tmp_path, options).awaitTermination(WAIT_S)
        return numbers(spark.read.parquet(str(tmp_path / "table")))

    producer = Producer({"bootstrap.servers": servers, "transactional.id": filled, **QUIET})
    producer.init_transactions(TIMEOUT_S)
    for value, ending in ((1000, producer.commit_transaction), (2000, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(filled, b"v%d" % value, partition=0)
        ending(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(filled, b"v3000", partition=0)
    producer.flush(TIMEOUT_S)
    send(servers, filled, [Event(0, b"v4000"), Event(1, b"v4001")])
    assert copied() == [*range(COUNT), 1000, 4001]
    producer.commit_transaction(TIMEOUT_S)
    wait_stable(servers, filled)
    assert copied() == [*range(COUNT), 1000, 3000, 4000, 4001]


def test_a_stream_comes_in_limited_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path
) -> None:
    def run(name: str) -> int:
        query = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", filled)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "120")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName(name)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        return sum(1 for progress in query.recentProgress if progress["numInputRows"])

    assert run("first") == 3
    assert run("second") == 0
    send(servers, filled, [Event(0, b"v300")])
    assert run("third") == 1
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == list(range(COUNT + 1))


def test_the_sink_writes_keys_values_headers_and_partitions(spark: SparkSession, servers: str, topic: str) -> None:
    rows = [(n % PARTITIONS, f"k{n}", f"v{n}") for n in range(60)]
    (
        spark.createDataFrame(rows, "partition INT, key STRING, value STRING")
        .selectExpr("*", "array(struct('h' AS key, CAST(key AS BINARY) AS value)) AS headers")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("includeHeaders", value=True)
        .save()
    )
    events = receive(servers, topic, dict.fromkeys(range(PARTITIONS), 20))
    found = sorted((event.partition, event.key, event.value, tuple(event.headers)) for event in events)
    assert found == sorted((p, k.encode(), v.encode(), (("h", k.encode()),)) for p, k, v in rows)


def test_the_sink_of_a_stream_copies_a_topic(spark: SparkSession, servers: str, filled: str, tmp_path: Path) -> None:
    target = f"{filled}-copy"
    create_topic(servers, target, PARTITIONS)
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", filled)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    events = receive(servers, target, dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS))
    assert sorted((event.key, event.value) for event in events) == sorted(
        (b"k%d" % n, b"v%d" % n) for n in range(COUNT)
    )


def per_partition(topic: str, seconds: Sequence[int]) -> str:
    """Times of the partitions in the source's format, in seconds since the first record."""
    return json.dumps({topic: {str(index): START_MS + value * 1000 for index, value in enumerate(seconds)}})


def test_ranges_of_time_for_each_partition(spark: SparkSession, servers: str, filled: str) -> None:
    records = (
        reader(spark, servers)
        .option("subscribe", filled)
        .option("startingOffsetsByTimestamp", per_partition(filled, [10, 20, 290]))
        .option("endingOffsetsByTimestamp", per_partition(filled, [15, 20, 10_000]))
        .load()
    )
    assert numbers(records) == [12, 290, 293, 296, 299]


def stream(
    spark: SparkSession, servers: str, folder: Path, options: Mapping[str, str], *, interval: str | None = None
) -> StreamingQuery:
    """Copy a stream of records into a Parquet table in `folder`; without an interval, only the current records."""
    writer = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.metadata.max.age.ms", "500")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    writer = writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)
    return writer.start()


def wait_for(spark: SparkSession, query: StreamingQuery, folder: Path, wanted: list[int]) -> None:
    """Wait until the table has these numbers, however many micro-batches that takes."""
    deadline = monotonic() + WAIT_S
    while True:
        query.processAllAvailable()
        found = numbers(spark.read.parquet(str(folder / "table")))
        if found == wanted:
            return
        assert monotonic() < deadline, f"{len(found)} of {len(wanted)} records"


def test_a_running_stream_begins_at_the_end_is_stopped_and_goes_on(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path
) -> None:
    options = {"assign": json.dumps({filled: [0, 1]}), "startingOffsets": "latest", "maxOffsetsPerTrigger": "4"}
    query = stream(spark, servers, tmp_path, options, interval="0 seconds")
    try:
        query.processAllAvailable()
        send(servers, filled, [Event(n % PARTITIONS, b"v%d" % n) for n in range(300, 330)])
        wanted = [n for n in range(300, 330) if n % PARTITIONS != 2]
        wait_for(spark, query, tmp_path, wanted)
    finally:
        query.stop()
    send(servers, filled, [Event(0, b"v1000")])
    query = stream(spark, servers, tmp_path, options, interval="0 seconds")
    try:
        wait_for(spark, query, tmp_path, [*wanted, 1000])
    finally:
        query.stop()


def test_a_stream_begins_at_a_time(spark: SparkSession, servers: str, filled: str, tmp_path: Path) -> None:
    options = {"subscribe": filled, "startingTimestamp": str(START_MS + 290_500)}
    query = stream(spark, servers, tmp_path, options)
    assert query.awaitTermination(WAIT_S)
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == list(range(291, 300))


def test_a_pattern_takes_up_topics_that_come_and_lets_go_of_those_that_are_deleted(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path
) -> None:
    options = {"subscribePattern": f"{filled}.*", "startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = stream(spark, servers, tmp_path, options, interval="0 seconds")
    try:
        wait_for(spark, query, tmp_path, list(range(COUNT)))
        create_topic(servers, f"{filled}-second", 1)
        send(servers, f"{filled}-second", [Event(0, b"v1000")])
        wait_for(spark, query, tmp_path, [*range(COUNT), 1000])
        delete_topic(servers, filled)
        send(servers, f"{filled}-second", [Event(0, b"v1001")])
        wait_for(spark, query, tmp_path, [*range(COUNT), 1000, 1001])
    finally:
        query.stop()


def expire(servers: str, topic: str, partition: int, offset: int) -> None:
    """Have a partition begin at an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        done.result(TIMEOUT_S)


@pytest.mark.parametrize("fails", [True, False])
def test_records_that_retention_took_before_they_were_read(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path, fails: bool
) -> None:
    options = {"subscribe": filled, "startingOffsets": "earliest", "failOnDataLoss": str(fails).lower()}
    query = stream(spark, servers, tmp_path, options)
    assert query.awaitTermination(WAIT_S)
    # Between two runs, partition 0 loses 5 of the 10 records that came.
    send(servers, filled, [Event(0, b"v%d" % n) for n in range(300, 310)])
    expire(servers, filled, 0, 105)
    query = stream(spark, servers, tmp_path, options)
    if fails:
        with pytest.raises(StreamingQueryException, match=r"(?i)some data may have been lost|data loss"):
            query.awaitTermination(WAIT_S)
        return
    assert query.awaitTermination(WAIT_S)
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == [*range(COUNT), *range(305, 310)]


def test_a_running_stream_goes_on_when_retention_takes_what_it_has_read(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path
) -> None:
    options = {"subscribe": filled, "startingOffsets": "earliest", "failOnDataLoss": "true"}
    query = stream(spark, servers, tmp_path, options, interval="0 seconds")
    try:
        wait_for(spark, query, tmp_path, list(range(COUNT)))
        expire(servers, filled, 0, 100)
        expire(servers, filled, 1, 50)
        send(servers, filled, [Event(n % PARTITIONS, b"v%d" % n) for n in range(300, 330)])
        wait_for(spark, query, tmp_path, list(range(330)))
    finally:
        query.stop()


def test_a_topic_deleted_under_a_running_stream_is_said(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path
) -> None:
    options = {"subscribe": filled, "startingOffsets": "earliest"}
    query = stream(spark, servers, tmp_path, options, interval="0 seconds")
    try:
        wait_for(spark, query, tmp_path, list(range(COUNT)))
        delete_topic(servers, filled)
        with pytest.raises(StreamingQueryException, match=rf"(?i){filled}|partition|deleted|lost"):
            query.awaitTermination(WAIT_S)
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("trigger", "mode"),
    [
        ({"continuous": "1 second"}, "append"),
        pytest.param(
            {"realTime": "5 seconds"},
            "update",
            marks=pytest.mark.skipif(
                spark_line(installed_spark_version()) == "4.1", reason="PySpark has the real-time trigger from 4.2 on"
            ),
        ),
    ],
    ids=["continuous", "real-time"],
)
def test_a_stream_without_micro_batches_copies_a_topic(
    spark: SparkSession, servers: str, filled: str, tmp_path: Path, trigger: Mapping[str, str], mode: str
) -> None:
    # Each partition's task runs as long as the query, so that all need a place at the same time; this session has two.
    read = [0, 1]
    target = f"{filled}-copy"
    create_topic(servers, target, PARTITIONS)
    writer: Any = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("assign", json.dumps({filled: read}))
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("key", "value", "partition")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode(mode)
    )
    query = writer.trigger(**trigger).start()
    try:
        events = receive(servers, target, dict.fromkeys(read, COUNT // PARTITIONS))
    finally:
        query.stop()
    assert sorted((event.key, event.value) for event in events) == sorted(
        (b"k%d" % n, b"v%d" % n) for n in range(COUNT) if n % PARTITIONS in read
    )
