"""Topics to a partitioned Parquet table, each record exactly once.

The Kafka source takes offset ranges down in the checkpoint before it reads them, and the file sink commits the files of
a micro-batch by writing one entry to its log (`_spark_metadata`): a batch that is repeated after a crash replaces its
own earlier try. A reader must go through that log, as `spark.read.parquet` does; files that it does not name are
leftovers. Nothing is dropped: what does not decode keeps its raw value beside an empty `data`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pyspark.errors import ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType

SOURCE_OPTIONS = {"includeHeaders": "true", "kafka.max.poll.records": "10000"}
"""Larger polls than the client's default: the source asks for offsets twice per poll, which costs half of its time."""


RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class IngestError(ValueError):
    """A setting of the job that can't be; the text names it."""


class Period(StrEnum):
    """How long the records of one partition of the table are apart at most."""

    NONE = "none"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


PERIOD_FORMATS = {Period.HOUR: "yyyy-MM-dd-HH", Period.DAY: "yyyy-MM-dd", Period.MONTH: "yyyy-MM"}


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """One job: from which topics, into which table, how often."""

    bootstrap_servers: str
    table: str
    """Folder or URL of the table."""
    checkpoint: str
    """Folder or URL that only this job uses; it holds how far the job has come."""
    topics: Sequence[str] = ()
    topic_pattern: str | None = None
    """Regular expression of topic names (Java's), instead of `topics`."""
    schema: str | None = None
    """DDL of the JSON values (`a INT, b STRING`), or a schema in Spark's JSON; None leaves values undecoded."""
    period: Period = Period.DAY
    """The table is partitioned by topic and by the record's time, in UTC, at this grain."""
    interval: str | None = None
    """Time between micro-batches (`10 seconds`) of a job that runs on; None takes what is there now, then stops."""
    starting_offsets: str = "earliest"
    """For a new checkpoint: `earliest`, `latest`, or JSON of offsets per partition."""
    offsets_per_batch_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the Kafka source, as `kafka.security.protocol`."""


def source_options(settings: IngestSettings) -> dict[str, str]:
    """Options of the Kafka source for a job. Raises IngestError."""
    if bool(settings.topics) == bool(settings.topic_pattern):
        raise IngestError("name either topics or a topic pattern, and not both")
    options = {
        **SOURCE_OPTIONS,
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "startingOffsets": settings.starting_offsets,
        **settings.options,
    }
    if settings.topic_pattern:
        options["subscribePattern"] = settings.topic_pattern
    else:
        options["subscribe"] = ",".join(settings.topics)
    if settings.offsets_per_batch_max is not None:
        options["maxOffsetsPerTrigger"] = str(settings.offsets_per_batch_max)
    return options


def parse_schema(text: str) -> StructType:
    """A schema from DDL or from Spark's JSON; needs a running session. Raises IngestError."""
    try:
        schema = StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else DataType.fromDDL(text)
    except (ParseException, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise IngestError(f"the schema can't be read: {reason}") from error
    if not isinstance(schema, StructType):
        raise IngestError(f"the schema must list columns, but it is a {schema.simpleString()}")
    return schema


def shape(records: DataFrame, settings: IngestSettings) -> DataFrame:
    """Columns of the table from those of the Kafka source."""
    columns = [f.col(name) for name in RECORD_COLUMNS]
    if settings.schema is not None:
        columns.append(f.from_json(f.col("value").cast("string"), parse_schema(settings.schema)).alias("data"))
    if settings.period is not Period.NONE:
        columns.append(f.date_format("timestamp", PERIOD_FORMATS[settings.period]).alias(settings.period.value))
    return records.select(*columns)


def start_ingest(spark: SparkSession, settings: IngestSettings) -> StreamingQuery:
    """Start the job; with no interval it ends by itself when everything present at its start is in the table.

    Raises IngestError, and what Spark raises.
    """
    records = spark.readStream.format("kafka").options(**source_options(settings)).load()
    partition_columns = ["topic"] if settings.period is Period.NONE else ["topic", settings.period.value]
    writer = (
        shape(records, settings)
        .writeStream.queryName("ingest")
        .format("parquet")
        .partitionBy(*partition_columns)
        .option("path", settings.table)
        .option("checkpointLocation", settings.checkpoint)
    )
    if settings.interval is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=settings.interval).start()
