"""Delta tables of a pipeline. The number of a micro-batch is the transaction's identifier, which Delta checks itself.

The writer of an append takes it as an option, a merge as a setting of the session.

Delta keeps the newest number of each query in the state of its log, whatever is dropped of the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from anabranch.spark.pipeline.changes import DELETED, HAS_ROW, UNIQUE, check_mode, unique_columns
from anabranch.spark.pipeline.errors import PipelineError, SettingError, java_classes, reason_of, unfit
from anabranch.spark.pipeline.history import HistoryMerge
from anabranch.spark.pipeline.layout import TableLayout
from anabranch.spark.pipeline.merge import (
    CHANGE,
    CHANGES,
    MERGE_TRIES,
    Merge,
    Newer,
    TableMerge,
    has_new_fields,
    java_of,
    newer,
    overtaken,
    row_of,
    same_place,
    session_settings,
)
from anabranch.spark.pipeline.names import quoted
from anabranch.spark.pipeline.retention import Retention
from anabranch.spark.pipeline.sections import KeyedRows

LOG_AGE = "delta.logRetentionDuration"
FILE_AGE = "delta.deletedFileRetentionDuration"
TRANSACTION = "spark.databricks.delta.write"
"""Beginning of the settings of a session with the transaction's identifier of its merges."""
LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
LISTING_TASKS_PER_CORE = 4
LOG_TASKS = "spark.databricks.delta.snapshotPartitions"
LOG_TASKS_MAX, LOG_TASKS_PER_CORE = 50, 2
"""Delta's default, and what is enough for fewer cores."""
OVERTAKEN = frozenset(
    f"{what}Exception"
    for what in (
        "ConcurrentAppend",
        "ConcurrentDeleteRead",
        "ConcurrentDeleteDelete",
        "ConcurrentWrite",
        "MetadataChanged",
    )
)
"""Delta's errors for a merge during which another writer has committed what it has read, or replaces."""
TABLE = "anabranch_table"
"""Alias of the table in a merge."""
WIDENING = "delta.enabletypewidening"
"""Property, in lower case: a write may widen the type of a column."""
MARKED_ROWS = "delta.enableDeletionVectors"
"""Property: a merge marks replaced rows instead of rewriting their files."""


def limit_log_tasks(spark: SparkSession) -> None:
    """Let Delta read its log in no more tasks than the cores are worth, unless the session says how many.

    It takes 50 for each micro-batch, which on a few cores is most of the time of a small one.
    """
    if spark.conf.get(LOG_TASKS, None) is None:
        cores = spark.sparkContext.defaultParallelism
        spark.conf.set(LOG_TASKS, str(min(LOG_TASKS_MAX, LOG_TASKS_PER_CORE * cores)))


@dataclass(slots=True)
class DeltaTable:
    """A Delta table in a folder. Columns that are named like periods stand for transforms, which Delta lacks."""

    spark: SparkSession
    location: str
    layout: TableLayout
    target_file_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the writer."""
    keyed: KeyedRows | None = None
    """Rows of each topic and key, if it has keys."""

    @property
    def place(self) -> str:
        """Folder or URL of the table."""
        return self.location

    def exists(self) -> bool:
        """Return whether the first micro-batch has created the table."""
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - as above
        session = self.spark._jsparkSession  # noqa: SLF001 - as above
        return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(session, self.location))

    def committed(self, query_id: str) -> int:
        """Return the query's number in the log's newest state."""
        found = self._snapshot().transactions().get(query_id)
        return int(found.get()) if found.isDefined() else -1

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Write one version. Delta skips it if it has it already."""
        writer = self._writer(rows).option("txnAppId", query_id).option("txnVersion", str(batch_id))
        is_new = bool(self._properties) and not self.exists()
        writer.save(self.location)
        if is_new:
            self._set(self._properties_to_change())

    def merge(self, rows: DataFrame, query_id: str, batch_id: int, newer: Newer = newer) -> None:
        """Merge changes as one version. Delta skips it if it has it already. Raises PipelineError."""
        columns = rows.drop(DELETED, HAS_ROW)
        if not self.exists() or has_new_fields(columns.schema, self.read().schema):
            # Creates the table, or adds what it lacks.
            self._writer(columns.limit(0)).save(self.location)
            self._set(self._properties_to_change())
        session = rows.sparkSession
        settings = {f"{TRANSACTION}.txnAppId": query_id, f"{TRANSACTION}.txnVersion": str(batch_id)}
        for _ in range(MERGE_TRIES):
            version = self._version()
            merge: TableMerge
            if self.keyed is KeyedRows.HISTORY:
                table = self.spark.read.format("delta").option("versionAsOf", version).load(self.location)
                merge = HistoryMerge.of(rows, table.schema, table)
            else:
                merge = Merge.of(rows, self.read().schema, newer)
            try:
                with session_settings(session, settings):
                    merge.run(self._table(session).merge, "execute", row_of(TABLE))
            except Exception as error:
                if OVERTAKEN.isdisjoint(java_classes(error)):
                    raise
            else:
                if self.keyed is not KeyedRows.HISTORY or self._version() <= version + 1:
                    return
                # Another writer has committed meanwhile. Its versions and these are put in order by a further commit.
                settings = {}
        raise PipelineError(overtaken(self.location, batch_id))

    def remove(self, records: DataFrame) -> None:
        """Delete rows as one version. Raises what Spark raises."""
        same = java_of(same_place(row_of(TABLE), CHANGE))
        table = self._table(records.sparkSession)
        table.merge(java_of(records.alias(CHANGES)), same).whenMatched().delete().execute()

    def layout_changes(self, columns: StructType) -> list[str]:
        """Return the properties that would change. Raises SettingError for a change of partitions or types."""
        if not self.exists():
            return []
        self._check_partitions()
        self._check_mode()
        known = self._known_properties()
        if known.get(WIDENING) != "true":
            self._check_types(columns)
        return [
            f"property {name} changes from {known.get(name.lower(), 'none')} to {value}"
            for name, value in self._properties_to_change().items()
        ]

    def apply_layout(self, columns: StructType) -> list[str]:
        """Set properties. Raises SettingError for those that Delta refuses, and for a change of partitions."""
        if changes := self.layout_changes(columns):
            self._set(self._properties_to_change())
        return changes

    def compact(self) -> int:
        """Rewrite small files with Delta's OPTIMIZE."""
        if not self.exists():
            return 0
        settings = {
            "spark.databricks.delta.optimize.maxFileSize": str(self.target_file_bytes),
            "spark.databricks.delta.optimize.minFileSize": str(self.target_file_bytes * 3 // 4),
        }
        for key, value in settings.items():
            self.spark.conf.set(key, value)
        done = self.spark.sql(f"OPTIMIZE {self._sql_name}").select("metrics.numFilesRemoved")
        return int(done.collect()[0][0])

    def expire(self, retention: Retention, query_id: str | None) -> str:  # noqa: ARG002 - the log's state has it
        """Tell Delta how long to keep its log and replaced files. It shortens the log itself, at its checkpoints."""
        if not self.exists():
            return "nothing to do"
        age = f"interval {int(retention.snapshot_age.total_seconds())} seconds"
        found = self.spark.sql(f"DESCRIBE DETAIL {self._sql_name}").select("properties").collect()[0][0]
        missing = {key: age for key in (LOG_AGE, FILE_AGE) if key not in found}
        if not missing:
            return "Delta shortens its log itself"
        self._set(missing)
        return f"log and replaced files are kept for {age.removeprefix('interval ')}"

    def remove_orphans(self, retention: Retention) -> str:  # noqa: ARG002 - the table's property says how long
        """Delete replaced files and those of failed writes with Delta's VACUUM, by the age in the table's property."""
        if not self.exists():
            return "nothing to do"
        # Delta starts as many tasks as this allows, several times: 10,000 by default, for the smallest table, too.
        tasks = LISTING_TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism
        with session_settings(self.spark, {LISTING_TASKS: str(tasks)}):
            self.spark.sql(f"VACUUM {self._sql_name}")
        newest = self.spark.sql(f"DESCRIBE HISTORY {self._sql_name} LIMIT 1").select("operation", "operationMetrics")
        operation, metrics = newest.collect()[0]
        deleted = int(metrics.get("numDeletedFiles", 0)) if operation == "VACUUM END" else 0
        return f"{deleted:,} replaced or orphan files deleted"

    def read(self) -> DataFrame:
        """Return the newest version."""
        return self.spark.read.format("delta").load(self.location)

    def frozen(self) -> DataFrame:
        """Return the version that is the newest one now."""
        return self.spark.read.format("delta").option("versionAsOf", self._version()).load(self.location)

    def _snapshot(self) -> Any:
        """Return the log's newest state."""
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - the transactions have no Python interface
        session = self.spark._jsparkSession  # noqa: SLF001 - as above
        nothing = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self.location)
        return log.update(False, nothing, nothing)

    def _version(self) -> int:
        return int(self._snapshot().version())

    def _table(self, session: SparkSession) -> Any:
        """Return the table in Java, under its alias."""
        jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - as above
        return jvm.io.delta.tables.DeltaTable.forPath(session._jsparkSession, self.location).alias(TABLE)  # noqa: SLF001

    def _check_partitions(self) -> None:
        detail = self.spark.sql(f"DESCRIBE DETAIL {self._sql_name}").select("partitionColumns")
        found = list(detail.collect()[0][0])
        if found != self._partitions:
            old, new = (" and ".join(names) or "nothing" for names in (found, self._partitions))
            raise SettingError(
                "table.partition_by",
                f"{self.location} is partitioned by {old}, and would be by {new}; a table of format delta cannot "
                f"change that: use a new checkpoint and another location",
            )

    def _check_types(self, columns: StructType) -> None:
        jvm: Any = self.spark.sparkContext._jvm  # noqa: SLF001 - as above
        utils = jvm.org.apache.spark.sql.delta.schema.SchemaMergingUtils
        no_widening = getattr(utils, "mergeSchemas$default$5")()
        table, wanted = (
            jvm.org.apache.spark.sql.types.DataType.fromJson(each.json()) for each in (self.read().schema, columns)
        )
        try:
            utils.mergeSchemas(table, wanted, False, False, no_widening, False)
        except Exception as error:  # Delta's errors have no common class
            raise SettingError("table.location", unfit(self.location, error)) from error

    def _known_properties(self) -> dict[str, str]:
        """Return all properties by name in lower case, with the features that the table's protocol has."""
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self._sql_name}").collect()
        return {row["key"].lower(): row["value"] for row in rows}

    def _properties_to_change(self) -> dict[str, str]:
        if not self._properties:
            return {}
        known = self._known_properties()
        return {name: value for name, value in self._properties.items() if known.get(name.lower()) != value}

    def _set(self, properties: Mapping[str, str]) -> None:
        """Set properties. Raises SettingError."""
        if not properties:
            return
        gateway: Any = self.spark.sparkContext._gateway  # noqa: SLF001 - as above
        java = gateway.jvm.org.apache.spark.sql.connector.catalog
        changes = gateway.new_array(java.TableChange, len(properties))
        for n, (name, value) in enumerate(properties.items()):
            changes[n] = java.TableChange.setProperty(name, value)
        namespace = gateway.new_array(gateway.jvm.String, 1)
        namespace[0] = "delta"
        catalog = self.spark._jsparkSession.sessionState().catalogManager().v2SessionCatalog()  # noqa: SLF001 - as above
        try:
            catalog.alterTable(java.Identifier.of(namespace, self.location), changes)
        except Exception as error:  # Delta's errors have no common class
            raise SettingError("table.properties", f"{', '.join(properties)}: {reason_of(error)}") from error

    def _check_mode(self) -> None:
        """Raise SettingError if the table has rows that another mode has written."""
        found = self._known_properties().get(UNIQUE)
        if found != unique_columns(self.keyed) and not self.read().isEmpty():
            check_mode(self.location, self.keyed, found)

    def _writer(self, rows: DataFrame) -> DataFrameWriter:
        # Delta takes its own properties from the options of the write that creates the table, and only from that.
        properties = {name: value for name, value in self._properties.items() if name.startswith("delta.")}
        writer = rows.write.format("delta").mode("append").options(**self.options, **properties)
        writer = writer.option("mergeSchema", "true")
        return writer.partitionBy(*self._partitions) if self.layout.partitions else writer

    @property
    def _properties(self) -> Mapping[str, str]:
        """Properties of the table: those of the file, and those that a table with keys needs."""
        unique = unique_columns(self.keyed)
        if unique is None:
            return self.layout.properties
        return {MARKED_ROWS: "true", UNIQUE: unique, **self.layout.properties}

    @property
    def _partitions(self) -> list[str]:
        return [each.folder_column for each in self.layout.partitions]

    @property
    def _sql_name(self) -> str:
        return f"delta.{quoted(self.location, whole=True)}"
