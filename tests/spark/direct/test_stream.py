"""The direct source as a stream with the real Spark; `test_micro_batches` tests events between batches."""

from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.direct.offsets import TopicPartition
from anabranch.spark.direct.readers import HAS_LIMITS, limit_offsets
from tests.spark.direct.conftest import Lake
from tests.support.events import QUIET, TIMEOUT_S, Event, create_topic, delete_topic, send
from tests.support.waiting import wait_until

QUERY_S = 400


def start(lake: Lake, topic: str, folder: Path, *, once: bool = True, **options: str) -> StreamingQuery:
    source = lake.spark.readStream.format("anabranch").option("dataDir", str(lake.data_dir)).option("subscribe", topic)
    writer = (
        source.options(**{"startingOffsets": "earliest", "columns": "partition,offset", **options})
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()


def run(lake: Lake, topic: str, folder: Path) -> None:
    """All there is, or the batch that was not finished."""
    query = start(lake, topic, folder)
    try:
        assert query.awaitTermination(QUERY_S), "the query did not end"
    finally:
        query.stop()


def found(lake: Lake, folder: Path) -> Counter[tuple[int, int]]:
    """Count of each partition and offset in the table."""
    if not (folder / "table" / "_spark_metadata").is_dir():
        return Counter()
    rows = lake.spark.read.schema("partition INT, offset LONG").parquet(str(folder / "table")).collect()
    return Counter((row["partition"], row["offset"]) for row in rows)


def fill(lake: Lake, topic: str, counts: list[int]) -> None:
    """Send `counts[p]` records into each partition p, and wait until all are in objects."""
    send(lake.servers, topic, [Event(at, b"v%d" % n) for at, count in enumerate(counts) for n in range(count)])
    lake.wait_committed(topic)


def once(counts: list[int]) -> Counter[tuple[int, int]]:
    """Each record once."""
    return Counter((at, offset) for at, count in enumerate(counts) for offset in range(count))


def add_partition(lake: Lake, topic: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": lake.servers, **QUIET})
    for done in admin.create_partitions([NewPartitions(topic, total)]).values():
        done.result(TIMEOUT_S)


def forget(log: Path, batch: int) -> None:
    """Take a batch's entry out of a log of Spark's; a checksum left behind would look like another query's entry."""
    (log / str(batch)).unlink()
    (log / f".{batch}.crc").unlink(missing_ok=True)


@pytest.mark.spark
@pytest.mark.interop
def test_a_stream_goes_on_from_its_checkpoint_and_over_a_batch_that_was_not_finished(
    lake: Lake, tmp_path: Path
) -> None:
    create_topic(lake.servers, "stream", 2)
    fill(lake, "stream", [100, 100])
    run(lake, "stream", tmp_path)
    assert found(lake, tmp_path) == once([100, 100])
    fill(lake, "stream", [50, 0])
    run(lake, "stream", tmp_path)
    # The state after a driver died when the sink had the second batch, before the query recorded that.
    forget(tmp_path / "checkpoint" / "commits", 1)
    add_partition(lake, "stream", 3)
    fill(lake, "stream", [0, 60, 30])
    lake.node.compact()
    for _ in range(1 if HAS_LIMITS else 2):  # before Spark 4.2 a run is one micro-batch: the old one
        run(lake, "stream", tmp_path)
    assert found(lake, tmp_path) == once([150, 160, 30])
    # And of one that dies before the sink has the last one.
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit())
    forget(tmp_path / "checkpoint" / "commits", last)
    forget(tmp_path / "table" / "_spark_metadata", last)
    assert found(lake, tmp_path) != once([150, 160, 30])
    run(lake, "stream", tmp_path)
    assert found(lake, tmp_path) == once([150, 160, 30])


@pytest.mark.spark
@pytest.mark.interop
def test_a_stream_that_runs_sees_what_is_committed_and_fails_when_its_topic_is_made_anew(
    lake: Lake, tmp_path: Path
) -> None:
    create_topic(lake.servers, "live", 1)
    fill(lake, "live", [30])
    query = start(lake, "live", tmp_path, once=False)

    def has(counts: list[int]) -> bool:
        assert query.isActive, query.exception()
        return found(lake, tmp_path) == once(counts)

    try:
        wait_until(lambda: has([30]), "[30] are in the table")
        fill(lake, "live", [60])
        wait_until(lambda: has([90]), "[90] are in the table")
        add_partition(lake, "live", 2)
        fill(lake, "live", [5, 20])
        wait_until(lambda: has([95, 20]), "[95, 20] are in the table")
        delete_topic(lake.servers, "live")
        with pytest.raises(PySparkException, match=r"unknown topic live"):
            query.awaitTermination(QUERY_S)
    finally:
        query.stop()
    create_topic(lake.servers, "live", 2)
    fill(lake, "live", [200, 200])
    again = start(lake, "live", tmp_path)
    try:
        with pytest.raises(PySparkException, match="topic live was deleted and made anew"):
            again.awaitTermination(QUERY_S)
    finally:
        again.stop()
    assert found(lake, tmp_path) == once([95, 20])


@pytest.mark.skipif(HAS_LIMITS, reason="this Spark limits micro-batches")
@pytest.mark.spark
@pytest.mark.interop
def test_a_limit_that_this_spark_cannot_keep_is_refused(lake: Lake, tmp_path: Path) -> None:
    query = start(lake, "mixed", tmp_path, maxOffsetsPerTrigger="10")
    try:
        with pytest.raises(PySparkException, match=r"maxOffsetsPerTrigger needs Spark 4\.2"):
            query.awaitTermination(QUERY_S)
    finally:
        query.stop()


def test_a_limit_is_shared_and_every_partition_moves() -> None:
    one, two, three = (TopicPartition("t", index) for index in range(3))
    latest = {one: 1000, two: 110, three: 7}
    found = limit_offsets({one: 0, two: 100, three: 7}, latest, 101)
    assert found == {one: 100, two: 101, three: 7}
    assert limit_offsets(found, latest, 10_000) == latest
