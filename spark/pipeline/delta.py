"""Delta tables of a pipeline. The number of a micro-batch is the transaction's identifier, which Delta checks itself.

Delta keeps the newest number of each query in the state of its log, whatever is dropped of the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark.pipeline.names import quoted
from spark.pipeline.retention import Retention
from spark.pipeline.settings import PartitionPeriod

LOG_AGE = "delta.logRetentionDuration"
FILE_AGE = "delta.deletedFileRetentionDuration"


@dataclass(slots=True)
class DeltaTable:
    """A Delta table in a folder, partitioned by the column named like the period."""

    spark: SparkSession
    location: str
    period: PartitionPeriod
    target_file_bytes: int
    options: Mapping[str, str] = field(default_factory=dict)

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
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in missing.items())
        self.spark.sql(f"ALTER TABLE {self._sql_name} SET TBLPROPERTIES ({properties})")
        return f"log and replaced files are kept for {age.removeprefix('interval ')}"

    def remove_orphans(self, retention: Retention) -> str:  # noqa: ARG002 - the table's property says how long
        """Delete replaced files and those of failed writes with Delta's VACUUM, by the age in the table's property."""
        if not self.exists():
            return "nothing to do"
        self.spark.sql(f"VACUUM {self._sql_name}")
        newest = self.spark.sql(f"DESCRIBE HISTORY {self._sql_name} LIMIT 1").select("operation", "operationMetrics")
        operation, metrics = newest.collect()[0]
        deleted = int(metrics.get("numDeletedFiles", 0)) if operation == "VACUUM END" else 0
        return f"{deleted:,} replaced or orphan files deleted"

    def read(self) -> DataFrame:
        """Return the newest version."""
        return self.spark.read.format("delta").load(self.location)

    @property
    def _sql_name(self) -> str:
        return f"delta.{quoted(self.location, whole=True)}"
