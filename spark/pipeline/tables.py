"""Tables that a pipeline appends to, each micro-batch exactly once.

Every commit carries the query's id, which is stored in the checkpoint, and the number of the micro-batch. Spark repeats
only the last micro-batch, with the same records. A table that already has its number is not changed. In Iceberg both
are in the snapshot's summary, and rewrites of small files carry them on. In Delta they are the transaction's
identifier.

Two drivers may process the same micro-batch at the same time, when one was wrongly considered dead or was started
twice. So the commit itself checks the number again. Delta does that. Iceberg's append does not, so it is staged first
(write, audit, publish): Iceberg publishes a snapshot only if none with its name has been published before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import partitioning

from spark.pipeline.errors import PipelineError, SettingError
from spark.pipeline.settings import PartitionPeriod, PipelineSettings

QUERY_ID = "anabranch.query-id"
BATCH_ID = "anabranch.batch-id"
STAGE_ID = "spark.wap.id"
"""Setting of a session. An append gets this name and is not published."""
STAGING = "write.wap.enabled"
"""Property of a table. Appends of sessions with a stage id are staged."""
PUBLISHED_BEFORE = frozenset({"DuplicateWAPCommitException", "CherrypickAncestorCommitException"})
"""Iceberg's errors for the second of two snapshots of one name, and for the same one again."""
TRANSFORMS = {
    PartitionPeriod.HOUR: partitioning.hours,
    PartitionPeriod.DAY: partitioning.days,
    PartitionPeriod.MONTH: partitioning.months,
}


class AnotherDriver(PipelineError):
    """Another driver has committed the same micro-batch to the table."""


class LakehouseTable(Protocol):
    """A table of Iceberg or Delta."""

    def committed(self, query_id: str) -> int:
        """Return the number of the last micro-batch of a query in the table, or -1."""

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Append a micro-batch in one commit. New columns of `rows` become columns of the table."""

    def compact(self, query_id: str) -> int:
        """Rewrite small files into large ones. Returns the number of files rewritten."""

    def read(self) -> DataFrame:
        """Return the whole table."""


@dataclass(slots=True)
class IcebergTable:
    """A table in an Iceberg catalog."""

    spark: SparkSession
    name: str
    time_column: str
    period: PartitionPeriod
    target_file_bytes: int
    files_min: int
    properties: Mapping[str, str] = field(default_factory=dict)
    _is_there: bool = False

    def committed(self, query_id: str) -> int:
        """Return the number of the last micro-batch of a query in the table, or -1.

        Looks back from the current snapshot to the newest append of the query.
        """
        if not self._exists():
            return -1
        table = self.load()
        snapshot = table.currentSnapshot()
        newest = -1
        while snapshot is not None:
            batch_id = _batch_of(snapshot.summary(), query_id)
            newest = max(newest, batch_id)
            # A rewrite carries the number from when it began. Another driver may have appended since.
            if batch_id >= 0 and snapshot.operation() == "append":
                break
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return newest

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Append one snapshot with the identifiers in its summary. Raises AnotherDriver."""
        if not self._exists():
            self._create(rows)
        self._allow_staging()
        writer = rows.writeTo(self.name).option("mergeSchema", "true").option("check-ordering", "false")
        for key, value in ((QUERY_ID, query_id), (BATCH_ID, str(batch_id))):
            writer = writer.option(f"snapshot-property.{key}", value)
        # The micro-batch's own session, which no other write uses.
        settings = rows.sparkSession.conf
        settings.set(STAGE_ID, _stage_id(query_id, batch_id))
        try:
            writer.append()
        finally:
            settings.unset(STAGE_ID)
        self.publish(query_id, batch_id)

    def compact(self, query_id: str) -> int:
        """Rewrite data files with Iceberg's action. It carries the identifiers on, for when older snapshots expire."""
        if not self._exists():
            return 0
        batch_id = self.committed(query_id)
        sessions = self._jvm().org.apache.spark.sql.classic.SparkSession
        if not sessions.getActiveSession().isDefined():
            # Iceberg's threads use the settings of this JVM thread's session, or none if it has no session.
            sessions.setActiveSession(self._session())
        actions = self._jvm().org.apache.iceberg.spark.actions.SparkActions.get(self._session())
        action = actions.rewriteDataFiles(self.load())
        options = {
            "target-file-size-bytes": str(self.target_file_bytes),
            "min-input-files": str(self.files_min),
            # Only small files: those near the target are not rewritten.
            "min-file-size-bytes": str(self.target_file_bytes * 3 // 4),
        }
        for key, value in options.items():
            action = action.option(key, value)
        if batch_id >= 0:
            action = action.snapshotProperty(QUERY_ID, query_id).snapshotProperty(BATCH_ID, str(batch_id))
        return int(action.execute().rewrittenDataFilesCount())

    def read(self) -> DataFrame:
        """Return the current snapshot."""
        return self.spark.table(self.name)

    def _exists(self) -> bool:
        self._is_there = self._is_there or self.spark.catalog.tableExists(self.name)
        return self._is_there

    def _create(self, rows: DataFrame) -> None:
        namespace = self.name.rpartition(".")[0]
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted(namespace)}")
        writer = self.spark.createDataFrame([], rows.schema).writeTo(self.name).using("iceberg")
        properties = {
            "write.spark.accept-any-schema": "true",
            STAGING: "true",
            "write.target-file-size-bytes": str(self.target_file_bytes),
            **self.properties,
        }
        for key, value in properties.items():
            writer = writer.tableProperty(key, value)
        if self.period is not PartitionPeriod.NONE:
            transform: Column = TRANSFORMS[self.period](self.time_column)
            writer = writer.partitionedBy(transform)
        try:
            writer.create()
        except AnalysisException:
            # Another process may have created it. The append reports what is missing in it.
            if not self._exists():
                raise

    def _allow_staging(self) -> None:
        table = self.load()
        if table.properties().get(STAGING) != "true":
            table.updateProperties().set(STAGING, "true").commit()

    def publish(self, query_id: str, batch_id: int) -> None:
        """Make the staged append of a micro-batch current. Raises AnotherDriver if another driver's append is."""
        table, stage_id = self.load(), _stage_id(query_id, batch_id)
        # Newest first: a snapshot that a dead driver staged but did not publish has the same name.
        staged = next((each for each in reversed(table.snapshots()) if each.summary().get("wap.id") == stage_id), None)
        if staged is None:
            raise PipelineError(
                f"{self.name}: micro-batch {batch_id} was not staged; was the table's property {STAGING} unset?"
            )
        try:
            table.manageSnapshots().cherrypick(staged.snapshotId()).commit()
        except Exception as error:
            java = getattr(error, "java_exception", None)
            if java is None or java.getClass().getSimpleName() not in PUBLISHED_BEFORE:
                raise
            raise AnotherDriver(
                f"{self.name}: micro-batch {batch_id} was committed by another driver; only one at a time "
                f"may run on a checkpoint"
            ) from None

    def load(self) -> Any:
        """Load the table from its catalog, as it is now."""
        table = self._jvm().org.apache.iceberg.spark.Spark3Util.loadIcebergTable(self._session(), self.name)
        table.refresh()
        return table

    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm  # noqa: SLF001 - Iceberg's actions and snapshots have no Python interface

    def _session(self) -> Any:
        return self.spark._jsparkSession  # noqa: SLF001 - as above


@dataclass(slots=True)
class DeltaTable:
    """A Delta table in a folder, partitioned by the column named like the period."""

    spark: SparkSession
    location: str
    period: PartitionPeriod
    target_file_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)

    def committed(self, query_id: str) -> int:
        """Return the query's number in the log's newest state."""
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - the transactions have no Python interface
        session = self.spark._jsparkSession  # noqa: SLF001 - as above
        nothing = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.location)
        snapshot = log.update(False, nothing, nothing)
        found = snapshot.transactions().get(query_id)
        return int(found.get()) if found.isDefined() else -1

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Write one version. Delta skips it if it has it already."""
        writer = rows.write.format("delta").mode("append").options(**self.options)
        writer = writer.option("mergeSchema", "true").option("txnAppId", query_id).option("txnVersion", str(batch_id))
        if self.period is not PartitionPeriod.NONE:
            writer = writer.partitionBy(self.period.value)
        writer.save(self.location)

    def compact(self, query_id: str) -> int:
        """Rewrite small files with Delta's OPTIMIZE."""
        if self.committed(query_id) < 0:
            return 0
        settings = {
            "spark.databricks.delta.optimize.maxFileSize": str(self.target_file_bytes),
            "spark.databricks.delta.optimize.minFileSize": str(self.target_file_bytes * 3 // 4),
        }
        for key, value in settings.items():
            self.spark.conf.set(key, value)
        done = self.spark.sql(f"OPTIMIZE delta.{quoted(self.location, whole=True)}").select("metrics.numFilesRemoved")
        return int(done.collect()[0][0])

    def read(self) -> DataFrame:
        """Return the newest version."""
        return self.spark.read.format("delta").load(self.location)


def _stage_id(query_id: str, batch_id: int) -> str:
    return f"anabranch:{query_id}:{batch_id}"


def _batch_of(summary: Mapping[str, str], query_id: str) -> int:
    """Return the number of the query's micro-batch in a snapshot's summary, or -1."""
    if summary.get(QUERY_ID) == query_id:
        return int(summary[BATCH_ID])
    # A snapshot published on top of another writer's is a copy, which has only the name.
    published = summary.get("published-wap-id") or ""
    return int(published.rpartition(":")[2]) if published.startswith(_stage_id(query_id, 0)[:-1]) else -1


def quoted(name: str, *, whole: bool = False) -> str:
    """Quote a name for SQL, part by part or as one part."""
    parts = [name] if whole else name.split(".")
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def catalog_settings(pipeline: PipelineSettings) -> dict[str, str]:
    """Return the session settings that define the table's catalog."""
    catalog = pipeline.catalog
    prefix = f"spark.sql.catalog.{pipeline.catalog_name}"
    given = {"type": catalog.type, "warehouse": catalog.warehouse, "uri": catalog.uri, **catalog.options}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        # A cached table would not show the newest commits.
        f"{prefix}.cache-enabled": "false",
        **{f"{prefix}.{key}": value for key, value in given.items() if value is not None},
    }


def open_tables(spark: SparkSession, pipeline: PipelineSettings) -> tuple[LakehouseTable, LakehouseTable]:
    """Return the table and its dead-letter table. Raises PipelineError.

    The first micro-batch creates them.
    """
    settings = pipeline.table
    if settings.format == "iceberg":
        for key, value in catalog_settings(pipeline).items():
            spark.conf.set(key, value)
        time_column = "timestamp" if settings.event_time is None else "event_time"
        shared = (settings.target_file_bytes, pipeline.compaction.files_min)
        name = settings.name or ""
        return (
            IcebergTable(spark, name, time_column, settings.partition_by, *shared, settings.options),
            IcebergTable(spark, pipeline.dead_letter_place, "timestamp", PartitionPeriod.NONE, *shared),
        )
    if settings.format == "delta":
        return (
            DeltaTable(
                spark, settings.location or "", settings.partition_by, settings.target_file_bytes, settings.options
            ),
            DeltaTable(spark, pipeline.dead_letter_place, PartitionPeriod.NONE, settings.target_file_bytes),
        )
    raise SettingError("table.format", f"{settings.format} is written by Spark's own sink")
