"""Runs a pipeline: starts its query, takes each micro-batch to the writers of its tables, and maintains those.

A driver that dies before Spark's own commit repeats the micro-batch with the same records (see `writer`). Parquet
differs: Spark's file sink has its own log, and dead letters are a second query.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from anabranch.spark.checkpoint_format import JsonOffsets
from anabranch.spark.checkpoints import drop_topic_ids, newest_offsets
from anabranch.spark.direct.options import DataLossError, parse_options
from anabranch.spark.direct.readers import refuse_checkpoint_ahead
from anabranch.spark.pipeline.decode import RecordDecoder
from anabranch.spark.pipeline.errors import PipelineError, UnusableSchema, reason_of
from anabranch.spark.pipeline.maintenance import Maintenance
from anabranch.spark.pipeline.parquet import parquet_tables
from anabranch.spark.pipeline.sections import TableFormat
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import read_stream, rows_of
from anabranch.spark.pipeline.source_options import source_options
from anabranch.spark.pipeline.tables import prepare_session
from anabranch.spark.pipeline.topic_ids import TopicIds
from anabranch.spark.pipeline.topics import known_topics, refuse_shared_places
from anabranch.spark.pipeline.writer import TableWriter, persisted
from anabranch.spark.storage import find_storage

QUERY_ID_TIMEOUT_S = 60
ANSI = "spark.sql.ansi.enabled"
COUNTS_KEPT = 1_000
TASKS_PER_CORE = 2
"""Tasks for each core that read the micro-batch of a pipeline with a table for each topic."""
ROWS_PER_TASK = 20_000
"""Rows of a topic that are worth a task of their own, which costs 10 to 20 ms of CPU."""


@dataclass(slots=True)
class MicroBatchWriter:
    """Writes each micro-batch to the table, or the records of each topic to its own, and maintains the tables."""

    spark: SparkSession
    pipeline: PipelineSettings
    counted: dict[int, int] = field(default_factory=dict)
    """Number of records of the newest micro-batches. Spark's count is double where dead letters were read again."""
    tell: Callable[[str], None] = lambda _line: None
    """Receives a line for each table that was changed or maintained."""
    writers: dict[str | None, TableWriter] = field(default_factory=dict)
    """By topic; without a table for each topic, one under None."""
    query_id: Future[str] = field(default_factory=Future)
    """Set as soon as the query has started."""
    failure: BaseException | None = None
    """Python error that failed the query; Spark has only its text."""
    topic_ids: TopicIds | None = None
    """With the Kafka source: detects a recreated topic."""
    compaction_failure: str | None = None
    """Error of the last rewrite of small files. It does not stop the query."""
    maintenance_failure: str | None = None
    """Error of the last maintenance. It does not stop the query."""

    def open(self, stream: DataFrame) -> None:
        """Open the tables that are known before the first micro-batch. Raises PipelineError.

        `stream` has the columns of records.
        """
        prepare_session(self.spark, self.pipeline)
        for topic in known_topics(self.spark, self.pipeline):
            writer = self._writer(topic)
            try:
                lines = writer.prepare(stream)
            except UnusableSchema as error:
                if topic is None or topic in self.pipeline.source.topics:
                    raise
                lines = [error.for_topic(topic)]
            for line in lines:
                self.tell(line)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch, as Spark's `foreachBatch` function."""
        try:
            self._take(batch, batch_id)
        except BaseException as error:
            self.failure = error
            raise

    def compact(self) -> int:
        """Rewrite small files of all tables. Returns the number of files rewritten."""
        try:
            count = sum(writer.compact() for writer in self.writers.values())
        except Exception as error:  # noqa: BLE001 - any error: the records are safe, and the next rewrite tries again
            self.compaction_failure = reason_of(error)
            return 0
        self.compaction_failure = None
        return count

    def maintain(self) -> None:
        """Do the maintenance that is due."""
        query_id = self.query_id.result(QUERY_ID_TIMEOUT_S)
        tables = [table for writer in self.writers.values() for table in writer.tables]
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
        if self.topic_ids is not None:
            self.topic_ids.check()
        # In the query's session only. A time that cannot be parsed becomes null, instead of failing the query.
        batch.sparkSession.conf.set(ANSI, "false")
        if self.pipeline.table.is_per_topic:
            rows: int | None = self._take_by_topic(batch, query_id, batch_id)
        else:
            rows = self.writers[None].write(batch, query_id, batch_id)
        if rows is not None:
            self.counted[batch_id] = rows
            self.counted.pop(batch_id - COUNTS_KEPT, None)
        every = self.pipeline.compaction.batches
        if every and (batch_id + 1) % every == 0:
            self.compact()
        self.maintain()

    def _take_by_topic(self, batch: DataFrame, query_id: str, batch_id: int) -> int:
        """Write the records of each topic to its table, one after the other. Returns how many there are."""
        # Each topic's job has a task for each partition of the whole micro-batch, so there are few of them.
        tasks = max(TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism, self.pipeline.source.tasks_min or 0)
        with persisted(batch.coalesce(tasks)) as records:  # read once, and not once for each topic
            counts = {row["topic"]: row["count"] for row in records.groupBy("topic").count().collect()}
            for topic in sorted(counts):
                # With one task, rows need no exchange either to be distributed over the partitions of the table.
                own = records.filter(f.col("topic") == topic).coalesce(-(-counts[topic] // ROWS_PER_TASK))
                self._writer(topic).write(own, query_id, batch_id)
        for topic, writer in self.writers.items():
            if topic not in counts:
                writer.skip(batch_id)
        return sum(counts.values())

    def _writer(self, topic: str | None) -> TableWriter:
        """Return the writer of a topic, which may be new. Raises SettingError if its table would be another topic's."""
        if topic not in self.writers:
            if topic is not None:
                refuse_shared_places(self.pipeline, [*filter(None, self.writers), topic])
            self.writers[topic] = TableWriter.of(self.spark, self.pipeline, topic)
        return self.writers[topic]


@dataclass(slots=True)
class RunningPipeline:
    """A pipeline whose query has started."""

    pipeline: PipelineSettings
    queries: list[StreamingQuery]
    """The first fills the table. Parquet has a second one for its dead letters."""
    batches: MicroBatchWriter | None = None
    topic_ids: TopicIds | None = None
    """With the Kafka source."""

    @property
    def query(self) -> StreamingQuery:
        """The query that fills the table."""
        return self.queries[0]

    def stop(self) -> None:
        """Stop the queries."""
        for query in self.queries:
            query.stop()
        if self.topic_ids is not None:
            self.topic_ids.close()

    def start_topics(self, checkpoints: Sequence[str], tell: Callable[[str], None]) -> None:
        """Compare the ids of topics before the queries with these checkpoints start. Raises PipelineError."""
        if self.topic_ids is not None:
            for line in self.topic_ids.start(checkpoints):
                tell(line)

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
    running = RunningPipeline(pipeline, [])
    try:
        if pipeline.source.kind == "kafka":
            running.topic_ids = TopicIds.of(spark, pipeline)
        if pipeline.table.format is TableFormat.PARQUET:
            with without_ansi(spark):  # the query keeps the settings of its start
                _start_parquet(spark, running, tell)
        else:
            _start_batches(spark, running, MicroBatchWriter(spark, pipeline, {} if counted is None else counted, tell))
    except BaseException:
        running.stop()
        raise
    return running


def _start_batches(spark: SparkSession, running: RunningPipeline, batches: MicroBatchWriter) -> None:
    pipeline = running.pipeline
    stream = read_stream(spark, pipeline)
    with without_ansi(spark):
        batches.open(stream)
    running.batches, batches.topic_ids = batches, running.topic_ids
    running.start_topics([pipeline.checkpoint], batches.tell)
    query = _start(
        spark, stream.writeStream.queryName(pipeline.name).foreachBatch(batches), pipeline, pipeline.checkpoint
    )
    running.queries.append(query)
    batches.query_id.set_result(query.id)


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


def _start_parquet(spark: SparkSession, running: RunningPipeline, tell: Callable[[str], None]) -> None:
    pipeline = running.pipeline
    decoding = RecordDecoder(pipeline).current()
    records = rows_of(read_stream(spark, pipeline), decoding, pipeline)
    tables = parquet_tables(spark, pipeline, records, decoding)
    for table in tables:
        table.check()
    running.start_topics([table.checkpoint for table in tables], tell)
    for table in tables:
        query = _start(spark, table.writer(), pipeline, table.checkpoint)
        running.queries.append(query)
        table.claim(query)


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
    """Raise PipelineError if the Kafka source, which used the checkpoint before, was ahead of the data in objects."""
    try:
        asyncio.run(refuse_checkpoint_ahead(find_storage(options), parse_options(options, streaming=True), offsets))
    except DataLossError as error:
        raise PipelineError(str(error)) from error
