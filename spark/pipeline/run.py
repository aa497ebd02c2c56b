"""Runs a pipeline: starts its query, and takes each micro-batch through decoding, table, dead letters and compaction.

The order within a micro-batch is: the table, its dead letters, the watermark's file, and then Spark's own commit. A
driver that dies in between repeats the micro-batch with the same records, and skips each step that is already done (see
`tables`). Parquet differs: Spark's file sink has its own log, and dead letters are a second query.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark.checkpoints import drop_topic_ids, newest_offsets
from spark.direct.options import DataLossError, parse_options
from spark.direct.readers import JsonOffsets, refuse_checkpoint_ahead
from spark.pipeline.changes import DELETED, newest_of_each_key
from spark.pipeline.decode import RecordDecoder, RecordDecoding
from spark.pipeline.errors import PipelineError, reason_of
from spark.pipeline.maintenance import Maintenance
from spark.pipeline.parquet import parquet_tables
from spark.pipeline.settings import LatePolicy, PipelineSettings, TableFormat
from spark.pipeline.source import (
    check_event_time,
    dead_letter_columns,
    decoded,
    event_time,
    read_stream,
    source_options,
    table_columns,
)
from spark.pipeline.tables import LakehouseTable, open_tables
from spark.pipeline.watermark import WatermarkStore
from spark.storage import find_storage

QUERY_ID_TIMEOUT_S = 60
ANSI = "spark.sql.ansi.enabled"
COUNTS_KEPT = 1_000


@dataclass(slots=True)
class MicroBatchWriter:
    """Writes each micro-batch to the table and the dead-letter table."""

    spark: SparkSession
    pipeline: PipelineSettings
    decoder: RecordDecoder
    table: LakehouseTable
    dead_letters: LakehouseTable
    counted: dict[int, int] = field(default_factory=dict)
    """Number of records of the newest micro-batches. Spark's count is double where dead letters were read again."""
    query_id: Future[str] = field(default_factory=Future)
    """Set as soon as the query has started."""
    failure: BaseException | None = None
    """Python error that failed the query; Spark has only its text."""
    compaction_failure: str | None = None
    """Error of the last rewrite of small files. It does not stop the query."""
    maintenance_failure: str | None = None
    """Error of the last maintenance. It does not stop the query."""
    tell: Callable[[str], None] = lambda _line: None
    """Receives a line for each table that was maintained."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, as Spark's `foreachBatch` function."""
        try:
            self._take(batch, batch_id)
        except BaseException as error:
            self.failure = error
            raise

    def compact(self) -> int:
        """Rewrite small files of both tables. Returns the number of files rewritten."""
        try:
            count = self.table.compact()
            if self.pipeline.has_dead_letters:
                count += self.dead_letters.compact()
        except Exception as error:  # noqa: BLE001 - any error: the records are safe, and the next rewrite tries again
            self.compaction_failure = reason_of(error)
            return 0
        self.compaction_failure = None
        return count

    def maintain(self) -> None:
        """Do the maintenance that is due."""
        query_id = self.query_id.result(QUERY_ID_TIMEOUT_S)
        tables = [self.table, self.dead_letters] if self.pipeline.has_dead_letters else [self.table]
        maintenance = Maintenance(self.spark, self.pipeline.checkpoint, self.pipeline.maintenance, tables)
        try:
            for line in maintenance.run_due(query_id):
                self.tell(line)
        except Exception as error:  # noqa: BLE001 - as for the rewrite of small files
            self.maintenance_failure = reason_of(error)
            return
        self.maintenance_failure = None

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        query_id = self.query_id.result(QUERY_ID_TIMEOUT_S)
        # In the query's session only. A time that cannot be parsed becomes null, instead of failing the query.
        batch.sparkSession.conf.set(ANSI, "false")
        watermark = self.pipeline.watermark
        watermarks = (
            None if watermark is None else WatermarkStore(self.spark, self.pipeline.checkpoint, watermark.delay)
        )
        decoding = self.decoder.current()
        records = check_event_time(decoded(batch, decoding, self.pipeline.table.mode), self.pipeline)
        if watermarks is not None and watermark is not None:
            records = mark_late(records, self.pipeline, watermarks.watermark_us(batch_id), watermark.late)
        good_time = f.when(f.col("error").isNull(), f.unix_micros(event_time(self.pipeline)))
        newest = f.max(good_time).alias("newest")
        metrics = [f.count_if(f.col("error") != "").alias("dead"), f.count(f.lit(1)).alias("rows"), newest]
        # Also counts records that a dead driver had counted.
        found = None
        if self.table.committed(query_id) < batch_id:
            write = self._merge if self.pipeline.table.mode.is_keyed else self._append
            found = write(records, metrics, query_id, batch_id)
        if found is not None:
            self.counted[batch_id] = found["rows"]
            self.counted.pop(batch_id - COUNTS_KEPT, None)
        if self.pipeline.has_dead_letters and (found is None or found["dead"]):
            self._append_dead_letters(records, decoding, query_id, batch_id)
        if watermarks is not None:
            row = records.agg(newest).collect()[0].asDict() if found is None else found
            watermarks.write(batch_id, row["newest"])
        every = self.pipeline.compaction.batches
        if every and (batch_id + 1) % every == 0:
            self.compact()
        self.maintain()

    def _append(self, records: DataFrame, metrics: list[Column], query_id: str, batch_id: int) -> Mapping[str, Any]:
        """Append the good records. Returns the metrics of all, which are computed on the way."""
        seen = Observation()
        good = records.observe(seen, *metrics).filter(f.col("error").isNull())
        self.table.append(good.select(*table_columns(self.pipeline)), query_id, batch_id)
        return seen.get

    def _merge(self, records: DataFrame, metrics: list[Column], query_id: str, batch_id: int) -> Mapping[str, Any]:
        """Merge the newest good record of each key. Returns the metrics of all."""
        good = records.filter(f.col("error").isNull()).select(*table_columns(self.pipeline), DELETED)
        # Both are read several times.
        with persisted(records), persisted(newest_of_each_key(good)) as changes:
            found = records.agg(*metrics).collect()[0].asDict()
            self.table.merge(changes, query_id, batch_id)
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
    behind = f.lit(watermark_us) - f.unix_micros(event_time(pipeline))
    reason = f.concat(f.lit("late: "), (behind / 1_000_000).cast("string"), f.lit(" s behind the watermark"))
    error = f.lit("") if late is LatePolicy.DROP else reason
    return records.withColumn("error", f.when(f.col("error").isNull() & (behind > 0), error).otherwise(f.col("error")))


@dataclass(slots=True)
class RunningPipeline:
    """A pipeline whose query has started."""

    pipeline: PipelineSettings
    queries: list[StreamingQuery]
    """The first fills the table. Parquet has a second one for its dead letters."""
    batches: MicroBatchWriter | None = None

    @property
    def query(self) -> StreamingQuery:
        """The query that fills the table."""
        return self.queries[0]

    def stop(self) -> None:
        """Stop the queries."""
        for query in self.queries:
            query.stop()

    def finish(self) -> int:
        """Rewrite small files after an available-now run, and maintain the tables. Returns the files rewritten."""
        if self.batches is None:
            return 0
        rewritten = self.batches.compact() if self.pipeline.compaction.batches else 0
        self.batches.maintain()
        return rewritten


def start_pipeline(
    spark: SparkSession,
    pipeline: PipelineSettings,
    counted: dict[int, int] | None = None,
    tell: Callable[[str], None] = lambda _line: None,
) -> RunningPipeline:
    """Start a pipeline; an available-now one ends by itself.

    `counted` receives the number of records of each micro-batch, `tell` a line about each change of the table's layout
    and each maintenance. Raises PipelineError, and what Spark raises.
    """
    decoder = RecordDecoder(pipeline)
    decoder.current()
    if pipeline.table.format is TableFormat.PARQUET:
        with without_ansi(spark):  # the query keeps the settings of its start
            return _start_parquet(spark, pipeline, decoder)
    table, dead_letters = open_tables(spark, pipeline)
    stream = read_stream(spark, pipeline.source)
    with without_ansi(spark):
        records = decoded(stream, decoder.current(), pipeline.table.mode)
        rows = check_event_time(records, pipeline).select(*table_columns(pipeline))
        columns = rows.schema
    for line in table.apply_layout(columns):
        tell(f"{table.place}: {line}")
    counted = {} if counted is None else counted
    batches = MicroBatchWriter(spark, pipeline, decoder, table, dead_letters, counted, tell=tell)
    writer = stream.writeStream.queryName(pipeline.name).foreachBatch(batches)
    query = _start(spark, writer, pipeline, pipeline.checkpoint)
    batches.query_id.set_result(query.id)
    return RunningPipeline(pipeline, [query], batches)


@contextmanager
def without_ansi(spark: SparkSession) -> Iterator[None]:
    """Let a time that cannot be parsed become null, instead of failing the query."""
    before = spark.conf.get(ANSI)
    assert before is not None, "it has a default"
    spark.conf.set(ANSI, "false")
    try:
        yield
    finally:
        spark.conf.set(ANSI, before)


def _start_parquet(spark: SparkSession, pipeline: PipelineSettings, decoder: RecordDecoder) -> RunningPipeline:
    decoding = decoder.current()
    records = decoded(read_stream(spark, pipeline.source), decoding, pipeline.table.mode)
    records = check_event_time(records, pipeline)
    tables = parquet_tables(spark, pipeline, records, decoding)
    for table in tables:
        table.check()
    running = RunningPipeline(pipeline, [])
    try:
        for table in tables:
            query = _start(spark, table.writer(), pipeline, table.checkpoint)
            running.queries.append(query)
            table.claim(query)
    except BaseException:
        running.stop()
        raise
    return running


def _start(
    spark: SparkSession, writer: DataStreamWriter, pipeline: PipelineSettings, checkpoint: str
) -> StreamingQuery:
    if pipeline.source.kind == "kafka":
        drop_topic_ids(spark, checkpoint)  # it may continue what the direct source has begun
    elif (offsets := newest_offsets(spark, checkpoint)) is not None:
        _refuse_ahead(source_options(pipeline.source), offsets)
    writer = writer.option("checkpointLocation", checkpoint)
    if pipeline.trigger.mode == "available-now":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=pipeline.trigger.interval).start()


def _refuse_ahead(options: Mapping[str, str], offsets: JsonOffsets) -> None:
    """Raise PipelineError if the Kafka source, which used the checkpoint before, was ahead of what is in objects."""
    try:
        asyncio.run(refuse_checkpoint_ahead(find_storage(options), parse_options(options, streaming=True), offsets))
    except DataLossError as error:
        raise PipelineError(str(error)) from error
