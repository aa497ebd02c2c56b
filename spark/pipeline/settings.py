"""What a pipeline's TOML file may say: every setting with its default and its check.

Values only; nothing here needs Spark. Settings that belong together but stand in different sections are checked at the
end (`PipelineSettings.check_sections`), so that an error names the setting to change.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

DURATION = re.compile(r"\s*\d+\s*(milliseconds?|seconds?|minutes?|hours?|days?)\s*", re.IGNORECASE)
MIB = 1 << 20


class Section(BaseModel):
    """A table of the file: frozen, and a name that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SettingConflict(ValueError):
    """Two settings that don't go together; `path` names the one to change."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


def _duration(value: Any) -> Any:
    if isinstance(value, str) and not DURATION.fullmatch(value):
        raise ValueError("expected a time such as '10 seconds', '500 milliseconds' or '1 hour'")
    return value


def _text_values(value: Any) -> Any:
    """TOML's own numbers and booleans become the text that Spark's options want."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(item).lower() if isinstance(item, bool) else str(item) if isinstance(item, int | float) else item
        for key, item in value.items()
    }


Duration = Annotated[str, BeforeValidator(_duration)]
Options = Annotated[dict[str, str], BeforeValidator(_text_values)]


class TableFormat(StrEnum):
    """Of the table."""

    ICEBERG = "iceberg"
    DELTA = "delta"
    PARQUET = "parquet"


class PartitionPeriod(StrEnum):
    """How long the records of one partition of the table are apart at most."""

    NONE = "none"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class LatePolicy(StrEnum):
    """What becomes of a record that is older than the watermark."""

    KEEP = "keep"
    DROP = "drop"
    DEAD_LETTER = "dead-letter"


class SourceSection(Section):
    """Where records come from."""

    kind: Literal["kafka", "direct"] = "kafka"
    """`kafka`: Spark's Kafka source. `direct`: the objects in the store, without a broker (see `options`)."""
    bootstrap_servers: str = "127.0.0.1:9092"
    """Nodes to ask first, `HOST:PORT,...`."""
    topics: tuple[str, ...] = ()
    """Names of topics."""
    topic_pattern: str | None = None
    """Regular expression of topic names (Java's), instead of `topics`."""
    starting_offsets: Literal["earliest", "latest"] | dict[str, dict[str, int]] = "earliest"
    """For a new checkpoint: `earliest`, `latest`, or topic to partition to offset (-2 earliest, -1 latest)."""
    starting_time_ms: int | None = Field(default=None, ge=0)
    """For a new checkpoint, instead of `starting_offsets`: the first record at or after this time (Unix, ms)."""
    offsets_per_batch_max: int | None = Field(default=None, ge=1)
    """Rate limit: offsets of one micro-batch at most, over all partitions."""
    tasks_min: int | None = Field(default=None, ge=1)
    """Spark tasks that read one micro-batch at least; none means one per partition."""
    fail_on_data_loss: bool = True
    """Fail when records are gone (retention, a deleted topic) before they were read; else go on without them."""
    read_committed: bool = True
    """Leave out records of transactions that were aborted or are still open."""
    options: Options = {}
    """More options of the source, as `kafka.security.protocol`."""


class DecodeSection(Section):
    """What the values are."""

    format: Literal["none", "json", "avro", "protobuf"] = "none"
    """`none` keeps `value` as it is; otherwise the fields become the columns of the struct `data`."""
    schema_file: str | None = None
    """json: DDL, Spark's JSON or JSON Schema; avro: `.avsc`; protobuf: a descriptor set. Relative to this file."""
    registry: str | None = None
    """URL of a schema registry: values carry Confluent's header of five bytes, and new schema versions add columns."""
    registry_credentials_env: str | None = None
    """Name of the environment variable with `user:password` for the registry."""
    subject: str | None = None
    """In the registry; default: the topic's name and `-value`, when there is one topic."""
    header: Literal["none", "confluent"] | None = None
    """Whether values begin with Confluent's five bytes; default: `confluent` with a registry, else `none`."""
    message: str | None = None
    """protobuf: full name of the message; default: the first of the schema."""

    @property
    def has_header(self) -> bool:
        """Whether values begin with the magic byte and the schema's id."""
        return (self.header or ("confluent" if self.registry else "none")) == "confluent"


class TableSection(Section):
    """Where records go."""

    format: TableFormat = TableFormat.ICEBERG
    name: str | None = None
    """iceberg: `catalog.namespace.table`."""
    location: str | None = None
    """delta, parquet: folder or URL, relative to the pipeline's file."""
    partition_by: PartitionPeriod = PartitionPeriod.DAY
    event_time: str | None = None
    """SQL expression of the event's time, as `to_timestamp(data.at)`; default: the record's timestamp."""
    keep_value: bool = False
    """Keep the raw `value` beside `data`."""
    target_file_bytes: int = Field(default=128 * MIB, ge=1 * MIB)
    """iceberg, delta: what compaction makes of small files. Parquet gets one file per micro-batch and partition."""
    options: Options = {}
    """Properties of a new Iceberg table, or options of the writer."""


class CatalogSection(Section):
    """iceberg: the catalog that the table's name begins with; these become `spark.sql.catalog.<name>.*`."""

    type: str = "hadoop"
    """`hadoop` (a folder), `rest`, `jdbc`, `hive`, ..."""
    warehouse: str | None = None
    """Folder or URL; a folder is relative to the pipeline's file. Default: `lake` beside that file."""
    uri: str | None = None
    """Of a catalog that is a service or a database."""
    options: Options = {}
    """More of them, as `credential`."""


class DeadLetterSection(Section):
    """Records that don't decode, with topic, partition, offset, key, value, headers and the error."""

    name: str | None = None
    """iceberg: default is the table's name and `_dead_letters`."""
    location: str | None = None
    """delta, parquet: default is the table's location and `_dead_letters`."""


class WatermarkSection(Section):
    """How late a record may be."""

    delay: Duration
    """iceberg, delta: a record older than the newest event time of earlier micro-batches less this is late."""
    late: LatePolicy = LatePolicy.DEAD_LETTER
    """What becomes of a late record: it stays, goes, or goes to the dead-letter table."""


class TriggerSection(Section):
    """When micro-batches run."""

    mode: Literal["available-now", "processing-time"] = "available-now"
    """`available-now` takes what is there at the start and ends."""
    interval: Duration = "10 seconds"
    """Of `processing-time`."""


class CompactionSection(Section):
    """Small files to large ones (Iceberg rewrite_data_files, Delta OPTIMIZE)."""

    batches: int = Field(default=50, ge=0)
    """iceberg, delta: after every so many micro-batches, and at the end of an `available-now` run; 0 never."""
    files_min: int = Field(default=5, ge=2)
    """iceberg: small files of one partition that are worth a rewrite."""


class OperationsSection(Section):
    """What others see of a running pipeline."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Prometheus metrics over HTTP; none by default, 0 any free port."""
    metrics_host: str = "127.0.0.1"
    """Address that they are served on."""
    consumer_group: str | None = None
    """Consumed offsets are written back under this group, so that Kafka's lag tools see the pipeline."""


class SparkSection(Section):
    """The session; `--master` and `--conf` of the command line go before these."""

    master: str | None = None
    """Where Spark runs: `local[*]`, `spark://HOST:PORT`, `yarn`, `k8s://...`; default: all cores of this machine."""
    conf: Options = {}
    """Settings of Spark, as `"spark.executor.memory" = "4g"`."""


class PipelineSettings(Section):
    """The whole file."""

    name: str = Field(default="ingest", pattern=r"^[A-Za-z0-9._-]{1,100}$")
    """Of the query, in metrics and in Spark's user interface."""
    checkpoint: str
    """Folder or URL that only this pipeline uses, relative to its file; it holds how far the pipeline has come."""
    source: SourceSection
    table: TableSection
    decode: DecodeSection = DecodeSection()
    catalog: CatalogSection = CatalogSection()
    dead_letters: DeadLetterSection = DeadLetterSection()
    watermark: WatermarkSection | None = None
    trigger: TriggerSection = TriggerSection()
    compaction: CompactionSection = CompactionSection()
    operations: OperationsSection = OperationsSection()
    spark: SparkSection = SparkSection()

    @model_validator(mode="after")
    def check_sections(self) -> Self:
        """What no section can check alone. Raises SettingConflict."""
        for path, message in (*_conflicts(self), *_without_effect(self)):
            raise SettingConflict(path, message)
        return self

    @property
    def catalog_name(self) -> str:
        """iceberg: first part of the table's name."""
        return (self.table.name or "").partition(".")[0]

    @property
    def dead_letter_place(self) -> str:
        """Name or location of the dead-letter table."""
        if self.table.format is TableFormat.ICEBERG:
            return self.dead_letters.name or f"{self.table.name}_dead_letters"
        return self.dead_letters.location or f"{(self.table.location or '').rstrip('/')}_dead_letters"

    @property
    def subject(self) -> str:
        """In the schema registry."""
        return self.decode.subject or f"{self.source.topics[0]}-value"

    @property
    def has_dead_letters(self) -> bool:
        """Whether a record can end in the dead-letter table at all."""
        return self.decode.format != "none" or (
            self.watermark is not None and self.watermark.late is LatePolicy.DEAD_LETTER
        )


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
        decode.format != "none" and bool(decode.schema_file) == bool(decode.registry), "decode.format",
        f"values in {decode.format} need either a schema_file or a registry, and not both",
    )  # fmt: skip
    refuse_if(
        decode.registry and not decode.subject and len(source.topics) != 1, "decode.registry",
        "with several topics or a pattern, the subject in the registry must be named",
    )  # fmt: skip
    refuse_if(
        pipeline.watermark and table.format is TableFormat.PARQUET, "watermark",
        "late records are told apart in tables of format iceberg or delta only",
    )  # fmt: skip
    refuse_if(
        source.starting_time_ms is not None and "starting_offsets" in source.model_fields_set,
        "source.starting_time_ms", "begin either at starting_offsets or at starting_time_ms, and not both",
    )  # fmt: skip
    refuse_if(
        pipeline.operations.consumer_group and source.kind == "direct", "operations.consumer_group",
        "offsets are written back to a group with source.kind = 'kafka' only: the direct source asks no broker",
    )  # fmt: skip
    return found


def _without_effect(pipeline: PipelineSettings) -> list[tuple[tuple[str, ...], str]]:
    """Settings that the file gives and that what it says elsewhere leaves without effect."""
    table, decode = pipeline.table.format, pipeline.decode
    undecoded = "values are kept as they are: there is no decode.format"
    no_registry = "there is no decode.registry"
    small_files = "small files are rewritten in tables of format iceberg or delta only"
    rules: Mapping[str, tuple[bool, str]] = {
        "table.target_file_bytes": (table is TableFormat.PARQUET, small_files),
        "compaction.batches": (table is TableFormat.PARQUET and pipeline.compaction.batches > 0, small_files),
        "compaction.files_min": (
            table is not TableFormat.ICEBERG,
            "only rewrites in tables of format iceberg go by it",
        ),
        **{
            f"catalog.{name}": (
                table is not TableFormat.ICEBERG,
                f"a table of format {table} has a location, no catalog",
            )
            for name in CatalogSection.model_fields
        },
        "dead_letters.name": (table is not TableFormat.ICEBERG, f"a table of format {table} has a location instead"),
        "dead_letters.location": (table is TableFormat.ICEBERG, "a table of format iceberg has a name instead"),
        "decode.schema_file": (decode.format == "none", undecoded),
        "decode.registry": (decode.format == "none", undecoded),
        "decode.header": (decode.format == "none", undecoded),
        "decode.message": (decode.format != "protobuf", "only values in protobuf have a message to choose"),
        "decode.subject": (decode.registry is None, no_registry),
        "decode.registry_credentials_env": (decode.registry is None, no_registry),
        "trigger.interval": (pipeline.trigger.mode == "available-now", "trigger.mode is 'available-now'"),
        "operations.metrics_host": (pipeline.operations.metrics_port is None, "there is no operations.metrics_port"),
    }
    found: list[tuple[tuple[str, ...], str]] = []
    for path, (wrong, reason) in rules.items():
        section, _, name = path.partition(".")
        if wrong and name in getattr(pipeline, section).model_fields_set:
            found.append(((section, name), f"has no effect: {reason}"))
    return found
