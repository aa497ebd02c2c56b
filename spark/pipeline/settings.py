"""Settings of a pipeline's TOML file, and the rules across its sections. Values only; nothing here needs Spark."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Literal, Self, TypeVar

from pydantic import BaseModel, Field

from anabranch.spark.pipeline.columns_section import ColumnsSection
from anabranch.spark.pipeline.layout import PartitionColumn, Problem, TableLayout, layout_problems
from anabranch.spark.pipeline.sections import (
    NOT_PER_TOPIC,
    SMALL_FILES,
    TOPIC,
    CatalogSection,
    CompactionSection,
    DeadLetterSection,
    DecodeSection,
    KeyedRows,
    LatePolicy,
    MaintenanceSection,
    OperationsSection,
    PartitionPeriod,
    Section,
    SourceSection,
    SparkSection,
    TableFormat,
    TableMode,
    TableSection,
    TriggerSection,
    WatermarkSection,
    broken,
    is_in_s3,
)

KEY_BUCKETS = 16
"""Partitions of a new table with keys."""
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
"""Characters of topics that would need quotes in the name of a table."""
STRICT_FORMATS = ("json", "text")
"""Formats that can be decoded strictly or leniently."""
Model = TypeVar("Model", bound=BaseModel)


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
    columns: ColumnsSection = ColumnsSection()
    catalog: CatalogSection = CatalogSection()
    dead_letters: DeadLetterSection = DeadLetterSection()
    watermark: WatermarkSection | None = None
    trigger: TriggerSection = TriggerSection()
    compaction: CompactionSection = CompactionSection()
    maintenance: MaintenanceSection = MaintenanceSection()
    operations: OperationsSection = OperationsSection()
    spark: SparkSection = SparkSection()

    def problems(self) -> Iterator[Problem]:
        """Yield the rules across sections that are broken."""
        yield from _conflicts(self)
        yield from _conflicts_of_topics(self)
        yield from layout_problems(self.table.format, self.layout, self._columns(), self.table.time_column)
        yield from _without_effect(self)

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

    def _columns(self) -> list[str] | None:
        """Return the names of the table's columns, without their fields; None if they are those of the schema."""
        if self.columns.top_level:
            return None
        named = {
            "value": self.decode.format == "none" or self.table.keep_value,
            "data": self.decode.format != "none",
            "event_time": self.table.event_time is not None,
        }
        marks = {KeyedRows.MARKED: ("deleted", "deleted_at"),
                 KeyedRows.HISTORY: ("deleted", "valid_from", "valid_to", "is_current")}  # fmt: skip
        own = ["topic", "partition", "offset", "timestamp", "key", "headers"]
        keyed = self.table.keyed_rows
        return [*own, *(() if keyed is None else marks.get(keyed, ())), *(name for name in named if named[name])]

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


def _conflicts(pipeline: PipelineSettings) -> Iterator[Problem]:
    """Yield the sections that exclude each other."""
    source, table, dead_letters = pipeline.source, pipeline.table, pipeline.dead_letters
    direct, parquet = source.kind == "direct", table.format is TableFormat.PARQUET
    only_kafka = "needs source.kind = 'kafka': the direct source has no broker"
    yield from broken(
        (dead_letters.topic in source.topics, "dead_letters.topic",
         "the pipeline reads this topic: choose another one"),
        (dead_letters.topic and direct, "dead_letters.topic", only_kafka),
        (dead_letters.topic and parquet, "dead_letters.topic",
         "only pipelines into iceberg or delta write dead letters into a topic"),
        (pipeline.operations.consumer_group and direct, "operations.consumer_group", only_kafka),
        *((direct and section.uses_registry and not section.registry, f"{name}.registry",
           "the direct source has no node to ask: name the registry, or a schema_file")
          for name, section in (("decode", pipeline.decode), ("key", pipeline.key))),
        (pipeline.watermark and parquet, "watermark", "only tables of format iceberg or delta support a watermark"),
        (pipeline.watermark and table.mode.is_keyed, "watermark",
         f"with table.mode = '{table.mode}' no record is late: a row is of the newest record of its key"),
        (table.mode is TableMode.CHANGELOG and not pipeline.decode.has_schema, "table.mode",
         "changelog reads Debezium's envelopes, whose schema [decode] must describe"),
    )  # fmt: skip
    if len(source.topics) != 1 and not table.is_per_topic:
        several = "with several topics or a pattern in one table, the subject in the registry must be named"
        yield from broken(
            *(
                (section.uses_registry and not section.subject, f"{name}.registry", several)
                for name, section in (("decode", pipeline.decode), ("key", pipeline.key))
            )
        )


def _conflicts_of_topics(pipeline: PipelineSettings) -> Iterator[Problem]:
    """Yield what does not fit a table for each topic, or has `{topic}` without one."""
    dead_letters = [("dead_letters", name) for name in ("name", "location")]
    decoding = [(section, name) for section in ("decode", "key") for name in ("schema_file", "subject", "message")]
    one_table = f"has no effect: table.{pipeline.table.place_setting} {NOT_PER_TOPIC}"
    for section, name in dead_letters if pipeline.table.is_per_topic else dead_letters + decoding:
        text = getattr(getattr(pipeline, section), name)
        if text is not None and (TOPIC in text) != pipeline.table.is_per_topic:
            wrong = f"each topic's table has its own: add {TOPIC}" if pipeline.table.is_per_topic else one_table
            yield (section, name), wrong
    if pipeline.table.is_per_topic and (shared := shared_places(pipeline, pipeline.source.topics)) is not None:
        yield ("table", "topic_names"), shared


def _without_effect(pipeline: PipelineSettings) -> Iterator[Problem]:
    """Yield the settings that other sections make ineffective."""
    table, untimed = pipeline.table, pipeline.table.event_time is None
    parquet, iceberg = table.format is TableFormat.PARQUET, table.format is TableFormat.ICEBERG
    located = f"a table of format {table.format} has a location"
    lenient = {name: getattr(pipeline, name).format not in STRICT_FORMATS for name in ("decode", "key")}
    fields = [name for name in ColumnsSection.model_fields if name != "filter"]
    rules = (
        (not pipeline.decode.has_schema, "columns", fields, "decode.format gives values no fields"),
        (parquet and pipeline.compaction.batches > 0, "compaction", ["batches"], SMALL_FILES),
        (not iceberg, "compaction", ["files_min"], "only rewrites of iceberg tables use it"),
        (parquet, "maintenance", MaintenanceSection.model_fields,
         "only tables of format iceberg or delta have old versions"),
        (not iceberg, "maintenance", ["snapshots_min", "snapshots_max"], "only iceberg counts snapshots"),
        (not iceberg, "maintenance", ["orphan_age"], "delta uses maintenance.snapshot_age"),
        (not iceberg, "catalog", CatalogSection.model_fields, f"{located}, no catalog"),
        (not iceberg, "dead_letters", ["name"], f"{located} instead"),
        (iceberg, "dead_letters", ["location"], "a table of format iceberg has a name instead"),
        (lenient["decode"] and untimed, "decode", ["strict"], "there is neither JSON, nor text, nor an event_time"),
        (lenient["key"], "key", ["strict"], "keys are neither JSON nor text"),
        (untimed, "watermark", ["ahead_max"], "table.event_time is not set"),
    )  # fmt: skip
    for applies, name, settings, reason in rules:
        section = getattr(pipeline, name)
        if applies and section is not None:
            yield from (((name, *path), message) for path, message in section.without_effect(reason, *settings))


def shared_places(pipeline: PipelineSettings, topics: Collection[str]) -> str | None:
    """Return what is wrong if two tables of some topics would be one, for people; None if nothing is."""
    owners: dict[str, str] = {}
    for topic in sorted(topics):
        own = pipeline.for_topic(topic)
        places = (own.table.place, own.dead_letter_place) if own.has_dead_letter_table else (own.table.place,)
        for place in places:
            # Some catalogs and file systems take large and small letters for the same.
            other = owners.setdefault(place.lower(), topic)
            if other != topic:
                return f"topics {other!r} and {topic!r} would share {place}: give one of them another name here"
    return None
