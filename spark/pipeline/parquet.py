"""Parquet tables through Spark's file sink, whose log in the table's folder (`_spark_metadata`) is exactly-once.

That log numbers micro-batches without naming their query. For a second query it would seem to contain the first
micro-batches already, and their records would be lost silently. So a file next to the log names the query that owns the
folder, and any other query is refused. Two drivers of one query are told apart by the log itself, which accepts each
number once.

The sink does not check the existing files either: a changed type or partitioning would make the table unreadable. So
another file records the partitioning, and all columns that the table ever had.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from anabranch.spark.pipeline.decode import RecordDecoding
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.files import HadoopFolder, query_id_of
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import dead_letter_columns, table_columns

OWNER = "_anabranch_query"
COLUMNS = "_anabranch_columns"
LOG = "_spark_metadata"
DEAD_LETTER_QUERY = "dead-letters"


@dataclass(frozen=True, slots=True)
class ParquetTable:
    """A table that one query fills."""

    spark: SparkSession
    setting: str
    """Setting of the pipeline's file that gives the location."""
    location: str
    checkpoint: str
    query_name: str
    rows: DataFrame
    partitions: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def writer(self) -> DataStreamWriter:
        """Return the stream writer that fills the table."""
        writer = self.rows.writeStream.queryName(self.query_name).format("parquet")
        writer = writer.options(**self.options).option("path", self.location)
        return writer.partitionBy(*self.partitions) if self.partitions else writer

    def check(self) -> None:
        """Check, before the query starts, that it would not lose records or break the table. Raises PipelineError."""
        owner = self._folder.read(OWNER)
        if owner == "":
            raise self._incomplete(OWNER)
        query_id = query_id_of(self.spark, self.checkpoint)
        # A table without an owner's file, written by an older version, belongs to any query with a checkpoint.
        if owner != query_id if owner is not None else self._folder.has(LOG) and query_id is None:
            raise SettingError(
                self.setting,
                f"{self.location} was written by a query with another checkpoint than "
                f"{self.checkpoint}; a table of format parquet belongs to one checkpoint: use that again, or another "
                f"location",
            )
        self._columns()

    def claim(self, query: StreamingQuery) -> None:
        """Record the query and its columns. If another query was faster, stop this one and raise PipelineError."""
        if not self._folder.write_new(OWNER, query.id) and self._folder.read(OWNER) != query.id:
            query.stop()
            raise SettingError(
                self.setting,
                f"{self.location} was claimed by another query; use a new checkpoint and another location",
            )
        columns = json.dumps({"partitions": self.partitions, "columns": self._columns().jsonValue()})
        if columns != self._folder.read(COLUMNS):
            self._folder.write(COLUMNS, columns)

    def _columns(self) -> DataType:
        """Return all columns that the table had or will have."""
        text = self._folder.read(COLUMNS)
        if text is None:
            return self.rows.schema
        try:
            known = json.loads(text)
        except ValueError:
            raise self._incomplete(COLUMNS) from None
        here = f"in {self.location}"
        remedy = "a table of format parquet cannot change that: use a new checkpoint and another location"
        if known["partitions"] != list(self.partitions):
            old, new = " and ".join(known["partitions"]), " and ".join(self.partitions)
            message = f"{here} files are partitioned by {old}, and would be by {new}; {remedy}"
            raise SettingError("table.partition_by", message)
        try:
            return merged(StructType.fromJson(known["columns"]), self.rows.schema, ())
        except ColumnChangedError as error:
            raise SettingError(self.setting, f"{here} {error}; {remedy}") from None

    def _incomplete(self, name: str) -> SettingError:
        # Not treated as missing: another driver may be writing it.
        return SettingError(
            self.setting,
            f"{self.location}/{name} is incomplete; if no driver is writing it, one has died doing so: remove it, and "
            f"it is written again",
        )

    @property
    def _folder(self) -> HadoopFolder:
        return HadoopFolder(self.spark, self.location)


class ColumnChangedError(Exception):
    """A column's type has changed."""


def merged(old: DataType, new: DataType, name: tuple[str, ...]) -> DataType:
    """Return a type with the fields of both. Raises ColumnChangedError for a common field whose type differs."""
    match old, new:
        case StructType(), StructType():
            added = {each.name: each for each in new.fields}
            fields = [
                StructField(each.name, merged(each.dataType, added.pop(each.name).dataType, (*name, each.name)))
                if each.name in added
                else each
                for each in old.fields
            ]
            return StructType([*fields, *added.values()])
        case ArrayType(), ArrayType():
            return ArrayType(merged(old.elementType, new.elementType, name))
        case MapType(), MapType():
            return MapType(merged(old.keyType, new.keyType, name), merged(old.valueType, new.valueType, name))
    if old != new:
        raise ColumnChangedError(f"{'.'.join(name)} is {old.simpleString()} and would become {new.simpleString()}")
    return old


def parquet_tables(
    spark: SparkSession, pipeline: PipelineSettings, records: DataFrame, decoding: RecordDecoding
) -> list[ParquetTable]:
    """Return the table of a pipeline, and that of its dead letters if it has one."""
    partitions = tuple(each.folder_column for each in pipeline.layout.partitions)
    good = records.filter(f.col("error").isNull()).select(*table_columns(records, pipeline))
    # Otherwise every task would write a file into every partition.
    good = good.repartition(*partitions)
    table, options = pipeline.table.location or "", pipeline.table.options
    tables = [
        ParquetTable(spark, "table.location", table, pipeline.checkpoint, pipeline.name, good, partitions, options),
    ]
    if pipeline.has_dead_letters:
        dead = records.filter(f.col("error") != "").select(*dead_letter_columns(decoding, f.lit(None))).drop("batch_id")
        checkpoint = f"{pipeline.checkpoint.rstrip('/')}-{DEAD_LETTER_QUERY}"
        name = f"{pipeline.name}-{DEAD_LETTER_QUERY}"
        place = pipeline.dead_letter_place
        tables.append(ParquetTable(spark, "dead_letters.location", place, checkpoint, name, dead))
    return tables
