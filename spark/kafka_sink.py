"""Writes a stream into a topic, each row exactly once: `writeStream.foreachBatch(ExactlyOnceSink(options, topic))`.

Spark's own Kafka sink is at-least-once. This one writes a micro-batch in one transaction, which also commits the
micro-batch's number as the offset of a group of its own (KIP-98). So a micro-batch that Spark repeats after a crash is
recognised and skipped. Readers need `isolation.level=read_committed`.

All tasks write with one transactional id and epoch, each to its own partitions of the topic; the driver begins and ends
the transaction. A failed task may have written some rows, so the whole micro-batch is repeated, in a new transaction
under a new epoch, and not the task. A driver that was suspended and has a successor is fenced by that.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf

from anabranch.client.cluster import Cluster, Place
from anabranch.client.connection import Connection
from anabranch.client.errors import ClientError
from anabranch.client.partitioner import partition_of_key
from anabranch.client.settings import client_settings
from anabranch.client.transactional import ProducerFenced, ProducerIdentity, TransactionalProducer
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record
from anabranch.spark.connect import is_connect
from anabranch.spark.kafka_options import client_properties

BATCH_BYTES_MAX: Final = 512 << 10
LIMITS: Final = 10_000, BATCH_BYTES_MAX
"""Records of a batch, and bytes of their keys and values. A record that is larger is a batch of its own."""
FIRST_BATCHES: Final = 97
"""Sizes of a task's first record batches. A prime, so that attempts in succession differ in size."""
TIMEOUT_MS: Final = 600_000
"""Default limit for a micro-batch, after which brokers abort its transaction. Brokers allow 15 minutes by default."""
ATTEMPTS_MAX: Final = 3
CLIENT_ID: Final = b"anabranch-spark-sink"
_QUERY_ID: Final = "sql.streaming.queryId"


class SinkError(Exception):
    """A micro-batch that was not written. The text is the one line to show."""


class RepeatedStage(SinkError):
    """A stage that Spark repeated, whose tasks may have written different rows."""


class AnotherQuery(SinkError):
    """Another driver writes with the same name."""


@dataclass(slots=True)
class TransactionalWriter:
    """Writes rows into a topic, each time in one transaction with the topic's offsets of a group.

    Every failure is a ClientError, ProducerFenced if another process writes with the name, or what Spark raises.
    """

    options: Mapping[str, str]
    """`kafka.bootstrap.servers` and other properties of a client, as for Spark's Kafka sink."""
    topic: str
    name: str
    """Transactional id, and group."""
    timeout_ms: int = TIMEOUT_MS
    compression: Compression = Compression.NONE
    _identity: ProducerIdentity | None = field(default=None, init=False)

    def write(
        self, rows: DataFrame, offsets: Mapping[Place, int], is_due: Callable[[Mapping[Place, int]], bool]
    ) -> bool:
        """Write rows and commit offsets, if that is due by the offsets that are committed already. Returns whether."""
        with connected(self.options) as producer:
            rows = rows.select(*_columns(rows, producer.partition_count(self.topic)))
            failure: Exception | None = None
            for _ in range(ATTEMPTS_MAX):
                # A successor has no identity to continue, and takes over; a driver that has one continues with it.
                self._identity = identity = producer.begin(self.name, self.timeout_ms, after=self._identity)
                if not is_due(producer.committed_offsets(self.name, list(offsets))):
                    return False
                write = partial(_write_task, dict(self.options), self.topic, identity, self.compression)
                try:
                    # Not aggregated by Spark: tasks whose results are lost on the way would write again.
                    done = rows.repartition("_partition").mapInArrow(write, "stage INT").collect()
                    _refuse_repeated_stage(rows.sparkSession, {row["stage"] for row in done})
                except (PySparkException, RepeatedStage) as error:
                    failure = error
                    with suppress(ClientError):  # none was open yet; or another driver has begun, as `begin` will say
                        producer.end(identity, commit=False)
                    continue
                producer.commit_offsets(identity, self.name, offsets)
                producer.end(identity, commit=True)
                return True
        assert failure is not None, "each attempt failed"
        raise failure


@dataclass(slots=True)
class ExactlyOnceSink:
    """Function for `foreachBatch`. Rows have `value`, and may have `key`, `headers` and `partition`."""

    options: Mapping[str, str]
    """`kafka.bootstrap.servers` and other properties of a client, as for Spark's Kafka sink."""
    topic: str
    name: str | None = None
    """Transactional id, and group that has the progress. Default: one for the query's checkpoint.

    A query of Spark Connect has no default.
    """
    timeout_ms: int = TIMEOUT_MS
    compression: Compression = Compression.NONE
    _writer: TransactionalWriter | None = field(default=None, init=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch. Raises SinkError, AnotherQuery, and what Spark raises."""
        if self._writer is None:
            name = self.name or self._query_name(batch)
            self._writer = TransactionalWriter(self.options, self.topic, name, self.timeout_ms, self.compression)
        writer, progress = self._writer, (self.topic, 0)
        try:
            writer.write(batch, {progress: batch_id + 1}, lambda found: is_next(writer.name, found[progress], batch_id))
        except ProducerFenced as error:
            raise AnotherQuery(f"{writer.name}: micro-batch {batch_id}: {error}") from error
        except ClientError as error:
            raise SinkError(f"{writer.name}: micro-batch {batch_id}: {error}") from error

    def _query_name(self, batch: DataFrame) -> str:
        if is_connect(batch.sparkSession):
            raise SinkError("Spark Connect does not tell a query's id: give the sink a name of its own as `name`")
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise SinkError("the sink has no name, and is not called by a streaming query: give one as `name`")
        return f"anabranch-sink-{query_id}"


def is_next(name: str, committed: int, batch_id: int) -> bool:
    """Return whether a micro-batch is not written yet, by the number behind the last one that is; -1: none is.

    Raises SinkError if it is not the last one either: Spark repeats no other.
    """
    if committed > batch_id + 1:
        raise SinkError(
            f"{name}: micro-batch {batch_id} follows {committed - 1}, which is written: the checkpoint is new, or an "
            f"older copy, and records would be skipped; use another name"
        )
    return committed <= batch_id


def _refuse_repeated_stage(spark: SparkSession, stages: Collection[int]) -> None:
    """Raise RepeatedStage if Spark has run one of the stages more than once. Spark Connect does not tell."""
    if is_connect(spark):
        return
    tracker = spark.sparkContext.statusTracker()
    for stage in stages:
        info = tracker.getStageInfo(stage)
        if info is not None and info.currentAttemptId > 0:
            raise RepeatedStage(f"Spark has repeated the stage {stage}, which writes the rows")


@contextmanager
def connected(options: Mapping[str, str]) -> Iterator[TransactionalProducer]:
    """Open a producer with the options of a sink, and close it. Raises SinkError, and PropertyError."""
    producer = TransactionalProducer(connecting(options))
    try:
        yield producer
    finally:
        producer.close()


def _columns(batch: DataFrame, count: int) -> Sequence[Any]:
    """Return the columns of the records, and the partition that each one goes to, as Kafka's clients choose it."""
    if "value" not in batch.columns:
        raise SinkError(f"the rows have no column `value`; they have {', '.join(batch.columns)}")
    none = f.lit(None)
    key = (f.col("key") if "key" in batch.columns else none).cast("binary")
    headers = f.col("headers") if "headers" in batch.columns else none

    def partitions_of(keys: pa.Array) -> pa.Array:
        found = [None if key is None else partition_of_key(key, count) for key in keys.to_pylist()]
        return pa.array(found, pa.int32())

    vectorised: Any = arrow_udf  # Spark infers the kind of function from its type hints; its type stubs do not
    keyed = vectorised(partitions_of, returnType="INT")
    spread = f.pmod(f.monotonically_increasing_id(), f.lit(count))
    chosen = f.coalesce(keyed(key), spread)
    given = f.col("partition") if "partition" in batch.columns else none
    return [
        key.alias("key"),
        f.col("value").cast("binary").alias("value"),
        headers.cast("array<struct<key: string, value: binary>>").alias("headers"),
        f.coalesce(given, chosen).cast("int").alias("_partition"),
    ]


def connecting(options: Mapping[str, str]) -> Callable[[], Cluster]:
    """Return a function that connects with the options of a sink. Raises SinkError, and PropertyError."""
    properties = client_properties(options)
    servers = properties.pop("bootstrap.servers", None)
    if servers is None:
        raise SinkError("the option kafka.bootstrap.servers is not set")
    settings = client_settings(properties)
    return lambda: Cluster(servers, lambda host, port: Connection(host, port, settings, client_id=CLIENT_ID))


# in tasks


def _write_task(
    options: Mapping[str, str],
    topic: str,
    identity: ProducerIdentity,
    compression: Compression,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task, and yield the number of its stage."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber():
        raise SinkError("a task that writes into a transaction is not repeated by itself: the micro-batch is")
    # Tasks of a stage that is repeated count as first attempts. Batches with the numbers of the former attempt's would
    # pass for repeats, with other rows in them. Those of another size are out of order, which fails the task; where all
    # rows of a partition fit into the first batch, the driver notices afterwards.
    attempt = 0 if context is None else context.taskAttemptId()
    with connected(options) as producer:
        _write_rows(producer, topic, identity, compression, batches, attempt % FIRST_BATCHES + 1)
    yield pa.RecordBatch.from_pydict({"stage": pa.array([0 if context is None else context.stageId()], pa.int32())})


def _write_rows(
    producer: TransactionalProducer,
    topic: str,
    identity: ProducerIdentity,
    compression: Compression,
    batches: Iterable[pa.RecordBatch],
    first: int,
) -> None:
    """Write rows. `first` is the largest number of records in a partition's first batch.

    Its bytes are limited in proportion.
    """
    first_limits = first, BATCH_BYTES_MAX * first // FIRST_BATCHES
    waiting: dict[int, list[Record]] = {}
    sizes: dict[int, int] = {}
    written: dict[int, int] = {}

    def send(partition: int) -> None:
        if partition not in written:
            producer.add_partitions(identity, topic, [partition])
            written[partition] = 0
        records = waiting.pop(partition)
        producer.produce(identity, (topic, partition), records, written[partition], compression)
        written[partition] += len(records)
        sizes[partition] = 0

    for batch in batches:
        for row in batch.to_pylist():
            partition, key, value = row["_partition"], row["key"], row["value"]
            headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
            record_bytes = len(key or b"") + len(value or b"")
            if partition in waiting:
                records_max, bytes_max = LIMITS if partition in written else first_limits
                if len(waiting[partition]) >= records_max or sizes[partition] + record_bytes > bytes_max:
                    send(partition)
            waiting.setdefault(partition, []).append(Record(key, value, _now_ms(), headers))
            sizes[partition] = sizes.get(partition, 0) + record_bytes
    for partition in list(waiting):
        send(partition)


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
