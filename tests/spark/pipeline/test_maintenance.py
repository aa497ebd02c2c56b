"""Maintenance of tables: what expires, what stays, and that a micro-batch is never there twice because of it."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError
from anabranch.spark.pipeline.iceberg import PROGRESS, IcebergTable
from anabranch.spark.pipeline.maintenance import Maintenance, maintain_now
from anabranch.spark.pipeline.retention import Retention
from anabranch.spark.pipeline.sections import MaintenanceSection
from anabranch.spark.pipeline.tables import LakehouseTable, open_tables
from tests.spark.pipeline.support import (
    FORMATS,
    every_offset_once,
    forget_last_commit,
    make_pipeline,
    need,
    numbered,
    offsets,
    run,
)
from tests.support.events import send

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AT_ONCE = Retention(timedelta(0), 1, 1_000, timedelta(days=3))
WEEK_S = 7 * 86_400


def iceberg(spark: SparkSession, folder: Path, topic: str) -> IcebergTable:
    need("iceberg")
    table, _ = open_tables(spark, make_pipeline("127.0.0.1:1", folder, topic, table={"partition_by": "none"}))
    assert isinstance(table, IcebergTable)
    return table


def append(table: LakehouseTable, spark: SparkSession, query_id: str, *batches: int) -> None:
    """Append a row with each micro-batch's number."""
    for batch_id in batches:
        table.append(spark.createDataFrame([(batch_id,)], "n INT"), query_id, batch_id)


def rows(table: LakehouseTable) -> list[int]:
    return sorted(row["n"] for row in table.read().collect())


def old_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(b"left by a task that died")
    os.utime(path, (path.stat().st_atime - WEEK_S, path.stat().st_mtime - WEEK_S))
    return path


@pytest.mark.interop
def test_a_repeated_micro_batch_whose_snapshot_has_expired_is_not_there_twice(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    need("iceberg")
    pipeline = make_pipeline(servers, tmp_path, topic, table={"partition_by": "none"})
    send(servers, topic, numbered(0, 99))
    run(spark, pipeline)
    table, _ = open_tables(spark, pipeline)
    assert isinstance(table, IcebergTable)
    # Somebody else's snapshot is the newest one, and the driver has died before Spark's own commit.
    table.load().newAppend().commit()
    forget_last_commit(Path(pipeline.checkpoint))
    assert table.expire(AT_ONCE, None) == "1 snapshots expired"
    run(spark, pipeline)
    assert offsets(table.read()) == every_offset_once(99)


def test_metadata_files_and_snapshots_stay_bounded(spark: SparkSession, tmp_path: Path) -> None:
    table = iceberg(spark, tmp_path, "bounded")
    append(table, spark, "q", 0, 1)
    metadata = next((tmp_path / "lake").rglob("metadata"))
    table.load().updateProperties().set("write.metadata.previous-versions-max", "3").commit()
    sizes = []
    for batch_id in range(2, 12):
        append(table, spark, "q", batch_id)
        table.expire(AT_ONCE, "q")
        newest = max(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].partition(".")[0]))
        sizes.append((len(list(metadata.glob("v*.metadata.json"))), newest.stat().st_size // 500))
    assert sizes[3:] == [sizes[3]] * (len(sizes) - 3), "files of metadata, and the size of the newest"
    assert table.load().snapshots().size() == 1
    assert len(list(metadata.glob("snap-*.avro"))) == 1
    assert rows(table) == list(range(12))
    assert table.committed("q") == 11


def test_young_snapshots_expire_when_there_are_many(spark: SparkSession, tmp_path: Path) -> None:
    table = iceberg(spark, tmp_path, "many")
    append(table, spark, "q", *range(5))
    newest = [each.snapshotId() for each in table.load().snapshots()][-3:]
    assert table.expire(Retention(timedelta(days=5), 1, 3, timedelta(days=3)), "q") == "2 snapshots expired"
    assert [each.snapshotId() for each in table.load().snapshots()] == newest
    assert table.expire(Retention(timedelta(days=5), 1, 3, timedelta(days=3)), "q") == "0 snapshots expired"
    assert rows(table) == list(range(5))


def test_a_driver_that_sleeps_through_an_expiry_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    table = iceberg(spark, tmp_path, "sleeper")
    append(table, spark, "q", 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(IcebergTable, "publish", lambda *_: None)
        append(table, spark, "q", 1)  # a driver stages, and sleeps
    append(table, spark, "q", 1, 2)
    table.load().newAppend().commit()  # somebody else's snapshot is the only one that stays
    table.expire(AT_ONCE, "q")
    with pytest.raises(AnotherDriver):
        table.publish("q", 1)  # it wakes up
    with pytest.raises(AnotherDriver):
        append(table, spark, "q", 1)  # another one had not staged yet
    assert rows(table) == [0, 1, 2]
    with pytest.raises(PipelineError, match="was not staged"):
        table.publish("q", 3)


def test_a_table_of_an_earlier_version_keeps_its_progress(spark: SparkSession, tmp_path: Path) -> None:
    table = iceberg(spark, tmp_path, "earlier")
    append(table, spark, "q", 0, 1)
    table.load().updateProperties().remove(PROGRESS + "q").commit()
    table.load().newAppend().commit()
    assert table.committed("q") == 1
    table.expire(AT_ONCE, "q")
    assert table.committed("q") == 1


def test_many_manifests_are_rewritten(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = iceberg(spark, tmp_path, "manifests")
    append(table, spark, "q", *range(4))
    monkeypatch.setattr("anabranch.spark.pipeline.iceberg.MANIFESTS_MAX", 3)
    assert table.expire(AT_ONCE, "q").endswith(", 4 manifests rewritten")
    assert len(spark.table(f"{table.name}.manifests").collect()) == 1
    assert rows(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_orphans_are_deleted_when_they_are_old(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    need(table_format)
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "orphans", table_format, table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    append(table, spark, "q", 0, 1)
    data = next(tmp_path.rglob("*.parquet")).parent
    old, new = old_file(data, "old.parquet"), data / "new.parquet"
    new.touch()
    retention = Retention.of(MaintenanceSection())
    table.expire(retention, "q")
    words = "orphan files deleted" if table_format == "iceberg" else "replaced or orphan files deleted"
    spark.sparkContext.setJobGroup(tmp_path.name, "orphans")
    assert table.remove_orphans(retention) == f"1 {words}"
    if table_format == "delta":  # whose own default is 100,000 tasks; Iceberg's jobs have groups of its own
        tracker = spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(tmp_path.name)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        assert 0 < sum(stage.numTasks for stage in stages if stage is not None) < 1_000
    assert (old.exists(), new.exists()) == (False, True)
    assert rows(table) == [0, 1]


def test_delta_is_told_how_long_to_keep_its_log(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "log", "delta", table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    retention = Retention.of(MaintenanceSection())
    assert table.expire(retention, "q") == "nothing to do"
    append(table, spark, "q", 0)
    assert table.expire(retention, "q") == "log and replaced files are kept for 432000 seconds"
    assert table.expire(retention, "q") == "Delta shortens its log itself"


def test_maintenance_is_due_after_its_interval_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    class Table:
        place = "t"

        def expire(self, *_: object) -> str:
            return "expired"

        def remove_orphans(self, *_: object) -> str:
            return "orphans removed"

    checkpoint = tmp_path / "checkpoint"

    def run_due(**settings: object) -> list[str]:
        section = MaintenanceSection.model_validate(settings)
        return list(Maintenance(spark, str(checkpoint), section, [Table()]).run_due("q"))  # type: ignore[list-item] # a part

    def turn_back(name: str, microseconds: int) -> None:
        path = checkpoint / "anabranch-maintenance" / name
        path.with_name(f".{name}.crc").unlink()
        path.write_text(str(int(path.read_text()) - microseconds))

    assert run_due() == run_due() == [], "a new pipeline has nothing to drop"
    turn_back("expired", 3600 * 1_000_000)
    assert run_due(enabled=False) == []
    assert run_due() == ["t: expired"]
    assert run_due() == []
    turn_back("orphans-removed", 86_400 * 1_000_000)
    assert run_due(orphan_interval="2 days") == []
    assert run_due() == ["t: orphans removed"]


@FORMATS
def test_maintenance_on_request(
    spark: SparkSession, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(table_format)
    files_min = {"files_min": 2} if table_format == "iceberg" else {}
    pipeline = make_pipeline(
        "127.0.0.1:1", tmp_path, "asked", table_format,
        table={"partition_by": "none"}, compaction={"batches": 0, **files_min},
    )  # fmt: skip
    table, _ = open_tables(spark, pipeline)
    with pytest.raises(PipelineError, match="does not exist; ingest creates it"):
        list(maintain_now(spark, pipeline))
    append(table, spark, "q", 0, 1, 2)
    checkpoint = Path(pipeline.checkpoint)
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text(json.dumps({"id": "q"}))
    lines = list(maintain_now(spark, pipeline))
    assert lines[0] == f"{table.place}: 3 small files rewritten"
    assert [line.partition(": ")[0] for line in lines] == [table.place] * 3, "there are no dead letters"
    assert rows(table) == [0, 1, 2]
    assert table.committed("q") == 2
    assert not list(Maintenance(spark, pipeline.checkpoint, pipeline.maintenance, [table]).run_due("q"))
