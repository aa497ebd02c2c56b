"""Tables that a pipeline writes to, each micro-batch exactly once, and what keeps them small.

Every commit carries the query's id, which is stored in the checkpoint, and the number of the micro-batch. Spark repeats
only the last micro-batch, with the same records. A table that already has its number is not changed (see `iceberg` and
`delta`). Two drivers may process the same micro-batch at the same time, when one was wrongly considered dead or was
started twice. So the commit itself checks the number again.
"""

from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from anabranch.spark.pipeline.dead_letter_topic import DeadLetterTopic
from anabranch.spark.pipeline.delta import DeltaTable, limit_log_tasks
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.iceberg import IcebergTable, catalog_settings
from anabranch.spark.pipeline.layout import TableLayout
from anabranch.spark.pipeline.merge import Newer, newer
from anabranch.spark.pipeline.retention import Retention
from anabranch.spark.pipeline.sections import TableFormat
from anabranch.spark.pipeline.settings import PipelineSettings


class MicroBatchSink(Protocol):
    """Table or topic that takes each micro-batch in one commit, such as that of dead letters."""

    @property
    def place(self) -> str:
        """Name or location, for messages."""

    def exists(self) -> bool:
        """Return whether it was created."""

    def committed(self, query_id: str) -> int:
        """Return the number of the last micro-batch of a query in it, or -1."""

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Append a micro-batch in one commit."""

    def remove(self, records: DataFrame) -> None:
        """Delete what is there of some records in one commit. `records` has the columns of places, each once."""

    def frozen(self) -> DataFrame:
        """Return all of it as it is now, also if it is read again after a later commit."""


class LakehouseTable(MicroBatchSink, Protocol):
    """A table of Iceberg or Delta. The first micro-batch creates it; an append adds the columns that it lacks."""

    def merge(self, rows: DataFrame, query_id: str, batch_id: int, newer: Newer = newer) -> None:
        """Merge a micro-batch of changes in one commit, into a table with keys.

        `rows` has one row for each topic and key, and the column `deleted`. New columns become columns of the table.
        `newer` is the condition for a row that replaces the one in the table.
        """

    def layout_changes(self, columns: StructType) -> list[str]:
        """Return what `apply_layout` would do to an existing table, a line for each change.

        `columns` are those of the rows that are to be written. Raises SettingError.
        """

    def apply_layout(self, columns: StructType) -> list[str]:
        """Give an existing table the layout of the file, as far as that names one. Returns a line for each change.

        Raises SettingError for what the columns or the format do not allow, also if there is no table yet.
        """

    def compact(self) -> int:
        """Rewrite small files into large ones. Returns the number of files rewritten."""

    def expire(self, retention: Retention, query_id: str | None) -> str:
        """Drop old versions of the table, and the files that only they need. Returns what was done, for people.

        The number of the query's last micro-batch stays known.
        """

    def remove_orphans(self, retention: Retention) -> str:
        """Delete old files of the table's folder that no version refers to. Returns what was done, for people."""

    def read(self) -> DataFrame:
        """Return the whole table."""


def prepare_session(spark: SparkSession, pipeline: PipelineSettings) -> None:
    """Give a session the settings that the tables need. A query knows only what was set before."""
    # Spark would put the driver's environment and settings into names and expressions with `${`.
    spark.conf.set("spark.sql.variable.substitute", "false")
    if pipeline.table.format is TableFormat.ICEBERG:
        for key, value in catalog_settings(pipeline).items():
            spark.conf.set(key, value)
    elif pipeline.table.format is TableFormat.DELTA:
        limit_log_tasks(spark)


def open_tables(spark: SparkSession, pipeline: PipelineSettings) -> tuple[LakehouseTable, LakehouseTable]:
    """Return the table and its dead-letter table. Raises PipelineError.

    The first micro-batch creates them.
    """
    settings = pipeline.table
    prepare_session(spark, pipeline)
    if settings.format == "iceberg":
        shared = (settings.target_file_bytes, pipeline.compaction.files_min)
        return (
            IcebergTable(spark, settings.name or "", pipeline.layout, *shared, settings.options, settings.keyed_rows),
            IcebergTable(spark, pipeline.dead_letter_place, TableLayout(), *shared),
        )
    if settings.format == "delta":
        return (
            DeltaTable(
                spark,
                settings.location or "",
                pipeline.layout,
                settings.target_file_bytes,
                settings.options,
                settings.keyed_rows,
            ),
            DeltaTable(spark, pipeline.dead_letter_place, TableLayout(), settings.target_file_bytes),
        )
    raise SettingError("table.format", f"{settings.format} is written by Spark's own sink")


def open_dead_letters(spark: SparkSession, pipeline: PipelineSettings) -> MicroBatchSink:
    """Return the table or topic of a pipeline's dead letters. Raises PipelineError."""
    if pipeline.dead_letters.topic is not None:
        return DeadLetterTopic.of(spark, pipeline)
    return open_tables(spark, pipeline)[1]
