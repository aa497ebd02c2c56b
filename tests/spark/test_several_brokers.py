"""Spark's Kafka source and a pipeline on a cluster, of which a node is killed and another one stopped in the middle."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.pipeline.run import RunningPipeline, start_pipeline
from anabranch.spark.pipeline.tables import open_tables
from benchmarks.lab.cluster import bootstrap, leaders, nodes_on
from tests.spark.pipeline.support import every_offset_once, make_pipeline, need, numbered, offsets
from tests.support.events import create_topic, send
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

TOPIC = "several-brokers"
SOON = {"kafka.default.api.timeout.ms": "10000", "kafka.request.timeout.ms": "10000"}
"""Java's admin client waits that long for a node that has died, by default for a minute. The driver then asks again."""
PART = 120
"""Records sent before the kill, after it, and after the stop."""
PER_BATCH = 40


@pytest.fixture
def nodes() -> Iterator[Sequence[NodeProcess]]:
    """Three nodes, each of which leads one partition of the topic."""
    with nodes_on(None, 3, wal_capacity_bytes=64 << 20, topic_replication_factor=3) as running:
        create_topic(bootstrap(running), TOPIC, 3)
        assert sorted(leaders(running, TOPIC)) == [1, 2, 3]
        yield running


def test_each_record_is_there_once_over_a_node_that_is_killed_and_one_that_is_stopped(
    spark: SparkSession, nodes: Sequence[NodeProcess], tmp_path: Path
) -> None:
    need("iceberg")
    servers = bootstrap(nodes)
    read: list[tuple[int, int, int]] = []

    def collect(batch: DataFrame, _number: int) -> None:
        read.extend((row["partition"], row["offset"], json.loads(row["value"])["n"]) for row in batch.collect())

    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", TOPIC)
    source = source.options(**SOON, startingOffsets="earliest", maxOffsetsPerTrigger=str(PER_BATCH))
    pipeline = make_pipeline(
        servers,
        tmp_path,
        TOPIC,
        source={"offsets_per_batch_max": PER_BATCH, "options": SOON},
        trigger={"mode": "processing-time", "interval": "0 seconds"},
    )
    send(servers, TOPIC, numbered(0, PART))
    query = source.load().writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "source"))
    plain = query.start()
    running = start_pipeline(spark, pipeline)
    try:
        wait_for_batches(running, plain, read, 1)
        nodes[0].kill9()
        assert batches_of(running) < PART // PER_BATCH, "it was killed in the middle"
        send(servers, TOPIC, numbered(PART, 2 * PART), **{"enable.idempotence": True})
        assert 1 not in leaders(nodes[1:], TOPIC)
        wait_for_batches(running, plain, read, PART // PER_BATCH + 1)
        nodes[0].start()
        assert nodes[1].terminate() == 0
        send(servers, TOPIC, numbered(2 * PART, 3 * PART), **{"enable.idempotence": True})
        for each in (plain, running.query):
            each.processAllAvailable()
    finally:
        plain.stop()
        running.stop()
    running.finish()
    assert Counter(read) == Counter((n % 3, n // 3, n) for n in range(3 * PART))
    table, _ = open_tables(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(3 * PART)
    assert Counter(row["n"] for row in table.read().select("data.n").collect()) == Counter(range(3 * PART))


def wait_for_batches(running: RunningPipeline, plain: StreamingQuery, read: Sequence[object], count: int) -> None:
    """Wait until both queries have done so many micro-batches."""

    def done() -> bool:
        for query in (plain, running.query):
            assert query.isActive, query.exception()
        return len(read) >= count * PER_BATCH and batches_of(running) >= count

    wait_until(done, f"{count} micro-batches are done")


def batches_of(running: RunningPipeline) -> int:
    """Return the number of micro-batches that a pipeline has done."""
    progress = running.query.lastProgress
    return 0 if progress is None else int(progress["batchId"]) + 1
