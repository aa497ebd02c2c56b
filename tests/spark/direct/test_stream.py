"""The direct source as a stream: micro-batches by committed offset, from a checkpoint on."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from spark.direct.offsets import TopicPartition
from spark.direct.readers import HAS_LIMITS, limit_offsets
from tests.spark.direct.conftest import Lake
from tests.support.events import Event, create_topic, delete_topic, send

PARTITIONS = 3


def numbered(first: int, count: int) -> list[Event]:
    return [Event(n % PARTITIONS, b"%d" % n) for n in range(first, first + count)]


def start(lake: Lake, topic: str, folder: Path, *, once: bool = True, **options: str) -> StreamingQuery:
    source = lake.spark.readStream.format("anabranch").option("dataDir", str(lake.data_dir)).option("subscribe", topic)
    writer = (
        source.options(startingOffsets="earliest", **options)
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS INT) AS n")
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()


def run(lake: Lake, topic: str, folder: Path) -> None:
    query = start(lake, topic, folder)
    try:
        assert query.awaitTermination(100), "the query did not end"
    finally:
        query.stop()


def numbers(lake: Lake, folder: Path) -> Counter[int]:
    return Counter(row["n"] for row in lake.spark.read.parquet(str(folder / "table")).collect())


@pytest.mark.spark
@pytest.mark.interop
def test_a_stream_goes_on_from_its_checkpoint_and_over_a_batch_that_was_not_finished(
    lake: Lake, tmp_path: Path
) -> None:
    create_topic(lake.servers, "stream", PARTITIONS)
    send(lake.servers, "stream", numbered(0, 300))
    lake.wait_committed("stream")
    run(lake, "stream", tmp_path)
    assert numbers(lake, tmp_path) == Counter(range(300))
    # What a driver leaves that dies between the sink's commit and the query's own.
    for commit in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        commit.unlink()
    send(lake.servers, "stream", numbered(300, 300))
    lake.wait_committed("stream")
    run(lake, "stream", tmp_path)
    assert numbers(lake, tmp_path) == Counter(range(600))


@pytest.mark.spark
@pytest.mark.interop
def test_a_stream_that_runs_sees_what_is_committed_and_fails_when_its_topic_is_made_anew(
    lake: Lake, tmp_path: Path
) -> None:
    create_topic(lake.servers, "live", PARTITIONS)
    send(lake.servers, "live", numbered(0, 30))
    query = start(lake, "live", tmp_path, once=False)
    try:
        lake.wait(lambda: (tmp_path / "table" / "_spark_metadata").is_dir() and numbers(lake, tmp_path).total() == 30)
        send(lake.servers, "live", numbered(30, 60))
        lake.wait(lambda: numbers(lake, tmp_path) == Counter(range(90)))
        delete_topic(lake.servers, "live")
        with pytest.raises(PySparkException, match=r"there is no topic live|was deleted"):
            query.awaitTermination(100)
    finally:
        query.stop()


@pytest.mark.skipif(HAS_LIMITS, reason="this Spark limits micro-batches")
@pytest.mark.spark
@pytest.mark.interop
def test_a_limit_that_this_spark_cannot_keep_is_refused(lake: Lake, tmp_path: Path) -> None:
    query = start(lake, "mixed", tmp_path, maxOffsetsPerTrigger="10")
    try:
        with pytest.raises(PySparkException, match=r"maxOffsetsPerTrigger needs Spark 4\.2"):
            query.awaitTermination(100)
    finally:
        query.stop()


def test_a_limit_is_shared_and_every_partition_moves() -> None:
    one, two, three = (TopicPartition("t", index) for index in range(3))
    latest = {one: 1000, two: 110, three: 7}
    found = limit_offsets({one: 0, two: 100, three: 7}, latest, 101)
    assert found == {one: 100, two: 101, three: 7}
    assert limit_offsets(found, latest, 10_000) == latest
