"""Deletions of tables with keys: how long they are remembered, whatever order partitions are read in."""

import json
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.pipeline.changes import DELETED, newest_of_each_key
from anabranch.spark.pipeline.deletions import FOLDER, DeletionStore
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import JANUARY_MS, forget_last_commit, make_pipeline, run
from tests.support.events import Event, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

Record = tuple[str, int, int, int, bool]
"""Key, partition, offset, seconds, and whether it deletes its row."""
OLD_S = 1_357_000_000


class Micro:
    """Takes micro-batches of a topic with partitions 0 and 1 as a pipeline does."""

    def __init__(self, spark: SparkSession, checkpoint: Path) -> None:
        self._spark, self._checkpoint = spark, checkpoint
        (checkpoint / "offsets").mkdir(parents=True)

    def batch(self, number: int, ends: tuple[int, int], *records: Record, topic: str = "t") -> set[tuple[str, int]]:
        """Keys and times of what is merged."""
        offsets = json.dumps({topic: {str(partition): end for partition, end in enumerate(ends)}})
        (self._checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{offsets}")
        found = self._rows(topic, records)
        store = DeletionStore(self._spark, str(self._checkpoint))  # a driver may have died before
        newest = newest_of_each_key(found)
        kept = store.without_older(newest, number).collect()
        store.write(newest, found, number, deletes=any(record[4] for record in records))
        return {(row["key"], int(row["timestamp"].timestamp())) for row in kept}

    def remembered(self, number: int) -> bool:
        return (self._checkpoint / FOLDER / str(number)).exists()

    def _rows(self, topic: str, records: tuple[Record, ...]) -> DataFrame:
        found = self._spark.createDataFrame(
            list(records), "key STRING, partition INT, offset BIGINT, at BIGINT, deleted BOOLEAN"
        )
        columns = ["partition", "offset", "timestamp_seconds(at) AS timestamp", "key", f"deleted AS {DELETED}"]
        return found.selectExpr(f"'{topic}' AS topic", *columns)


def test_a_deletion_is_known_until_each_partition_has_passed_its_time(spark: SparkSession, tmp_path: Path) -> None:
    micro, t = Micro(spark, tmp_path / "checkpoint"), OLD_S
    assert micro.batch(0, (1, 1), ("a", 1, 0, t, True), ("b", 0, 0, t - 100, False)) == {("a", t), ("b", t - 100)}
    older, newer = ("a", 0, 1, t - 50, False), ("c", 0, 2, t - 40, False)
    for _ in range(2):  # as often as a driver dies
        assert micro.batch(1, (3, 1), older, newer) == {("c", t - 40)}
    # Partition 0 has nothing to read, and partition 1 may have records of clocks that differ.
    assert micro.batch(2, (3, 2), ("d", 1, 1, t + 10, False)) == {("d", t + 10)}
    assert micro.batch(3, (4, 2), ("a", 0, 3, t - 30, False)) == set()
    assert micro.remembered(3)
    assert micro.batch(4, (4, 3), ("e", 1, 2, t + 1_000, False)) == {("e", t + 1_000)}
    assert not micro.remembered(4)
    # What is newer than a deletion was never held back.
    assert micro.batch(5, (5, 3), ("a", 0, 4, t + 2_000, False)) == {("a", t + 2_000)}
    assert micro.batch(6, (5, 4), ("f", 1, 3, t + 2_000, False)) == {("f", t + 2_000)}
    assert [path.name for path in (tmp_path / "checkpoint" / FOLDER).iterdir() if path.name[0] != "."] == []


def test_a_partition_with_nothing_to_read_may_have_records_of_an_open_transaction(
    spark: SparkSession, tmp_path: Path
) -> None:
    micro, now = Micro(spark, tmp_path / "checkpoint"), int(time.time())
    micro.batch(0, (1, 1), ("a", 1, 0, now, True), ("b", 0, 0, now, False))
    micro.batch(1, (1, 2), ("c", 1, 1, now + 1_000, False))
    assert micro.batch(2, (2, 2), ("a", 0, 1, now - 1, False)) == set()
    # It has passed the time itself; the other one has, too.
    micro.batch(3, (3, 2), ("d", 0, 2, now + 1_000, False))
    assert not micro.remembered(3)


def test_the_deletion_of_a_topic_that_is_gone_is_forgotten(spark: SparkSession, tmp_path: Path) -> None:
    micro = Micro(spark, tmp_path / "checkpoint")
    micro.batch(0, (1, 1), ("a", 1, 0, OLD_S, True))
    micro.batch(1, (1, 0), ("a", 0, 0, OLD_S, False), topic="other")
    assert not micro.remembered(1)


def test_a_deleted_key_does_not_come_back_from_a_partition_that_is_read_later(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    """The topic had one partition, with a backlog, and the key's later records are in a new one."""

    def record(key: str, partition: int, at: int, content: bytes | None = b'{"n":1}') -> Event:
        return Event(partition, content, key.encode(), JANUARY_MS + at)

    backlog = [record(f"k{n}", 0, n) for n in range(6)]
    send(servers, topic, [*backlog, record("gone", 0, 50), record("back", 0, 51), record("last", 0, 52)])
    send(servers, topic, [record("gone", 1, 100, None), record("back", 1, 100, None), record("back", 1, 101)])
    key = {"format": "text"}
    source = {"offsets_per_batch_max": 4}
    pipeline = make_pipeline(servers, tmp_path, topic, table={"mode": "upsert"}, key=key, source=source)
    run(spark, pipeline)
    # A driver that died after a commit of the table, and another run.
    forget_last_commit(Path(pipeline.checkpoint))
    send(servers, topic, [record("gone", 0, 60)])
    run(spark, pipeline)
    found = [(row["key"], row["partition"]) for row in open_tables(spark, pipeline)[0].read().collect()]
    assert sorted(found) == sorted([*((f"k{n}", 0) for n in range(6)), ("back", 1), ("last", 0)])
