"""The tables a pipeline appends to, and how each takes a micro-batch exactly once.

Every commit carries the query's id (it lives in the checkpoint: a new checkpoint is a new one) and the number of the
micro-batch. Spark repeats only the last micro-batch, with the same records in it; a table that has its number already
is left as it is. In Iceberg both stand in the snapshot's summary, and rewrites of small files carry them on; in Delta
they are the transaction's own identifier.

Two drivers may have the same micro-batch in hand at the same time: one was taken for dead, or was started twice. So the
number is checked once more by the commit itself. Delta does that. An append to Iceberg does not, so it is staged first
(write, audit, publish): Iceberg publishes a snapshot only if none under its name has been published before.
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
"""Setting of a session: an append gets this name and is not published."""
STAGING = "write.wap.enabled"
"""Property of a table: appends of sessions that have a name for them are staged."""
PUBLISHED_BEFORE = frozenset({"DuplicateWAPCommitException", "CherrypickAncestorCommitException"})
"""What Iceberg says to the second of two snapshots of one name, and to the same one again."""
TRANSFORMS = {
    PartitionPeriod.HOUR: partitioning.hours,
    PartitionPeriod.DAY: partitioning.days,
    PartitionPeriod.MONTH: partitioning.months,
}


class AnotherDriver(PipelineError):
    """Another driver has put the same micro-batch into the table, and this one has not."""


class LakehouseTable(Protocol):
    """A table of either format."""

    def committed(self, query_id: str) -> int:
        """Number of the last micro-batch of a query in the table, or -1."""

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Add a micro-batch in one commit; new columns of `rows` become columns of the table."""

    def compact(self, query_id: str) -> int:
        """Rewrite small files into large ones; how many went."""

    def read(self) -> DataFrame:
        """The whole table."""


@dataclass(slots=True)
class IcebergTable:
    """A table in a catalog of Iceberg."""

    spark: SparkSession
    name: str
    time_column: str
    period: PartitionPeriod
    target_file_bytes: int
    files_min: int
    properties: Mapping[str, str] = field(default_factory=dict)
    _is_there: bool = False

    def committed(self, query_id: str) -> int:
        """Looks back from the current snapshot to the newest append of the query."""
        if not self._exists():
            return -1
        table = self.load()
        snapshot = table.currentSnapshot()
        newest = -1
        while snapshot is not None:
            batch_id = _batch_of(snapshot.summary(), query_id)
            newest = max(newest, batch_id)
            # A rewrite says what was there when it began: another driver's append may have come since.
            if batch_id >= 0 and snapshot.operation() == "append":
                break
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        return newest

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """One snapshot with the identifiers in its summary. Raises AnotherDriver."""
        if not self._exists():
            self._create(rows)
        self._allow_staging()
        writer = rows.writeTo(self.name).option("mergeSchema", "true").option("check-ordering", "false")
        for key, value in ((QUERY_ID, query_id), (BATCH_ID, str(batch_id))):
            writer = writer.option(f"snapshot-property.{key}", value)
        # Of the micro-batch's own session, which nobody else writes in.
        settings = rows.sparkSession.conf
        settings.set(STAGE_ID, _stage_id(query_id, batch_id))
        try:
            writer.append()
        finally:
            settings.unset(STAGE_ID)
        self.publish(query_id, batch_id)

    def compact(self, query_id: str) -> int:
        """Iceberg's rewrite of data files, with the identifiers carried on for when older snapshots expire."""
        if not self._exists():
            return 0
        batch_id = self.committed(query_id)
        sessions = self._jvm().org.apache.spark.sql.classic.SparkSession
        if not sessions.getActiveSession().isDefined():
            # Iceberg's threads take the settings of the session that this thread of the JVM has, or else none at all.
            sessions.setActiveSession(self._session())
        actions = self._jvm().org.apache.iceberg.spark.actions.SparkActions.get(self._session())
        action = actions.rewriteDataFiles(self.load())
        options = {
            "target-file-size-bytes": str(self.target_file_bytes),
            "min-input-files": str(self.files_min),
            # Only small files: those near the target stay as they are.
            "min-file-size-bytes": str(self.target_file_bytes * 3 // 4),
        }
        for key, value in options.items():
            action = action.option(key, value)
        if batch_id >= 0:
            action = action.snapshotProperty(QUERY_ID, query_id).snapshotProperty(BATCH_ID, str(batch_id))
        return int(action.execute().rewrittenDataFilesCount())

    def read(self) -> DataFrame:
        """The current snapshot."""
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
            # Somebody else was quicker; then it is there, and what it lacks will be said by the append.
            if not self._exists():
                raise

    def _allow_staging(self) -> None:
        table = self.load()
        if table.properties().get(STAGING) != "true":
            table.updateProperties().set(STAGING, "true").commit()

    def publish(self, query_id: str, batch_id: int) -> None:
        """Make the staged append of a micro-batch current. Raises AnotherDriver if another driver's append is."""
        table, stage_id = self.load(), _stage_id(query_id, batch_id)
        # From the newest: one that a dead driver staged and did not publish has the same name.
        staged = next((each for each in reversed(table.snapshots()) if each.summary().get("wap.id") == stage_id), None)
        if staged is None:
            raise PipelineError(f"{self.name}: micro-batch {batch_id} was not staged; did somebody unset {STAGING}?")
        try:
            table.manageSnapshots().cherrypick(staged.snapshotId()).commit()
        except Exception as error:
            java = getattr(error, "java_exception", None)
            if java is None or java.getClass().getSimpleName() not in PUBLISHED_BEFORE:
                raise
            raise AnotherDriver(
                f"{self.name}: micro-batch {batch_id} has come into the table from another driver; only one at a time "
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
    """A Delta table in a folder; partitioned by the column that is named as the period."""

    spark: SparkSession
    location: str
    period: PartitionPeriod
    target_file_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)

    def committed(self, query_id: str) -> int:
        """What the log's newest state says of the query."""
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - the transactions have no Python interface
        session = self.spark._jsparkSession  # noqa: SLF001 - as above
        nothing = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.location)
        snapshot = log.update(False, nothing, nothing)
        found = snapshot.transactions().get(query_id)
        return int(found.get()) if found.isDefined() else -1

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """One version, which Delta leaves out if it has it."""
        writer = rows.write.format("delta").mode("append").options(**self.options)
        writer = writer.option("mergeSchema", "true").option("txnAppId", query_id).option("txnVersion", str(batch_id))
        if self.period is not PartitionPeriod.NONE:
            writer = writer.partitionBy(self.period.value)
        writer.save(self.location)

    def compact(self, query_id: str) -> int:
        """Delta's OPTIMIZE."""
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
        """The newest version."""
        return self.spark.read.format("delta").load(self.location)


def _stage_id(query_id: str, batch_id: int) -> str:
    return f"anabranch:{query_id}:{batch_id}"


def _batch_of(summary: Mapping[str, str], query_id: str) -> int:
    """Number of the query's micro-batch that a snapshot says is in the table, or -1."""
    if summary.get(QUERY_ID) == query_id:
        return int(summary[BATCH_ID])
    # What was published onto somebody else's snapshot is a copy, which has the name only.
    published = summary.get("published-wap-id") or ""
    return int(published.rpartition(":")[2]) if published.startswith(_stage_id(query_id, 0)[:-1]) else -1


def quoted(name: str, *, whole: bool = False) -> str:
    """A name for SQL, part by part or as one part."""
    parts = [name] if whole else name.split(".")
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def catalog_settings(pipeline: PipelineSettings) -> dict[str, str]:
    """Settings of a session in which the table's catalog is known."""
    catalog = pipeline.catalog
    prefix = f"spark.sql.catalog.{pipeline.catalog_name}"
    given = {"type": catalog.type, "warehouse": catalog.warehouse, "uri": catalog.uri, **catalog.options}
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        # A cached table is an old one to whoever asks what has been committed.
        f"{prefix}.cache-enabled": "false",
        **{f"{prefix}.{key}": value for key, value in given.items() if value is not None},
    }


def open_tables(spark: SparkSession, pipeline: PipelineSettings) -> tuple[LakehouseTable, LakehouseTable]:
    """The table and its dead-letter table; they are made with their first micro-batch. Raises PipelineError."""
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
