"""Takes the records of a micro-batch into one table: decoding, table, dead letters and watermark, in this order.

A driver that dies in between repeats the micro-batch with the same records, and skips each step that is already done
(see `tables`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.changes import DELETED, changes_of
from anabranch.spark.pipeline.decode import RecordDecoder, RecordDecoding
from anabranch.spark.pipeline.deletions import DeletionStore
from anabranch.spark.pipeline.errors import AnotherDriver, UnusableSchema
from anabranch.spark.pipeline.schema_store import SchemaStore
from anabranch.spark.pipeline.sections import KeyedRows, LatePolicy
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import (
    dead_letter_columns,
    rows_of,
    table_columns,
)
from anabranch.spark.pipeline.tables import LakehouseTable, MicroBatchSink, open_dead_letters, open_tables
from anabranch.spark.pipeline.watermark import WatermarkStore


@dataclass(slots=True)
class TableWriter:
    """Writes records to a table, and its dead letters."""

    spark: SparkSession
    pipeline: PipelineSettings
    decoder: RecordDecoder
    table: LakehouseTable
    dead_letters: MicroBatchSink
    tables: tuple[LakehouseTable, ...]
    """Tables that this may write to."""
    schemas: SchemaStore
    topic: str | None = None
    """With a table for each topic: the topic."""
    _is_first: bool = True
    """False after the first micro-batch of a run: only that one may have been begun before."""

    @classmethod
    def of(cls, spark: SparkSession, pipeline: PipelineSettings, topic: str | None = None) -> "TableWriter":
        """Open the tables of a pipeline, or of one of its topics. Raises PipelineError."""
        own = pipeline.for_topic(topic)
        tables = open_tables(spark, own)
        dead_letters = open_dead_letters(spark, own)
        own_tables = tables if own.has_dead_letter_table else tables[:1]
        schemas = SchemaStore(spark, own, topic)
        return cls(spark, own, RecordDecoder(own), tables[0], dead_letters, own_tables, schemas, topic)

    def prepare(self, stream: DataFrame) -> list[str]:
        """Give an existing table the layout of the file. Returns a line for each change. Raises PipelineError.

        `stream` has the columns of records.
        """
        records = rows_of(stream, self.decoder.current(), self.pipeline)
        rows = records.select(*table_columns(records, self.pipeline))
        return [f"{self.table.place}: {line}" for line in self.table.apply_layout(rows.schema)]

    def write(self, batch: DataFrame, query_id: str, batch_id: int) -> int | None:
        """Write the records of a micro-batch.

        Returns how many they are; None if the table has them already, and they were not counted. Raises PipelineError.
        """
        is_there = self._is_there(query_id, batch_id)
        may_be_dead = self.topic is not None and self._is_first and not is_there
        self._is_first = False
        if may_be_dead and self._are_dead(query_id, batch_id):
            self.skip(batch_id)
            return None
        try:
            decoding = (self.schemas.former(self.decoder) if is_there else None) or self.decoder.current()
        except UnusableSchema as error:
            if self.topic is None or is_there:
                raise
            # The other topics go on. `spark replay` puts the records back when there is a schema.
            undecoded = batch.withColumn("error", f.lit(str(error)))
            self._append_dead_letters(undecoded, RecordDecoding(None, None), query_id, batch_id)
            self.skip(batch_id)
            return None
        if not is_there:
            self.schemas.write(decoding)
        watermarks = self._watermarks()
        watermark = self.pipeline.watermark
        records = rows_of(batch, decoding, self.pipeline)
        if watermarks is not None and watermark is not None:
            records = mark_late(records, self.pipeline, watermarks.watermark_us(batch_id), watermark.late)
        good_time = f.when(f.col("error").isNull(), f.unix_micros(self.pipeline.table.time_column))
        newest = f.max(good_time).alias("newest")
        metrics = [f.count_if(f.col("error") != "").alias("dead"), f.count(f.lit(1)).alias("rows"), newest]
        # Also counts records that a dead driver had counted.
        found = None
        if not is_there:
            write = self._merge if self.pipeline.table.mode.is_keyed else self._append
            found = write(records, metrics, query_id, batch_id)
        if self.pipeline.has_dead_letters and (found is None or found["dead"]):
            self._append_dead_letters(records, decoding, query_id, batch_id)
        if watermarks is not None:
            row = records.agg(newest).collect()[0].asDict() if found is None else found
            watermarks.write(batch_id, row["newest"])
        return None if found is None else int(found["rows"])

    def skip(self, batch_id: int) -> None:
        """Take a micro-batch that has no records for the table."""
        if (watermarks := self._watermarks()) is not None:
            watermarks.write(batch_id, None)
        if self.pipeline.table.keyed_rows is KeyedRows.NEWEST:
            self._deletions.skip(batch_id)

    def compact(self) -> int:
        """Rewrite small files of both tables. Returns the number of files rewritten. Raises what Spark raises."""
        return sum(table.compact() for table in self.tables)

    def _is_there(self, query_id: str, batch_id: int) -> bool:
        """Return whether the table has a micro-batch. Raises AnotherDriver if it has later ones, too."""
        committed = self.table.committed(query_id)
        if committed > batch_id:
            raise AnotherDriver(
                f"{self.table.place}: micro-batch {batch_id} was committed by another driver, and {committed} too; "
                f"only one at a time may run on a checkpoint (an older copy would skip records: use the newest one)"
            )
        return committed == batch_id

    def _are_dead(self, query_id: str, batch_id: int) -> bool:
        """Return whether an earlier attempt, which wrote nothing to the table, made all records dead letters.

        It found no schema.
        """
        return self.pipeline.has_dead_letters and batch_id <= self.dead_letters.committed(query_id)

    def _watermarks(self) -> WatermarkStore | None:
        watermark = self.pipeline.watermark
        if watermark is None:
            return None
        return WatermarkStore(self.spark, self.pipeline.checkpoint, watermark.delay, self.topic)

    @property
    def _deletions(self) -> DeletionStore:
        return DeletionStore(self.spark, self.pipeline.checkpoint, self.topic)

    def _append(self, records: DataFrame, metrics: list[Column], query_id: str, batch_id: int) -> Mapping[str, Any]:
        """Append the good records. Returns the metrics of all, which are computed on the way."""
        seen = Observation()
        good = records.observe(seen, *metrics).filter(f.col("error").isNull())
        self.table.append(good.select(*table_columns(records, self.pipeline)), query_id, batch_id)
        return seen.get

    def _merge(self, records: DataFrame, metrics: list[Column], query_id: str, batch_id: int) -> Mapping[str, Any]:
        """Merge the good records. Returns the metrics of all."""
        good = records.filter(f.col("error").isNull()).select(*table_columns(records, self.pipeline), DELETED)
        keyed = self.pipeline.table.keyed_rows
        assert keyed is not None, "or they are appended"
        # Both are read several times.
        with persisted(records), persisted(changes_of(good, keyed)) as changes:
            found = records.agg(*metrics, f.max(DELETED).alias(DELETED)).collect()[0].asDict()
            if keyed is not KeyedRows.NEWEST:  # the table remembers what is deleted
                self.table.merge(changes, query_id, batch_id)
                return found
            with persisted(self._deletions.without_older(changes, batch_id)) as left:
                self._deletions.write(changes, records, batch_id, deletes=bool(found[DELETED]))
                self.table.merge(left, query_id, batch_id)
        return found

    def _append_dead_letters(self, records: DataFrame, decoding: RecordDecoding, query_id: str, batch_id: int) -> None:
        if self.dead_letters.committed(query_id) >= batch_id:
            return
        dead = records.filter(f.col("error") != "")
        self.dead_letters.append(dead.select(*dead_letter_columns(decoding, f.lit(batch_id))), query_id, batch_id)


@contextmanager
def persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """Keep rows in memory, or on the executors' disks, while they are used."""
    rows.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def mark_late(records: DataFrame, pipeline: PipelineSettings, watermark_us: int | None, late: LatePolicy) -> DataFrame:
    """Add an error to records older than the watermark. An empty error drops them without a dead letter."""
    if watermark_us is None or late is LatePolicy.KEEP:
        return records
    behind = f.lit(watermark_us) - f.unix_micros(pipeline.table.time_column)
    reason = f.concat(f.lit("late: "), (behind / 1_000_000).cast("string"), f.lit(" s behind the watermark"))
    error = f.lit("") if late is LatePolicy.DROP else reason
    return records.withColumn("error", f.when(f.col("error").isNull() & (behind > 0), error).otherwise(f.col("error")))
