"""The direct source with the real Spark: the same rows as the Kafka source, and its additional features."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.direct.conftest import Lake
from tests.support.events import QUIET, TIMEOUT_S, Event, create_topic, send, wait_stable
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.interop]

START_MS = 1_700_000_000_000
PARTITIONS = 3


def rows(records: DataFrame) -> Sequence[Row]:
    return records.orderBy("topic", "partition", "offset").collect()


def same(lake: Lake, **options: str) -> Sequence[Row]:
    """Rows of the topic, after checking that both sources return the same ones."""
    direct, kafka = lake.direct(**options), lake.kafka(**options)
    assert direct.schema.simpleString() == kafka.schema.simpleString()
    found = rows(direct)
    assert found == rows(kafka)
    return found


def events(count: int, *, first: int = 0, size: int = 30) -> list[Event]:
    return [
        Event(
            n % PARTITIONS,
            None if n % 17 == 0 else b"v%d" % n + b"x" * (size if n % 5 else 700),
            None if n % 3 == 0 else b"k%d" % n,
            START_MS + n * 10,
            [] if n % 4 else [("a", b"%d" % n), ("a", None), ("ü", b"")],
        )
        for n in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def topic(lake: Lake) -> str:
    """All codecs, in batches of all sizes, in objects of both kinds."""
    create_topic(lake.servers, "mixed", PARTITIONS)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        some = events(900, first=number * 2000)
        send(lake.servers, "mixed", some, **{"compression.type": codec, "linger.ms": 20})
        send(
            lake.servers, "mixed", events(60, first=number * 2000 + 1000), **{"compression.type": codec, "linger.ms": 0}
        )
        lake.wait_committed("mixed")
    send(lake.servers, "mixed", events(900, first=20_000, size=2_000), **{"enable.idempotence": True})
    lake.wait_committed("mixed")
    return "mixed"


def test_everything_of_a_topic_in_all_codecs(lake: Lake, topic: str) -> None:
    assert len(same(lake, subscribe=topic, includeHeaders="true")) == 5 * 960 + 900
    same(lake, subscribe=topic, minPartitions="7")


def test_ranges_of_offsets_and_partitions(lake: Lake, topic: str) -> None:
    starting = json.dumps({topic: {"0": 33, "1": -2, "2": 1500}})
    ending = json.dumps({topic: {"0": 1234, "1": 1, "2": -1}})
    found = same(lake, subscribe=topic, startingOffsets=starting, endingOffsets=ending)
    assert [row["offset"] for row in found if row["partition"] == 0] == list(range(33, 1234))
    same(lake, assign=json.dumps({topic: [2]}), startingOffsets=json.dumps({topic: {"2": 1000}}))


def test_ranges_of_time(lake: Lake, topic: str) -> None:
    found = same(lake, subscribe=topic, startingTimestamp=str(START_MS + 2005), endingTimestamp=str(START_MS + 61_000))
    assert found
    same(
        lake,
        subscribe=topic,
        startingOffsetsByTimestamp=json.dumps({topic: dict.fromkeys("012", START_MS + 10**9)}),
        startingOffsetsByTimestampStrategy="latest",
    )
    with pytest.raises(PySparkException, match="OffsetsByTimestampStrategy"):
        lake.direct(subscribe=topic, startingTimestamp=str(START_MS + 10**9)).count()


def test_topics_by_pattern_and_log_append_time(lake: Lake) -> None:
    create_topic(lake.servers, "pattern-1", 1, {"message.timestamp.type": "LogAppendTime"})
    create_topic(lake.servers, "pattern-2", 2)
    for name in ("pattern-1", "pattern-2"):
        send(lake.servers, name, [Event(0, name.encode())] * 3)
        lake.wait_committed(name)
    found = same(lake, subscribePattern="pattern-.*")
    assert {(row["topic"], row["timestampType"]) for row in found} == {("pattern-1", 1), ("pattern-2", 0)}


def test_columns_by_option_and_by_schema(lake: Lake, topic: str) -> None:
    by_option = lake.direct(subscribe=topic, columns="offset,partition,topic")
    assert by_option.columns == ["offset", "partition", "topic"]
    assert by_option.count() == 5 * 960 + 900
    reader = lake.spark.read.format("anabranch").options(dataDir=str(lake.data_dir), subscribe=topic)
    keys = reader.schema("key BINARY").load().distinct().count()
    assert keys == lake.kafka(subscribe=topic).select("key").distinct().count()
    with pytest.raises(PySparkException, match="column value: expected type binary"):
        reader.schema("value STRING").load().count()


def test_filters_that_are_pushed_down_change_nothing_but_what_is_read(lake: Lake, topic: str) -> None:
    everything = lake.kafka(subscribe=topic).persist()
    for condition in (
        "partition = 1 AND offset >= 100 AND offset < 300",
        "partition IN (0, 2) AND offset > 1800",
        f"timestamp >= timestamp_millis({START_MS + 200_050})",
        f"timestamp > timestamp_millis({START_MS + 200_050}) AND topic = '{topic}'",
        "topic = 'other' OR offset = 7",
        "topic = 'other'",
        "offset <= 5 AND key IS NULL",
    ):
        assert rows(lake.direct(subscribe=topic).where(condition)) == rows(everything.where(condition))
    everything.unpersist()


def transactional(lake: Lake, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": lake.servers, "transactional.id": name, "linger.ms": 0, **QUIET})
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, topic: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        producer.produce(topic, text.encode(), partition=number % PARTITIONS)
    producer.flush(TIMEOUT_S)


def test_rows_as_an_rdd(lake: Lake, topic: str) -> None:
    records = lake.direct(subscribe=topic)
    assert records.rdd.map(lambda row: row["offset"]).count() == records.count()
    late = records.filter("offset >= 1500")
    assert late.rdd.map(lambda row: row["offset"]).min() == 1500
    seen = records.sparkSession.sparkContext.accumulator(0)
    late.foreachPartition(lambda some: seen.add(sum(1 for _ in some)))
    assert seen.value == late.count() > 0


def test_transactions_committed_aborted_and_open_across_objects(lake: Lake) -> None:
    create_topic(lake.servers, "transactions", PARTITIONS)
    one, two = transactional(lake, "one"), transactional(lake, "two")
    for number in range(4):
        one.begin_transaction()
        two.begin_transaction()
        for part in range(2):
            # Each part of a transaction in another object.
            write(one, "transactions", [f"one {number} {part} {n}" for n in range(30)])
            write(two, "transactions", [f"two {number} {part} {n}" for n in range(30)])
            lake.wait_committed("transactions")
        (one.abort_transaction if number % 2 else one.commit_transaction)(TIMEOUT_S)
        (two.commit_transaction if number % 3 else two.abort_transaction)(TIMEOUT_S)
    send(lake.servers, "transactions", events(60))
    wait_stable(lake.servers, "transactions")
    lake.wait_committed("transactions")

    def both() -> tuple[int, int]:
        options = {"subscribe": "transactions"}
        committed = same(lake, **options, **{"kafka.isolation.level": "read_committed"})
        return len(committed), len(same(lake, **options))

    assert both() == (4 * 60 + 60, 8 * 60 + 60)
    middle = json.dumps({"transactions": dict.fromkeys("012", 31)})
    same(lake, subscribe="transactions", startingOffsets=middle, **{"kafka.isolation.level": "read_committed"})
    one.begin_transaction()
    write(one, "transactions", ["open"] * 3)
    send(lake.servers, "transactions", events(30))
    lake.wait_committed("transactions")
    assert both() == (4 * 60 + 60, 8 * 60 + 93)
    one.commit_transaction(TIMEOUT_S)
    wait_stable(lake.servers, "transactions")
    lake.wait_committed("transactions")
    assert both() == (4 * 60 + 93, 8 * 60 + 93)


def test_a_trimmed_start_inside_a_batch(lake: Lake) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    create_topic(lake.servers, "trimmed", PARTITIONS)
    send(lake.servers, "trimmed", events(600))
    lake.wait_committed("trimmed")
    admin = AdminClient({"bootstrap.servers": lake.servers, **QUIET})
    for done in admin.delete_records([TopicPartition("trimmed", 0, 101)]).values():
        done.result(TIMEOUT_S)
    wait_until(lambda: lake.streams("trimmed")[0].start_offset == 101, "the topic is trimmed")
    assert len(same(lake, subscribe="trimmed")) == 499
    gone = json.dumps({"trimmed": {"0": 50, "1": -2, "2": -2}})
    with pytest.raises(PySparkException, match="begins at offset 101, wanted from 50"):
        lake.direct(subscribe="trimmed", startingOffsets=gone).count()
    assert lake.direct(subscribe="trimmed", startingOffsets=gone, failOnDataLoss="false").count() == 499
    future = json.dumps({"trimmed": dict.fromkeys("012", 5000)})
    with pytest.raises(PySparkException, match="committed end is 200"):
        lake.direct(subscribe="trimmed", endingOffsets=future).count()


def test_compaction_between_planning_and_reading(lake: Lake) -> None:
    create_topic(lake.servers, "compacted-away", PARTITIONS)
    for number in range(3):
        send(lake.servers, "compacted-away", events(300, first=number * 300))
        lake.wait_committed("compacted-away")
    expected = rows(lake.kafka(subscribe="compacted-away"))
    planned = lake.direct(subscribe="compacted-away").orderBy("topic", "partition", "offset")
    planned.rdd.getNumPartitions()  # plans, and keeps the plan
    lake.node.compact()
    assert planned.collect() == expected, "what was replaced stays readable for the delete delay"


def test_errors_name_what_is_wrong(lake: Lake) -> None:
    for options, text in (
        ({"subscribe": "nothing-there"}, "unknown topic nothing-there"),
        ({}, "give one of subscribe"),
        ({"subscribe": "mixed", "dataDir": "/nowhere"}, "no catalog in the data directory"),
        ({"assign": '{"mixed": [7]}'}, "no partition 7"),
    ):
        with pytest.raises(PySparkException, match=text):
            lake.direct(**options).count()


def test_java_reads_arrow_without_checking_each_value(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - Java's Arrow has no Python interface
    assert not jvm.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
