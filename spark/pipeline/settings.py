"""Settings of a pipeline's TOML file, with defaults and checks.

Values only; nothing here needs Spark. Rules across sections are checked at the end (`PipelineSettings.check_sections`),
so that an error names the setting to change.
"""

import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from anabranch.client.properties import environment_name, is_secret
from anabranch.spark.pipeline.layout import (
    PartitionColumn,
    SortColumn,
    TableLayout,
    layout_problems,
    option_problems,
    parse_partition_column,
    parse_sort_column,
)

DURATION = re.compile(r"\s*\d+\s*(milliseconds?|seconds?|minutes?|hours?|days?)\s*", re.IGNORECASE)
MIB = 1 << 20
KEY_BUCKETS = 16
"""Partitions of a new table with keys."""
TOPIC = "{topic}"
"""Stands for a topic in names of tables, files and subjects: each topic has a table of its own."""
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
"""Characters of topics that would need quotes in the name of a table."""
STRICT_FORMATS = ("json", "text")
"""Formats that can be decoded strictly or leniently."""
Column = TypeVar("Column")
Model = TypeVar("Model", bound=BaseModel)


class Section(BaseModel):
    """A table of the file. It is frozen, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SettingConflict(ValueError):
    """Two settings that exclude each other. `path` names the one to change."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


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
    """Parse a list of texts, or return None if it is none."""
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


class DecodeSection(Section):
    """Decoding of values, which become the column `data`, or of keys, which stay the column `key`."""

    format: Literal["none", "text", "json", "avro", "protobuf"] = "none"
    """`none` keeps the bytes as they are, `text` is UTF-8; otherwise the fields become those of a struct."""
    schema_file: str | None = None
    """json: DDL, Spark's JSON or JSON Schema; avro: `.avsc`; protobuf: a descriptor set. Relative to this file. With a
    table for each topic it may contain `{topic}`."""
    registry: str | None = None
    """URL of a schema registry. The bytes begin with Confluent's header of five, and new schema versions add columns.
    """
    registry_credentials_env: str | None = None
    """Name of the environment variable with `user:password` for the registry."""
    subject: str | None = None
    """Subject in the registry; default: `{topic}-value` or `{topic}-key`, if there is one topic or a table for each."""
    header: Literal["none", "confluent"] | None = None
    """Header of the bytes: `confluent` for Confluent's five bytes, or `none`; default: `confluent` with a registry."""
    message: str | None = None
    """protobuf: full name of the message; default: the first of the schema file. Needed if a registry's schema has
    several: its first message may be another one in the next version."""
    strict: bool = True
    """Refuse what would be lost or guessed: text after a JSON value, single quotes, `NaN`, bytes that are not UTF-8,
    and an `event_time` that gives no time. `false`: take the first value, replace the bytes, use the record's
    timestamp."""

    @property
    def has_header(self) -> bool:
        """True if the bytes begin with the magic byte and the schema's id."""
        return (self.header or ("confluent" if self.registry else "none")) == "confluent"

    @property
    def has_schema(self) -> bool:
        """True for formats with a schema."""
        return self.format not in ("none", "text")


class TableSection(Section):
    """Table that the records are written to."""

    format: TableFormat = TableFormat.ICEBERG
    mode: TableMode = TableMode.APPEND
    """`append`: each record is a row. iceberg, delta: `upsert`: each topic and key has one row, of its newest record,
    and a record without a value deletes it; `changelog`: the same from Debezium's envelopes."""
    name: str | None = None
    """iceberg: `catalog.namespace.table`. With `{topic}` in it, such as `lake.db.{topic}`, each topic has a table of
    its own, and `_` replaces what would need quotes in its name."""
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
    """iceberg, delta: file size that compaction of small files aims at. Parquet gets one file per micro-batch and
    partition."""
    properties: Options = {}
    """iceberg, delta: properties of the table, such as `write.parquet.compression-codec` or `delta.appendOnly`. An
    existing table gets them at the next start."""
    options: Options = {}
    """Options of the writer, such as `compression` for Parquet."""

    @property
    def time_column(self) -> str:
        """Column with the event's time."""
        return "timestamp" if self.event_time is None else "event_time"


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


class DeadLetterSection(Section):
    """Table or topic for records that cannot be decoded, with all that the record had, its place and the error."""

    name: str | None = None
    """iceberg: default is the table's name and `_dead_letters`. With a table for each topic it contains `{topic}`."""
    location: str | None = None
    """delta, parquet: default is the table's location and `_dead_letters`. With a table for each topic likewise."""
    topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")] | None = None
    """iceberg, delta: write them into this topic instead, with headers that say where they come from and why."""


class WatermarkSection(Section):
    """Limit on the lateness of records."""

    delay: Duration
    """iceberg, delta: a record is late if it is older than the newest event time of earlier micro-batches minus this.
    """
    late: LatePolicy = LatePolicy.DEAD_LETTER
    """Treatment of a late record: keep it, drop it, or write it to the dead-letter table."""
    ahead_max: Duration = "1 day"
    """Limit of an `event_time` beyond the record's own timestamp; what lies further is a dead letter, since it would
    make all others late."""


class TriggerSection(Section):
    """Schedule of micro-batches."""

    mode: Literal["available-now", "processing-time"] = "available-now"
    """`available-now` reads what exists at the start, and ends."""
    interval: Duration = "10 seconds"
    """Interval of `processing-time`."""


class CompactionSection(Section):
    """Rewriting of small files into large ones (Iceberg rewrite_data_files, Delta OPTIMIZE)."""

    batches: int = Field(default=50, ge=0)
    """iceberg, delta: rewrite after this many micro-batches, and at the end of an `available-now` run; 0: never."""
    files_min: int = Field(default=5, ge=2)
    """iceberg: number of small files in one partition from which a rewrite is worthwhile."""


class MaintenanceSection(Section):
    """Removal of what a table no longer needs, between micro-batches. Without it metadata grows with each of them."""

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


class OperationsSection(Section):
    """Monitoring of a running pipeline."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of Prometheus metrics over HTTP; none: no metrics, 0: any free port."""
    metrics_host: str = "127.0.0.1"
    """Address that the metrics are served on."""
    consumer_group: str | None = None
    """Consumer group to which consumed offsets are written, so that Kafka's lag tools see the pipeline."""


class SparkSection(Section):
    """Spark session. `--master` and `--conf` of the command line override these settings."""

    master: str | None = None
    """Spark master: `local[*]`, `spark://HOST:PORT`, `yarn`, `k8s://...`; default: all cores of this machine."""
    conf: Options = {}
    """Spark settings, such as `"spark.executor.memory" = "4g"`."""


class PipelineSettings(Section):
    """All settings of a pipeline's file."""

    name: str = Field(default="ingest", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Name of the query, in metrics and in Spark's user interface."""
    checkpoint: str
    """Folder or URL that only this pipeline uses, relative to its file. It stores the progress of the pipeline."""
    source: SourceSection
    table: TableSection
    decode: DecodeSection = DecodeSection()
    key: DecodeSection = DecodeSection()
    catalog: CatalogSection = CatalogSection()
    dead_letters: DeadLetterSection = DeadLetterSection()
    watermark: WatermarkSection | None = None
    trigger: TriggerSection = TriggerSection()
    compaction: CompactionSection = CompactionSection()
    maintenance: MaintenanceSection = MaintenanceSection()
    operations: OperationsSection = OperationsSection()
    spark: SparkSection = SparkSection()

    @model_validator(mode="after")
    def check_sections(self) -> Self:
        """Check rules across sections. Raises SettingConflict."""
        for path, message in (*_conflicts(self), *_without_effect(self)):
            raise SettingConflict(path, message)
        return self

    @property
    def catalog_name(self) -> str:
        """iceberg: first part of the table's name."""
        return (self.table.name or "").partition(".")[0]

    @property
    def has_table_per_topic(self) -> bool:
        """True if each topic is written to a table of its own."""
        return TOPIC in self.table_place

    def for_topic(self, topic: str | None) -> Self:
        """Return the settings of one topic's table, as if the file were about that topic only.

        None stands for all topics, where they share a table.
        """
        if topic is None:
            return self
        alias = self.table.topic_names.get(topic)
        name = alias or NOT_IN_NAMES.sub("_", topic)

        def with_topic(section: Model, text: str, *fields: str) -> Model:
            """Replace the placeholder in some settings of a section."""
            given = {field: getattr(section, field) for field in fields}
            return section.model_copy(
                update={field: value and value.replace(TOPIC, text) for field, value in given.items()}
            )

        def of_table(section: Model) -> Model:
            return with_topic(with_topic(section, name, "name"), alias or topic, "location")

        return self.model_copy(
            update={
                "source": self.source.model_copy(update={"topics": (topic,), "topic_pattern": None}),
                "table": of_table(self.table),
                "dead_letters": of_table(self.dead_letters),
                "decode": with_topic(self.decode, topic, "schema_file", "subject", "message"),
                "key": with_topic(self.key, topic, "schema_file", "subject", "message"),
            }
        )

    @property
    def table_place(self) -> str:
        """Name or location of the table."""
        return self.table.name or self.table.location or ""

    @property
    def dead_letter_place(self) -> str:
        """Name or location of the dead-letter table."""
        if self.table.format is TableFormat.ICEBERG:
            return self.dead_letters.name or f"{self.table.name}_dead_letters"
        return self.dead_letters.location or f"{(self.table.location or '').rstrip('/')}_dead_letters"

    @property
    def layout(self) -> TableLayout:
        """Layout of the table."""
        table = self.table
        named = table.model_fields_set
        partitions = table.partition_by
        if table.mode.is_keyed and "partition_by" not in named:
            # A row stays in its partition whatever its record's time, and a merge reads only those of its keys.
            has_buckets = table.format is TableFormat.ICEBERG and not self.key.has_schema
            partitions = (PartitionColumn("key", "bucket", KEY_BUCKETS),) if has_buckets else PartitionPeriod.NONE
        if isinstance(partitions, PartitionPeriod):
            period = partitions
            partitions = (PartitionColumn("topic"),) if table.format is TableFormat.PARQUET else ()
            if period is not PartitionPeriod.NONE:
                partitions = (*partitions, PartitionColumn(table.time_column, period.value))
        return TableLayout(partitions, table.sort_by, table.properties, "partition_by" in named, "sort_by" in named)

    @property
    def places(self) -> Mapping[str, str]:
        """Folders and URLs of the pipeline's files, by the names of their settings."""
        found = {
            "checkpoint": self.checkpoint,
            "table.location": self.table.location,
            "dead_letters.location": self.dead_letters.location,
            "catalog.warehouse": self.catalog.warehouse,
        }
        return {name: place for name, place in found.items() if place is not None}

    @property
    def uses_s3(self) -> bool:
        """True if files of the pipeline are in S3."""
        # A catalog that is a service may place tables in S3 itself; then the settings of S3 show it.
        has_settings = any(name.startswith("spark.hadoop.fs.s3a.") for name in self.spark.conf)
        return has_settings or any(map(is_in_s3, self.places.values()))

    def subject_of(self, part: Literal["key", "value"]) -> str:
        """Return the subject in the schema registry of the keys or the values."""
        section = self.key if part == "key" else self.decode
        return section.subject or f"{self.source.topics[0] if self.source.topics else ''}-{part}"

    @property
    def has_dead_letters(self) -> bool:
        """True if a record can be a dead letter at all."""
        late = self.watermark is not None and self.watermark.late is LatePolicy.DEAD_LETTER
        no_time = self.table.event_time is not None and (self.decode.strict or self.watermark is not None)
        undecodable = self.decode.format != "none" or self.key.format != "none"
        return undecodable or late or no_time or self.table.mode.is_keyed

    @property
    def has_dead_letter_table(self) -> bool:
        """True if a record can be written to the dead-letter table."""
        return self.has_dead_letters and self.dead_letters.topic is None


def is_in_s3(place: str | None) -> bool:
    """Return whether a place is in S3, whatever its scheme calls it."""
    return (place or "").startswith(("s3a://", "s3://"))


def _conflicts(pipeline: PipelineSettings) -> list[tuple[tuple[str, ...], str]]:
    source, table, decode = pipeline.source, pipeline.table, pipeline.decode
    found: list[tuple[tuple[str, ...], str]] = []

    def refuse_if(wrong: object, path: str, message: str) -> None:
        if wrong:
            found.append((tuple(path.split(".")), message))

    refuse_if(bool(source.topics) == bool(source.topic_pattern), "source.topics",
              "name either topics or a topic_pattern, and not both")  # fmt: skip
    iceberg = table.format is TableFormat.ICEBERG
    place = "a name such as 'lake.db.flights'" if iceberg else "a location, a folder or URL"
    refuse_if(
        not (table.name if iceberg else table.location), "table", f"a table of format {table.format} needs {place}"
    )
    refuse_if(table.location if iceberg else table.name, f"table.{'location' if iceberg else 'name'}",
              f"a table of format {table.format} has {place} instead")  # fmt: skip
    refuse_if(iceberg and table.name and len(table.name.split(".")) < 3, "table.name",
              "expected catalog.namespace.table, such as 'lake.db.flights'")  # fmt: skip
    refuse_if(
        pipeline.catalog.type == "hadoop" and is_in_s3(pipeline.catalog.warehouse)
        and "lock-impl" not in pipeline.catalog.options, "catalog.type",
        "S3 renames no file in one step, so two writers of a hadoop catalog there can lose each other's commits: "
        "use jdbc, rest or hive",
    )  # fmt: skip
    for name, what, section in (("decode", "values", decode), ("key", "keys", pipeline.key)):
        refuse_if(
            section.has_schema and bool(section.schema_file) == bool(section.registry), f"{name}.format",
            f"{what} in {section.format} need either a schema_file or a registry, and not both",
        )  # fmt: skip
        refuse_if(
            section.registry and not section.subject and len(source.topics) != 1 and not pipeline.has_table_per_topic,
            f"{name}.registry",
            "with several topics or a pattern in one table, the subject in the registry must be named",
        )  # fmt: skip
    found += _conflicts_of_topics(pipeline)
    dead_letters = pipeline.dead_letters
    refuse_if(
        dead_letters.topic and (dead_letters.name or dead_letters.location), "dead_letters.topic",
        "name either a topic or a table for dead letters, and not both",
    )  # fmt: skip
    refuse_if(
        dead_letters.topic in source.topics, "dead_letters.topic", "the pipeline reads this topic: choose another one"
    )
    refuse_if(
        dead_letters.topic and source.kind == "direct", "dead_letters.topic",
        "needs source.kind = 'kafka': the direct source has no broker",
    )  # fmt: skip
    refuse_if(
        dead_letters.topic and table.format is TableFormat.PARQUET, "dead_letters.topic",
        "only pipelines into iceberg or delta write dead letters into a topic",
    )  # fmt: skip
    refuse_if(
        pipeline.watermark and table.format is TableFormat.PARQUET, "watermark",
        "only tables of format iceberg or delta support a watermark",
    )  # fmt: skip
    refuse_if(
        table.mode.is_keyed and table.format is TableFormat.PARQUET, "table.mode",
        f"{table.mode} needs a table of format iceberg or delta: Spark's file sink only appends",
    )  # fmt: skip
    refuse_if(
        pipeline.watermark and table.mode.is_keyed, "watermark",
        f"with table.mode = '{table.mode}' no record is late: a row is of the newest record of its key",
    )  # fmt: skip
    refuse_if(
        table.mode is TableMode.CHANGELOG and not decode.has_schema, "table.mode",
        "changelog reads Debezium's envelopes, whose schema [decode] must describe",
    )  # fmt: skip
    refuse_if(
        pipeline.maintenance.snapshots_min > pipeline.maintenance.snapshots_max, "maintenance.snapshots_max",
        "less than snapshots_min",
    )  # fmt: skip
    refuse_if(
        source.starting_time_ms is not None and "starting_offsets" in source.model_fields_set,
        "source.starting_time_ms", "begin either at starting_offsets or at starting_time_ms, and not both",
    )  # fmt: skip
    refuse_if(
        source.client_config is not None and source.kind == "direct", "source.client_config",
        "only source.kind = 'kafka' has a Kafka client",
    )  # fmt: skip
    for option in source.options:
        refuse_if(is_secret(option), f"source.options.{option}",
                  "a secret: put it into the file of source.client_config, or into the environment variable "
                  f"{environment_name(option.removeprefix('kafka.'))}")  # fmt: skip
    refuse_if(
        pipeline.operations.consumer_group and source.kind == "direct", "operations.consumer_group",
        "offsets are written to a group only with source.kind = 'kafka': the direct source has no broker",
    )  # fmt: skip
    names = ["topic", "partition", "offset", "timestamp", "key", "headers"]
    names += ["value"] if decode.format == "none" or table.keep_value else []
    names += ["data"] if decode.format != "none" else []
    names += ["event_time"] if table.event_time is not None else []
    found += layout_problems(table.format, pipeline.layout, names, table.time_column)
    found += option_problems(table.format, table.options)
    return found


def _conflicts_of_topics(pipeline: PipelineSettings) -> list[tuple[tuple[str, ...], str]]:
    """Return what is wrong about a table for each topic, or about `{topic}` without one."""
    table = pipeline.table
    iceberg = table.format is TableFormat.ICEBERG
    place = f"table.{'name' if iceberg else 'location'}"
    dead_letters = {
        "dead_letters.name": pipeline.dead_letters.name,
        "dead_letters.location": pipeline.dead_letters.location,
    }
    placed = dead_letters | {
        f"{name}.{setting}": getattr(section, setting)
        for name, section in (("decode", pipeline.decode), ("key", pipeline.key))
        for setting in ("schema_file", "subject", "message")
    }
    if not pipeline.has_table_per_topic:
        alone = f"{place} has no {TOPIC}, so there is one table for all topics"
        wrong = {path: f"has no effect: {alone}" for path, text in placed.items() if TOPIC in (text or "")}
        if table.topic_names:
            wrong["table.topic_names"] = f"has no effect: {alone}"
    else:
        wrong = {
            path: f"each topic's table has its own: add {TOPIC}"
            for path, text in dead_letters.items()
            if text is not None and TOPIC not in text
        }
        if table.format is TableFormat.PARQUET:
            wrong[place] = (
                f"Spark's file sink writes one table: use iceberg or delta for {TOPIC}, or partition_by = ['topic']"
            )
        if iceberg and TOPIC in pipeline.catalog_name:
            wrong[place] = f"{TOPIC} can't be in the catalog's name"
        shared = shared_places(pipeline, pipeline.source.topics)
        if shared is not None:
            wrong["table.topic_names"] = shared
    return [(tuple(path.split(".")), message) for path, message in wrong.items()]


def shared_places(pipeline: PipelineSettings, topics: Collection[str]) -> str | None:
    """Return what is wrong if two tables of some topics would be one, for people; None if nothing is."""
    owners: dict[str, str] = {}
    for topic in sorted(topics):
        own = pipeline.for_topic(topic)
        places = (own.table_place, own.dead_letter_place) if own.has_dead_letter_table else (own.table_place,)
        for place in places:
            # Some catalogs and file systems take large and small letters for the same.
            other = owners.setdefault(place.lower(), topic)
            if other != topic:
                return f"topics {other!r} and {topic!r} would share {place}: give one of them another name here"
    return None


def _without_effect_on(section: DecodeSection, name: str, what: str) -> dict[str, tuple[bool, str]]:
    """Return which settings of a decoding are ineffective, and why."""
    no_schema = f"{name}.format is not set"
    if section.format == "text":
        no_schema = "text has no schema"
    no_registry = f"{name}.registry is not set"
    return {
        f"{name}.schema_file": (not section.has_schema, no_schema),
        f"{name}.registry": (not section.has_schema, no_schema),
        f"{name}.header": (not section.has_schema, no_schema),
        f"{name}.message": (section.format != "protobuf", f"only {what} in protobuf have a message to choose"),
        f"{name}.subject": (section.registry is None, no_registry),
        f"{name}.registry_credentials_env": (section.registry is None, no_registry),
    }


def _without_effect(pipeline: PipelineSettings) -> list[tuple[tuple[str, ...], str]]:
    """Return the settings of the file that other settings make ineffective."""
    table, decode = pipeline.table.format, pipeline.decode
    small_files = "small files are rewritten in tables of format iceberg or delta only"
    rules: Mapping[str, tuple[bool, str]] = {
        "table.target_file_bytes": (table is TableFormat.PARQUET, small_files),
        "compaction.batches": (table is TableFormat.PARQUET and pipeline.compaction.batches > 0, small_files),
        "compaction.files_min": (
            table is not TableFormat.ICEBERG,
            "only rewrites of iceberg tables use it",
        ),
        **{
            f"maintenance.{name}": (
                table is TableFormat.PARQUET,
                "only tables of format iceberg or delta have old versions",
            )
            for name in MaintenanceSection.model_fields
        },
        **{
            f"maintenance.{name}": (table is not TableFormat.ICEBERG, "only iceberg counts snapshots")
            for name in ("snapshots_min", "snapshots_max")
        },
        "maintenance.orphan_age": (table is not TableFormat.ICEBERG, "delta uses maintenance.snapshot_age"),
        **{
            f"catalog.{name}": (
                table is not TableFormat.ICEBERG,
                f"a table of format {table} has a location, no catalog",
            )
            for name in CatalogSection.model_fields
        },
        "dead_letters.name": (table is not TableFormat.ICEBERG, f"a table of format {table} has a location instead"),
        "dead_letters.location": (table is TableFormat.ICEBERG, "a table of format iceberg has a name instead"),
        **_without_effect_on(decode, "decode", "values"),
        **_without_effect_on(pipeline.key, "key", "keys"),
        "decode.strict": (
            decode.format not in STRICT_FORMATS and pipeline.table.event_time is None,
            "there is neither JSON, nor text, nor an event_time",
        ),
        "key.strict": (pipeline.key.format not in STRICT_FORMATS, "keys are neither JSON nor text"),
        "watermark.ahead_max": (pipeline.table.event_time is None, "table.event_time is not set"),
        "trigger.interval": (pipeline.trigger.mode == "available-now", "trigger.mode is 'available-now'"),
        "operations.metrics_host": (pipeline.operations.metrics_port is None, "operations.metrics_port is not set"),
    }
    found: list[tuple[tuple[str, ...], str]] = []
    for path, (wrong, reason) in rules.items():
        section, _, name = path.partition(".")
        given = getattr(pipeline, section)
        if wrong and given is not None and name in given.model_fields_set:
            found.append(((section, name), f"has no effect: {reason}"))
    return found
