"""Maintenance of a pipeline's tables: old snapshots expire, and files without a reference are deleted.

It runs between micro-batches, after their commits, so that a pipeline never commits beside itself. The times of the
last runs are next to the checkpoint's own files: a pipeline that a timer starts for a minute an hour is maintained too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.files import HadoopFolder, query_id_of
from anabranch.spark.pipeline.retention import Retention
from anabranch.spark.pipeline.sections import MaintenanceSection
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import LakehouseTable, open_tables
from anabranch.spark.pipeline.topics import known_topics
from anabranch.spark.pipeline.watermark import duration_us

FOLDER = "anabranch-maintenance"
EXPIRED, ORPHANS_REMOVED = "expired", "orphans-removed"


@dataclass(slots=True)
class Maintenance:
    """Work on the tables of a pipeline, and the times when it was done last."""

    spark: SparkSession
    checkpoint: str
    section: MaintenanceSection
    tables: Sequence[LakehouseTable]

    def run_due(self, query_id: str) -> Iterator[str]:
        """Do what is due, if anything. Yields a line for each table and what was done. Raises what Spark raises."""
        if not self.section.enabled:
            return
        if self._is_due(EXPIRED, self.section.interval):
            yield from self.expire(query_id)
        if self._is_due(ORPHANS_REMOVED, self.section.orphan_interval):
            yield from self.remove_orphans()

    def expire(self, query_id: str | None) -> Iterator[str]:
        """Expire snapshots now. Yields a line for each table."""
        retention = Retention.of(self.section)
        for table in self.tables:
            yield f"{table.place}: {table.expire(retention, query_id)}"
        self._note(EXPIRED)

    def remove_orphans(self) -> Iterator[str]:
        """Delete files without a reference now. Yields a line for each table."""
        retention = Retention.of(self.section)
        for table in self.tables:
            yield f"{table.place}: {table.remove_orphans(retention)}"
        self._note(ORPHANS_REMOVED)

    def _is_due(self, name: str, interval: str) -> bool:
        text = self._folder.read(name)
        if text is None or not text.isdigit():  # a new pipeline has nothing to drop yet
            self._note(name)
            return False
        return _now_us() >= int(text) + duration_us(interval)

    def _note(self, name: str) -> None:
        self._folder.write(name, str(_now_us()))

    @property
    def _folder(self) -> HadoopFolder:
        return HadoopFolder(self.spark, f"{self.checkpoint.rstrip('/')}/{FOLDER}")


def maintain_now(spark: SparkSession, pipeline: PipelineSettings) -> Iterator[str]:
    """Rewrite small files, expire snapshots and delete orphans. Yields a line for each.

    Raises PipelineError when there is no table, and what Spark raises.
    """
    owners = [pipeline.for_topic(topic) for topic in known_topics(spark, pipeline)]
    tables = [table for own in owners for table in open_tables(spark, own) if table.exists()]
    if not tables:
        raise PipelineError(f"{pipeline.table.place} does not exist; ingest creates it")
    for table in tables:
        yield f"{table.place}: {table.compact():,} small files rewritten"
    maintenance = Maintenance(spark, pipeline.checkpoint, pipeline.maintenance, tables)
    yield from maintenance.expire(query_id_of(spark, pipeline.checkpoint))
    yield from maintenance.remove_orphans()


def _now_us() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000_000)
