"""Dead letters in a topic: records as they were, with headers that say where they come from and what is wrong.

A micro-batch is one transaction, which also records the micro-batch's number (see `spark.kafka_sink`). Records cannot
be removed from a topic, so a replay is a consumer with its own group: in one transaction it writes again the letters
that stay dead, and commits the offset up to which it has read.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.client.cluster import EARLIEST, LATEST, Cluster, Place
from anabranch.client.errors import ClientError
from anabranch.client.transactional import ProducerFenced
from anabranch.protocol.messages.metadata import MetadataResponseTopic
from anabranch.spark.kafka_options import PREFIX
from anabranch.spark.kafka_sink import SinkError, TransactionalWriter, connected, connecting, is_next
from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError
from anabranch.spark.pipeline.merge import PLACE_COLUMNS
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source_options import bootstrap_of, client_options

REPLAYS: Final = "replay"
"""Stands for replays where queries have their ids."""
OPEN_S: Final = 10.0
"""Time to wait for an open transaction. That of a large micro-batch is left for the next replay."""
OPEN_POLL_S: Final = 0.05
HEADERS: Final[Mapping[str, str]] = {
    "topic": "__connect.errors.topic",
    "partition": "__connect.errors.partition",
    "offset": "__connect.errors.offset",
    "error": "__connect.errors.exception.message",
    "timestamp": "anabranch.timestamp",
    "batch_id": "anabranch.batch",
    "table": "anabranch.table",
}
"""Headers that follow the record's own, by column. All are texts; where Kafka Connect has a name, it is that (KIP-298).

Several tables may share a topic of dead letters.
"""


class _Bounds(NamedTuple):
    """Offsets between which letters were read."""

    first: Mapping[Place, int]
    """First offsets that the topic has."""
    end: Mapping[Place, int]
    """Offsets behind the last letters."""
    committed: Mapping[Place, int]
    """Offsets behind what replays have read; -1: none has."""

    @property
    def begin(self) -> Mapping[Place, int]:
        """Offsets of the first letters to read."""
        # If a topic was recreated, the committed offset belongs to the old one.
        return {
            place: committed if first <= (committed := self.committed[place]) <= self.end[place] else first
            for place, first in self.first.items()
        }


@dataclass(slots=True)
class DeadLetterTopic:
    """Dead letters of a table, in a topic."""

    spark: SparkSession
    options: Mapping[str, str]
    """`kafka.bootstrap.servers` and other properties of a client."""
    topic: str
    table: str
    """Name or location of the table."""
    _writers: dict[str, TransactionalWriter] = field(default_factory=dict, init=False)
    _frozen: "tuple[DataFrame, _Bounds] | None" = field(default=None, init=False)

    @classmethod
    def of(cls, spark: SparkSession, pipeline: PipelineSettings) -> "DeadLetterTopic":
        """Return the topic that a pipeline names. Raises SettingError."""
        given = client_options(pipeline.source)
        options = {name: value for name, value in given.items() if name.startswith(PREFIX)}
        options[f"{PREFIX}bootstrap.servers"] = bootstrap_of(pipeline.source, given)
        return cls(spark, options, pipeline.dead_letters.topic or "", pipeline.table.place)

    @property
    def place(self) -> str:
        """Name, for messages."""
        return f"topic {self.topic}"

    def exists(self) -> bool:
        """Return whether the brokers have the topic. Raises PipelineError."""
        with self._one_line_errors(), connecting(self.options)() as cluster:
            (found,) = cluster.describe_topics([self.topic]).topics
            return bool(found.partitions)

    def committed(self, query_id: str) -> int:
        """Return the number of the last micro-batch of a query in the topic, or -1. Raises PipelineError."""
        with self._one_line_errors(), connected(self.options) as producer:
            progress = (self.topic, 0)
            return max(producer.committed_offsets(self._name(query_id), [progress])[progress], 0) - 1

    def append(self, rows: DataFrame, query_id: str, batch_id: int) -> None:
        """Write a micro-batch in one transaction, unless the topic has it. Raises PipelineError, AnotherDriver."""
        progress = (self.topic, 0)
        with self._one_line_errors():
            self._writer(query_id).write(
                self._with_headers(rows),
                {progress: batch_id + 1},
                lambda found: is_next(self._name(query_id), found[progress], batch_id),
            )

    def frozen(self) -> DataFrame:
        """Return the letters that no replay has put back, with the columns of a table of dead letters.

        They are fixed at the call, even if the rows are read again later. Raises PipelineError.
        """
        bounds = self._find()
        options = {
            **self.options,
            "kafka.isolation.level": "read_committed",
            "includeHeaders": "true",
            "subscribe": self.topic,
            "startingOffsets": _json(bounds.begin),
            "endingOffsets": _json(bounds.end),
        }
        rows = self._parsed(self.spark.read.format("kafka").options(**options).load())
        self._frozen = rows, bounds
        return rows

    def remove(self, records: DataFrame) -> None:
        """Take letters out of those that `frozen` has returned: the others are written again behind them.

        `records` has the columns of places, each once. Raises PipelineError; AnotherDriver if another replay has
        read the letters since.
        """
        assert self._frozen is not None, "they were read before"
        rows, bounds = self._frozen
        others = self._with_headers(rows.join(records, PLACE_COLUMNS, "left_anti"))
        with self._one_line_errors():
            done = self._writer(REPLAYS).write(others, bounds.end, lambda found: found == bounds.committed)
        if not done:
            raise AnotherDriver(f"{self.place}: another replay was faster; run it again")

    def _find(self) -> "_Bounds":
        """Find where the letters are that no replay has read."""
        with self._one_line_errors(), connecting(self.options)() as cluster, connected(self.options) as producer:
            topics = cluster.topics([self.topic])
            first = cluster.list_offsets(topics, EARLIEST)
            end = _end_of(cluster, topics)
            if not len(first) == len(end) == len(topics[0].partitions):
                raise ClientError("not all of its partitions have a leader")
            return _Bounds(first, end, producer.committed_offsets(self._name(REPLAYS), list(end)))

    def _parsed(self, records: DataFrame) -> DataFrame:
        """Return the letters of this table among the records of the topic, with the columns of a dead-letter table."""
        count = len(HEADERS)
        own = {column: f.try_element_at("headers", f.lit(index - count)) for index, column in enumerate(HEADERS)}
        text = {column: header["value"].cast("string") for column, header in own.items()}
        before = f.size("headers") - count
        columns = {
            "topic": text["topic"],
            "partition": text["partition"].cast("int"),
            "offset": text["offset"].cast("bigint"),
            "timestamp": f.timestamp_millis(text["timestamp"].cast("bigint")),
            "key": f.col("key"),
            "value": f.col("value"),
            "headers": f.when(before > 0, f.slice("headers", f.lit(1), before)),
            "error": text["error"],
            "batch_id": text["batch_id"].cast("bigint"),
        }
        is_own = (own["table"]["key"] == HEADERS["table"]) & (text["table"] == self.table)
        return records.filter(is_own).select(*(column.alias(name) for name, column in columns.items()))

    def _with_headers(self, letters: DataFrame) -> DataFrame:
        """Return records of the topic from rows of a dead-letter table."""
        found = {column: f.col(column) for column in HEADERS if column != "table"}
        found |= {"timestamp": f.unix_millis("timestamp"), "table": f.lit(self.table)}
        own = [
            f.struct(f.lit(name).alias("key"), found[column].cast("string").cast("binary").alias("value"))
            for column, name in HEADERS.items()
        ]
        headers = f.concat(f.coalesce("headers", f.array()), f.array(*own))
        return letters.select("key", "value", headers.alias("headers"))

    def _writer(self, of: str) -> TransactionalWriter:
        """Return the writer of a query, or of replays, which continues with its identity."""
        if of not in self._writers:
            self._writers[of] = TransactionalWriter(self.options, self.topic, self._name(of))
        return self._writers[of]

    def _name(self, of: str) -> str:
        return f"anabranch-dead-letters-{of}-{self.table}"

    @contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except ProducerFenced as error:
            raise AnotherDriver(f"{self.place}: {error}") from error
        except (ClientError, SinkError) as error:
            raise PipelineError(f"{self.place}: {error}") from error


def _end_of(cluster: Cluster, topics: Sequence[MetadataResponseTopic]) -> dict[Place, int]:
    """Return the offsets behind the last committed records, when no transaction is open or after a while.

    Brokers answer the end of a transaction before its records can be read.
    """
    until = time.perf_counter() + OPEN_S
    while True:
        end = cluster.list_offsets(topics, LATEST, read_committed=True)
        if end == cluster.list_offsets(topics, LATEST) or time.perf_counter() > until:
            return end
        time.sleep(OPEN_POLL_S)


def _json(offsets: Mapping[Place, int]) -> str:
    (topic,) = {topic for topic, _ in offsets}
    return json.dumps({topic: {str(partition): offset for (_, partition), offset in offsets.items()}})
