"""The direct source as a stream: micro-batches by committed offset, from a checkpoint on."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from spark.direct.offsets import TopicPartition
from spark.direct.readers import HAS_LIMITS, limit_offsets
from tests.spark.direct.conftest import Lake
from tests.support.events import Event

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
