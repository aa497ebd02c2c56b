"""Sections of a pipeline's TOML file: settings, defaults, and the rules within each section.

Values only; nothing here needs Spark. Rules across sections are in `settings.py`.
"""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from anabranch.client.properties import environment_name, is_secret
from anabranch.spark.pipeline.layout import (
    PartitionColumn,
    Problem,
    SortColumn,
    option_problems,
    parse_partition_column,
    parse_sort_column,
    property_problems,
)
from anabranch.tables.framing import Framing

DURATION = re.compile(r"\s*\d+\s*(milliseconds?|seconds?|minutes?|hours?|days?)\s*", re.IGNORECASE)
MIB = 1 << 20
ID = r"^([0-9]+|(?i:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})|globalId:[0-9]+)$"
"""Id of a schema in a registry, a UUID, or Apicurio's global id."""
TOPIC = "{topic}"
"""Stands for a topic in names of tables, files and subjects: each topic has a table of its own."""
NOT_PER_TOPIC = f"has no {TOPIC}, so there is one table for all topics"
SMALL_FILES = "small files are rewritten in tables of format iceberg or delta only"
Column = TypeVar("Column")


class SettingConflict(ValueError):
    """Settings that exclude each other. `path` names the one to change, from the section that raises this."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


class Section(BaseModel):
    """A table of the file. It is frozen, unknown names are errors, and its `problems` are, too."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="after")
    def check(self) -> Self:
        """Check the rules of this section. Raises SettingConflict for the first that is broken."""
        for path, message in self.problems():
            raise SettingConflict(path, message)
        return self

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        yield from ()

    def without_effect(self, reason: str, *names: str) -> Iterator[Problem]:
        """Yield those of some settings that the file names, though other settings make them ineffective."""
        return (((name,), f"has no effect: {reason}") for name in names if name in self.model_fields_set)


def broken(*rules: tuple[object, str, str]) -> Iterator[Problem]:
    """Yield the broken ones of some rules: whether it is broken, the setting to change, and what to do."""
    return ((tuple(filter(None, setting.split("."))), message) for wrong, setting, message in rules if wrong)


def _duration(value: Any) -> Any:
    if isinstance(value, str) and not DURATION.fullmatch(value):
        raise ValueError("expected a time such as '10 seconds', '500 milliseconds' or '1 hour'")
    return value


def _text_values(value: Any) -> Any:
    """Convert TOML's numbers and booleans to text, as Spark's options require."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item) if isinstance(item, int | float) else item
        for key, item in value.items()
    }


Duration = Annotated[str, BeforeValidator(_duration)]
Options = Annotated[dict[str, str], BeforeValidator(_text_values)]


class TableFormat(StrEnum):
    """Format of the table."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"


class TableMode(StrEnum):
    """Effects of a record on the table."""

    APPEND = "append"
    UPSERT = "upsert"
    CHANGELOG = "changelog"

    @property
    def is_keyed(self) -> bool:
        """True if the table has one row per topic and key."""
        return self is not TableMode.APPEND


class KeyedRows(StrEnum):
    """Rows that a table with keys has of each topic and key."""

    NEWEST = "newest"
    """That of the newest record; none, if that deletes it."""
    MARKED = "marked"
    """That of the newest record with one; `deleted` tells whether a later one deletes it."""
    HISTORY = "history"
    """One for each record, with the time in which it was the newest."""


class PartitionPeriod(StrEnum):
    """Period of event time that one partition of the table covers."""

    NONE = "none"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


def _partitions(value: Any) -> Any:
    """Parse the columns of a list; the name of a period stays a text."""
    if isinstance(value, str) and value in list(PartitionPeriod):
        return value
    columns = _columns(value, parse_partition_column)
    if not columns:
        raise ValueError("expected none, hour, day or month, or a list such as ['topic', 'day(timestamp)']")
    if len(set(columns)) < len(columns):
        raise ValueError("a column is named twice")
    return columns


def _sort_columns(value: Any) -> Any:
    columns = _columns(value, parse_sort_column)
    if columns is None:
        raise ValueError("expected a list such as ['data.name', 'timestamp desc']")
    if len({each.column for each in columns}) < len(columns):
        raise ValueError("a column is named twice")
    return columns


def _columns(value: Any, parse: Callable[[str], Column]) -> tuple[Column, ...] | None:
    """Parse a list of texts; return None for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return None
    return tuple(parse(each) for each in value)


class LatePolicy(StrEnum):
    """Treatment of records that are older than the watermark."""

    KEEP = "keep"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


class SourceSection(Section):
    """Source of the records."""

    kind: Literal["kafka", "direct"] = "kafka"
    """`kafka`: Spark's Kafka source. `direct`: the objects in the store, without a broker (see `options`)."""
    bootstrap_servers: str = "127.0.0.1:9092"
    """Nodes to connect to first, `HOST:PORT,...`."""
    topics: tuple[str, ...] = ()
    """Names of topics."""
    topic_pattern: str | None = None
    """Regular expression of topic names (Java's), instead of `topics`."""
    starting_offsets: Literal["earliest", "latest"] | dict[str, dict[str, int]] = "earliest"
    """For a new checkpoint: `earliest`, `latest`, or topic to partition to offset (-2 earliest, -1 latest)."""
    starting_time_ms: int | None = Field(default=None, ge=0)
    """For a new checkpoint, instead of `starting_offsets`: the first record at or after this time (Unix, ms)."""
    offsets_per_batch_max: int | None = Field(default=None, ge=1)
    """Rate limit: maximum of offsets in one micro-batch, over all partitions."""
    tasks_min: int | None = Field(default=None, ge=1)
    """Minimum of Spark tasks that read one micro-batch; none: one per partition."""
    fail_on_data_loss: bool = True
    """Fail when records were deleted before they were read (retention, a deleted topic); otherwise continue without
    them."""
    read_committed: bool = True
    """Leave out records of aborted and open transactions."""
    client_config: str | None = None
    """File with Kafka's client properties, relative to this file; those of `options` override it."""
    options: Options = {}
    """Further options of the source, such as `kafka.security.protocol`. Secrets are refused here."""

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        yield from broken(
            (
                bool(self.topics) == bool(self.topic_pattern),
                "topics",
                "name either topics or a topic_pattern, and not both",
            ),
            (
                self.starting_time_ms is not None and "starting_offsets" in self.model_fields_set,
                "starting_time_ms",
                "begin either at starting_offsets or at starting_time_ms, and not both",
            ),
            (
                self.client_config is not None and self.kind == "direct",
                "client_config",
                "only source.kind = 'kafka' has a Kafka client",
            ),
        )
        for option in filter(is_secret, self.options):
            variable = environment_name(option.removeprefix("kafka."))
            yield (
                ("options", option),
                f"a secret: put it into the file of source.client_config, or into the environment variable {variable}",
            )


class DecodeSection(Section):
    """Decoding of values, which become the column `data`, or of keys, which stay the column `key`."""

    format: Literal["none", "text", "json", "avro", "protobuf"] = "none"
    """`none` keeps the bytes as they are, `text` is UTF-8; otherwise the fields become those of a struct."""
    schema_file: str | None = None
    """json: DDL, Spark's JSON, JSON Schema or Kafka Connect's; avro: `.avsc`; protobuf: a descriptor set. Relative to
    this file. With a table for each topic it may contain `{topic}`."""
    registry: str | None = None
    """URL of a schema registry; default, without a schema file: that of the first of the nodes in `source`, at port
    9644. The bytes begin with Confluent's header of five, and new schema versions add columns."""
    registry_credentials_env: str | None = None
    """Name of the environment variable with `user:password` for the registry."""
    subject: str | None = None
    """Subject in the registry; default: `{topic}-value` or `{topic}-key`, if there is one topic or a table for each."""
    header: Framing | None = None
    """Place of the schema's id: `confluent` for five bytes before the value (Apicurio's with four, too),
    `confluent-header` and `apicurio-header` for a header of the record, `apicurio-8-byte`, `glue`, or `none`; default:
    `confluent` with a registry."""
    schemas: dict[Annotated[str, Field(pattern=ID)], str] = {}
    """avro, without a registry: files of the schemas that records were written with, by the id or UUID in their header;
    default: all were written with that of `schema_file`."""
    message: str | None = None
    """protobuf: full name of the message; default: the first of the schema file. Needed if a registry's schema has
    several."""
    encodings: dict[str, str] = {}
    """json: what numbers and texts of some fields stand for, by field: `seconds`, `milliseconds`, `microseconds`,
    `nanoseconds` or `days` since 1970, a pattern such as `%d/%m/%Y`, or a logical type such as
    `io.debezium.time.MicroTimestamp`."""
    strict: bool = True
    """Refuse what would be lost or guessed; `false`: take what can be taken."""

    @property
    def framing(self) -> Framing:
        """Place of the schema's id."""
        return self.header or (Framing.CONFLUENT if self.uses_registry else Framing.NONE)

    @property
    def has_schema(self) -> bool:
        """True for formats with a schema."""
        return self.format not in ("none", "text")

    @property
    def uses_registry(self) -> bool:
        """True if the schema is in a registry."""
        return self.has_schema and self.schema_file is None

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        yield from broken(
            (
                self.has_schema and self.schema_file is not None and self.registry is not None,
                "registry",
                "the schema is either in a registry or in a schema_file: leave one of them out",
            )
        )
        if not self.has_schema:
            reason = "text has no schema" if self.format == "text" else "format is not set"
            yield from self.without_effect(reason, "schema_file", "registry", "header")
        framing, confluents = self.framing, (Framing.NONE, Framing.CONFLUENT, Framing.CONFLUENT_HEADER)
        if self.schemas and (self.format != "avro" or framing is Framing.NONE or self.uses_registry):
            yield ("schemas",), "has no effect: only avro with a schema_file and a header looks for schemas in files"
        yield from broken(
            (framing is Framing.GLUE and self.uses_registry, "header",
             "the registry of Glue is not asked: name a schema_file, and the files of other versions in schemas"),
            (self.format == "protobuf" and framing not in confluents, "header",
             "messages of protobuf are found by Confluent's headers only"),
            (self.format == "json" and not self.strict and framing not in confluents[:2], "header",
             "without strict decoding there is none and confluent only"),
        )  # fmt: skip
        if self.format != "json":
            yield from self.without_effect("only format json has them", "encodings")
        yield from broken(
            (self.encodings and not self.strict, "encodings", "values are converted by strict decoding only")
        )
        if self.format != "protobuf":
            yield from self.without_effect("only format protobuf has messages to choose from", "message")
        if not self.uses_registry:
            yield from self.without_effect("there is no registry", "subject", "registry_credentials_env")


class TableSection(Section):
    """Table that the records are written to."""

    format: TableFormat = TableFormat.ICEBERG
    mode: TableMode = TableMode.APPEND
    """`append`: each record is a row. iceberg, delta: `upsert`: each topic and key has one row, of its newest record,
    and a record without a value deletes it; `changelog`: the same from Debezium's envelopes."""
    deletes: Literal["remove", "mark"] = "remove"
    """With keys: `remove` deletes the row; `mark` keeps it, with `deleted` and `deleted_at`."""
    history: bool = False
    """With keys: a row for each record, with `valid_from`, `valid_to`, `is_current` and `deleted` (a slowly changing
    dimension of type 2)."""
    name: str | None = None
    """iceberg: `catalog.namespace.table`. With `{topic}` in it, such as `lake.db.{topic}`, each topic has a table of
    its own."""
    location: str | None = None
    """delta, parquet: folder or URL, relative to the pipeline's file. delta: with `{topic}` in it, each topic has a
    table of its own."""
    topic_names: dict[str, Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]] = {}
    """Names that replace `{topic}` in the names of some topics' tables, by topic."""
    partition_by: Annotated[PartitionPeriod | tuple[PartitionColumn, ...], BeforeValidator(_partitions)] = (
        PartitionPeriod.DAY
    )
    """`none`, or `hour`, `day` or `month` of the event's time, or a list of columns and transforms such as
    `bucket(16, key)`. Default of a table with keys: `bucket(16, key)`, or `none` where that is not possible."""
    sort_by: Annotated[tuple[SortColumn, ...], BeforeValidator(_sort_columns)] = ()
    """iceberg: columns that each file is sorted by, such as `data.name` or `timestamp desc nulls last`."""
    event_time: str | None = None
    """SQL expression of the event's time, such as `to_timestamp(data.at)`; default: the record's timestamp."""
    keep_value: bool = False
    """Keep the raw `value` in addition to `data`."""
    target_file_bytes: int = Field(default=128 * MIB, ge=1 * MIB)
    """iceberg, delta: file size that compaction of small files aims at."""
    properties: Options = {}
    """iceberg, delta: properties of the table, such as `write.parquet.compression-codec` or `delta.appendOnly`. An
    existing table gets them at the next start."""
    options: Options = {}
    """Options of the writer, such as `compression` for Parquet."""

    @property
    def keyed_rows(self) -> KeyedRows | None:
        """Rows of each topic and key; None for a table without keys."""
        if not self.mode.is_keyed:
            return None
        if self.history:
            return KeyedRows.HISTORY
        return KeyedRows.MARKED if self.deletes == "mark" else KeyedRows.NEWEST

    @property
    def time_column(self) -> str:
        """Column with the event's time."""
        return "timestamp" if self.event_time is None else "event_time"

    @property
    def place(self) -> str:
        """Name or location of the table."""
        return self.name or self.location or ""

    @property
    def catalog_name(self) -> str:
        """iceberg: first part of the table's name."""
        return (self.name or "").partition(".")[0]

    @property
    def is_per_topic(self) -> bool:
        """True if each topic is written to a table of its own."""
        return TOPIC in self.place

    @property
    def place_setting(self) -> str:
        """Name of the setting that says where the table is."""
        return "name" if self.format is TableFormat.ICEBERG else "location"

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        iceberg, parquet = self.format is TableFormat.ICEBERG, self.format is TableFormat.PARQUET
        place = "a name such as 'lake.db.flights'" if iceberg else "a location, a folder or URL"
        yield from broken(
            (not getattr(self, self.place_setting), "", f"a table of format {self.format} needs {place}"),
            (self.location if iceberg else self.name, "location" if iceberg else "name",
             f"a table of format {self.format} has {place} instead"),
            (iceberg and len(self.place.split(".")) < 3, "name",
             "expected catalog.namespace.table, such as 'lake.db.flights'"),
            (iceberg and TOPIC in self.catalog_name, "name", f"{TOPIC} can't be in the catalog's name"),
            (parquet and self.is_per_topic, "location",
             f"Spark's file sink writes one table: use iceberg or delta for {TOPIC}, or partition_by = ['topic']"),
            (self.topic_names and not self.is_per_topic, "topic_names",
             f"has no effect: table.{self.place_setting} {NOT_PER_TOPIC}"),
            (parquet and self.mode.is_keyed, "mode",
             "needs a table of format iceberg or delta: Spark's file sink only appends"),
        )  # fmt: skip
        if not self.mode.is_keyed:
            yield from self.without_effect(f"with mode = '{self.mode}' nothing is deleted", "deletes", "history")
        elif self.history:
            yield from self.without_effect("with history a deletion is a version of its own", "deletes")
        if parquet:
            yield from self.without_effect(SMALL_FILES, "target_file_bytes")
        yield from property_problems(self.format, self.properties)
        yield from option_problems(self.format, self.options)


class CatalogSection(Section):
    """iceberg: the catalog in the table's name. The settings become `spark.sql.catalog.<name>.*`."""

    type: str = "hadoop"
    """`hadoop` (a folder), `rest`, `jdbc`, `hive`, ..."""
    warehouse: str | None = None
    """Folder or URL; a folder is relative to the pipeline's file. Default of `hadoop`: `lake` next to that file.
    `rest`: the name that the service has for it."""
    uri: str | None = None
    """Address of a catalog that is a service or a database."""
    options: Options = {}
    """Further properties, such as `credential`."""

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        unsafe = self.type == "hadoop" and is_in_s3(self.warehouse) and "lock-impl" not in self.options
        rename = (
            "S3 renames no file in one step, so two writers of a hadoop catalog there can lose each other's commits"
        )
        yield from broken((unsafe, "type", f"{rename}: use jdbc, rest or hive"))


class DeadLetterSection(Section):
    """Table or topic for records that cannot be decoded, with all that the record had, its place and the error."""

    name: str | None = None
    """iceberg: default is the table's name and `_dead_letters`. With a table for each topic it contains `{topic}`."""
    location: str | None = None
    """delta, parquet: default is the table's location and `_dead_letters`. With a table for each topic likewise."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """iceberg, delta: write them into this topic instead, with headers that say where they come from and why."""

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        yield from broken(
            (
                self.topic and (self.name or self.location),
                "topic",
                "name either a topic or a table for dead letters, and not both",
            )
        )


class WatermarkSection(Section):
    """Limit on the lateness of records."""

    delay: Duration
    """iceberg, delta: a record is late if it is older than the newest event time of earlier micro-batches minus this.
    """
    late: LatePolicy = LatePolicy.DEAD_LETTER
    """Treatment of a late record: keep it, drop it, or write it to the dead-letter table."""
    ahead_max: Duration = "1 day"
    """Limit of an `event_time` beyond the record's own timestamp; what lies further is a dead letter."""


class TriggerSection(Section):
    """Schedule of micro-batches."""

    mode: Literal["available-now", "processing-time"] = "available-now"
    """`available-now` reads what exists at the start, and ends."""
    interval: Duration = "10 seconds"
    """Interval of `processing-time`."""

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        if self.mode == "available-now":
            yield from self.without_effect("trigger.mode is 'available-now'", "interval")


class CompactionSection(Section):
    """Rewriting of small files into large ones (Iceberg rewrite_data_files, Delta OPTIMIZE)."""

    batches: int = Field(default=50, ge=0)
    """iceberg, delta: rewrite after this many micro-batches, and at the end of an `available-now` run; 0: never."""
    files_min: int = Field(default=5, ge=2)
    """iceberg: number of small files in one partition from which a rewrite is worthwhile."""


class MaintenanceSection(Section):
    """Removal of data that a table no longer needs, between micro-batches. Otherwise metadata grows with each."""

    enabled: bool = True
    """iceberg, delta: `false` leaves it to `anabranch spark maintain`, or to tools of your own."""
    interval: Duration = "1 hour"
    """Time from one expiry of old snapshots to the next."""
    snapshot_age: Duration = "5 days"
    """Old versions of the table can be read for so long."""
    snapshots_min: int = Field(default=10, ge=1)
    """iceberg: number of the newest snapshots that stay, whatever their age."""
    snapshots_max: int = Field(default=1_000, ge=1)
    """iceberg: all but so many of the newest snapshots expire, whatever their age. Each commit lists them."""
    orphan_interval: Duration = "1 day"
    """Time from one search for files without a reference to the next. It lists the table's folder."""
    orphan_age: Duration = "3 days"
    """iceberg: age from which a file without a reference is deleted. It must be longer than any write to the table."""

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        few = f"less than snapshots_min = {self.snapshots_min}: raise it, or lower snapshots_min"
        yield from broken((self.snapshots_min > self.snapshots_max, "snapshots_max", few))


class OperationsSection(Section):
    """Monitoring of a running pipeline."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of Prometheus metrics over HTTP; none: no metrics, 0: any free port."""
    metrics_host: str = "127.0.0.1"
    """Address that the metrics are served on."""
    consumer_group: str | None = None
    """Consumer group to which consumed offsets are written, so that Kafka's lag tools see the pipeline."""

    def problems(self) -> Iterator[Problem]:
        """Yield the rules of this section that are broken."""
        if self.metrics_port is None:
            yield from self.without_effect("operations.metrics_port is not set", "metrics_host")


class SparkSection(Section):
    """Spark session. `--master` and `--conf` of the command line override these settings."""

    master: str | None = None
    """Spark master: `local[*]`, `spark://HOST:PORT`, `yarn`, `k8s://...`; default: all cores of this machine."""
    conf: Options = {}
    """Spark settings, such as `"spark.executor.memory" = "4g"`."""


def is_in_s3(place: str | None) -> bool:
    """Return whether a place is in S3, whatever its scheme calls it."""
    return (place or "").startswith(("s3a://", "s3://"))
