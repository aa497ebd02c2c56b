"""The sink with the real Spark: each row is in the topic once, whatever dies, and in order by key."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark import SparkStageInfo, StatusTracker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.client.partitioner import partition_of_key
from anabranch.client.transactional import ProducerIdentity, TransactionalProducer
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record
from anabranch.spark.kafka_sink import BATCH_BYTES_MAX, AnotherQuery, ExactlyOnceSink, SinkError, _write_rows
from tests.spark.pipeline.support import WAIT_S, forget_last_commit, numbered
from tests.support.events import committed_records, create_topic, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

Row = tuple[int, bytes | None, bytes | None]


def options(servers: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers}


def copy(
    spark: SparkSession,
    servers: str,
    source: str,
    checkpoint: Path,
    sink: Callable[[DataFrame, int], None],
    per_batch: int = 30,
) -> None:
    """Run a query over all that is in the source now, in micro-batches."""
    records = spark.readStream.format("kafka").options(**options(servers)).option("subscribe", source)
    records = records.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", str(per_batch))
    records = records.option("includeHeaders", "true")
    query = (
        records.load().select("key", "value", "headers").writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(WAIT_S), "the query did not end"
    finally:
        query.stop()


def test_a_copy_through_crashes_is_exact(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    target = f"{topic}-copy"
    create_topic(servers, target, 3)
    send(servers, topic, numbered(0, 90))
    checkpoint = tmp_path / "checkpoint"
    copy(spark, servers, topic, checkpoint, ExactlyOnceSink(options(servers), target))
    for end in (150, 160):
        # The driver died between the transaction's end and Spark's own commit: the micro-batch is repeated.
        forget_last_commit(checkpoint)
        send(servers, topic, numbered(end - 60 if end == 150 else 150, end))
        copy(spark, servers, topic, checkpoint, ExactlyOnceSink(options(servers), target, compression=Compression.ZSTD))
    rows = committed_records(servers, target)
    assert Counter(json.loads(value or b"")["n"] for _, _, value in rows) == Counter(range(160))
    assert all(partition == partition_of_key(key or b"", 3) for partition, key, _ in rows)


def test_a_task_that_fails_costs_a_transaction_and_not_a_row(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    target = topic
    mark = tmp_path / "failed"

    def fail_once(n: int) -> int:
        if n == 70 and not mark.exists():
            mark.touch()
            raise ValueError("a task dies here")
        return n

    rows = spark.range(0, 90, 1, 3).select(
        f.udf(fail_once, "BIGINT", useArrow=False)("id").cast("string").alias("value")
    )
    sink = ExactlyOnceSink(options(servers), target, name=f"{topic}-sink")
    sink(rows, 0)
    assert mark.exists()
    values = [int(value or b"") for _, _, value in committed_records(servers, target)]
    assert sorted(values) == list(range(90))
    sink(rows, 0)
    assert len(committed_records(servers, target)) == 90, "a repeated micro-batch adds nothing"


def test_a_driver_with_a_successor_writes_nothing_more(spark: SparkSession, servers: str, topic: str) -> None:
    target = topic
    rows = spark.range(10).select(f.col("id").cast("string").alias("value"))
    first, second = (ExactlyOnceSink(options(servers), target, name=f"{topic}-sink") for _ in range(2))
    first(rows, 0)
    second(rows, 1)
    with pytest.raises(AnotherQuery, match="another process has begun with the transactional id"):
        first(rows, 2)
    second(rows, 2)
    assert len(committed_records(servers, target)) == 30


def test_a_new_checkpoint_with_an_old_name_is_refused(spark: SparkSession, servers: str, topic: str) -> None:
    rows = spark.range(10).select(f.col("id").cast("string").alias("value"))
    sink = ExactlyOnceSink(options(servers), topic, name=f"{topic}-sink")
    for batch_id in range(3):
        sink(rows, batch_id)
    with pytest.raises(SinkError, match=f"{topic}-sink: micro-batch 1 follows 2, which is written: .* another name"):
        ExactlyOnceSink(options(servers), topic, name=f"{topic}-sink")(rows, 1)
    sink = ExactlyOnceSink(options(servers), topic, name=f"{topic}-sink")
    sink(rows, 2)
    sink(rows, 3)
    assert len(committed_records(servers, topic)) == 40


def test_a_stage_that_spark_repeated_costs_a_transaction(
    spark: SparkSession, servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(10).select(f.col("id").cast("string").alias("value"))
    attempts: list[int] = []
    find = StatusTracker.getStageInfo

    def repeated_once(self: StatusTracker, stage: int) -> SparkStageInfo | None:
        info = find(self, stage)
        assert info is not None
        attempts.append(info.currentAttemptId)
        return info._replace(currentAttemptId=1) if len(attempts) == 1 else info

    monkeypatch.setattr(StatusTracker, "getStageInfo", repeated_once)
    ExactlyOnceSink(options(servers), topic, name=f"{topic}-sink")(rows, 0)
    assert attempts == [0, 0]
    assert sorted(int(value or b"") for _, _, value in committed_records(servers, topic)) == list(range(10))


def test_attempts_at_a_partition_differ_in_their_first_batch() -> None:
    """A broker would take a batch with the numbers of a former attempt's for a repeat of it, and drop its records."""

    def sizes(records: Sequence[bytes], first: int) -> list[list[int]]:
        sent: list[list[int]] = []

        class Broker:
            def add_partitions(self, *_: object) -> None:
                pass

            def produce(self, _i: object, _p: object, some: Sequence[Record], sequence: int, _c: object) -> None:
                assert sequence == sum(map(len, sent))
                sent.append([len(each.value or b"") for each in some])

        columns = {"_partition": [0] * len(records), "key": [None] * len(records), "value": list(records)}
        batch = pa.RecordBatch.from_pydict({**columns, "headers": pa.nulls(len(records))})
        identity = ProducerIdentity("id", 1, 1)
        broker = cast("TransactionalProducer", Broker())
        _write_rows(broker, "t", identity, Compression.NONE, [batch], first)
        assert sum(map(len, sent)) == len(records)
        return sent

    small, large = [b"x" * 10] * 25_000, [b"x" * 20_000] * 100
    assert [len(each) for each in sizes(small, 5)] == [5, 10_000, 10_000, 4_995]
    assert [len(each) for each in sizes(small, 6)] == [6, 10_000, 10_000, 4_994]
    assert len(sizes(large, 20)[0]) < len(sizes(large, 40)[0]) < len(sizes(large, 80)[0])
    assert all(sum(each) <= BATCH_BYTES_MAX for each in sizes(large, 80))
    # One that is larger is a batch of its own.
    assert sizes([b"x" * 500_000, b"x" * 900_000, b"y"], 97) == [[500_000], [900_000], [1]]


def test_a_fence_in_the_middle_of_a_micro_batch(
    spark: SparkSession, servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = topic
    rows = spark.range(10).select(f.col("id").cast("string").alias("value"))
    first, second = (ExactlyOnceSink(options(servers), target, name=f"{topic}-sink") for _ in range(2))
    commit_offsets = TransactionalProducer.commit_offsets

    def sleep_through_it(*arguments: object) -> None:
        """The first driver is suspended before it commits, and the second one repeats its micro-batch."""
        monkeypatch.setattr(TransactionalProducer, "commit_offsets", commit_offsets)
        second(rows, 0)
        commit_offsets(*arguments)  # type: ignore[arg-type]  # as they were

    monkeypatch.setattr(TransactionalProducer, "commit_offsets", sleep_through_it)
    with pytest.raises(AnotherQuery):
        first(rows, 0)
    assert len(committed_records(servers, target)) == 10


def test_what_cannot_be_written_is_said(spark: SparkSession, servers: str, topic: str) -> None:
    rows = spark.range(1).select(f.col("id").cast("string").alias("value"))

    def failed(sink: ExactlyOnceSink, some: DataFrame = rows) -> str:
        with pytest.raises(SinkError) as caught:
            sink(some, 0)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    given = options(servers)
    assert failed(ExactlyOnceSink(given, "none-such", name="s")) == "s: micro-batch 0: topic none-such does not exist"
    assert "cannot connect to 127.0.0.1:1" in failed(ExactlyOnceSink(options("127.0.0.1:1"), topic, name="s"))
    assert failed(ExactlyOnceSink({}, topic, name="s")) == "the option kafka.bootstrap.servers is not set"
    assert failed(ExactlyOnceSink(given, topic)).startswith("the sink has no name")
    assert failed(ExactlyOnceSink(given, topic, name="s"), rows.select(f.col("value").alias("v"))) == (
        "the rows have no column `value`; they have v"
    )
    too_long = failed(ExactlyOnceSink(given, topic, name="s", timeout_ms=1 << 30))
    assert too_long.startswith("s: micro-batch 0: transactional id s: INVALID_TRANSACTION_TIMEOUT")
