"""Spark's own Kafka source and sink against a node: what a data engineer does with them."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from tests.support.events import QUIET, TIMEOUT_S, Event, create_topic, receive, send

pytestmark = [pytest.mark.spark, pytest.mark.interop]

START_MS = 1_600_000_000_000
COUNT = 300
PARTITIONS = 3


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
    wanted = [*range(COUNT), 1000, 1001, 1002]
    assert committed() == wanted
    producer.begin_transaction()
    producer.produce(filled, b"v3000", partition=0)
    producer.flush(TIMEOUT_S)
    send(servers, filled, [Event(0, b"v4000"), Event(1, b"v4001")])
    # The open transaction of partition 0 holds back what comes after it there, and there only.
    assert committed() == [*wanted, 4001]
    assert numbers(source.option("kafka.isolation.level", "read_uncommitted").load())[-3:] == [3000, 4000, 4001]
    producer.commit_transaction(TIMEOUT_S)
    assert committed() == [*wanted, 3000, 4000, 4001]


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
        assert query.awaitTermination(100)
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
    assert query.awaitTermination(100)
    events = receive(servers, target, dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS))
    assert sorted((event.key, event.value) for event in events) == sorted(
        (b"k%d" % n, b"v%d" % n) for n in range(COUNT)
    )
