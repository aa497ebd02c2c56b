"""Layout of a table: partitioning, sort order and properties. Values only; nothing here needs Spark.

Notation and names are those of Iceberg, which has all of it. `layout_problems` finds what another format does not have.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

IDENTITY = "identity"
PERIODS = ("year", "month", "day", "hour")
WIDTHS = ("bucket", "truncate")
WIDTH_MAX = 2**31 - 1
FOLDER_COLUMNS = ("topic", "partition")
"""Columns whose values are suitable as names of folders, which Delta and Parquet use for partitions."""
_COLUMN = r"[^\s(),.]+(?:\.[^\s(),.]+)*"
_PARTITION = re.compile(rf"(?:(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?({_COLUMN})\s*\)|({_COLUMN}))")
_SORT = re.compile(rf"({_COLUMN})(?:\s+(asc|desc))?(?:\s+nulls\s+(first|last))?", re.IGNORECASE)
_NOTATION = re.compile(r"(\w+)(?:\[(\d+)\])?")


@dataclass(frozen=True, slots=True)
class PartitionColumn:
    """A column whose value, or a transform of it, gives a record's partition."""

    column: str
    """Name, with dots before the fields of structs."""
    transform: str = IDENTITY
    width: int | None = None
    """Number of buckets, or length to truncate to."""

    def __str__(self) -> str:
        """Return the notation of the pipeline's file."""
        if self.transform == IDENTITY:
            return self.column
        return f"{self.transform}({'' if self.width is None else f'{self.width}, '}{self.column})"

    @property
    def folder_column(self) -> str:
        """Name of the column that Delta and Parquet, which have no transforms, are partitioned by."""
        return self.column if self.transform == IDENTITY else self.transform

    @classmethod
    def of_iceberg(cls, transform: str, column: str) -> "PartitionColumn":
        """Return what Iceberg writes as `bucket[16]`."""
        found = _NOTATION.fullmatch(transform)
        if found is None:
            return cls(column, transform)
        return cls(column, found[1], None if found[2] is None else int(found[2]))


@dataclass(frozen=True, slots=True)
class SortColumn:
    """A column that files are sorted by."""

    column: str
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        """Return the notation of the pipeline's file, with what it may leave out."""
        return f"{self.column} {'desc' if self.descending else 'asc'} nulls {'first' if self.nulls_first else 'last'}"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Layout that a pipeline's file describes. An existing table keeps what the file does not name."""

    partitions: tuple[PartitionColumn, ...] = ()
    order: tuple[SortColumn, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    partitions_named: bool = False
    order_named: bool = False


def parse_partition_column(text: str) -> PartitionColumn:
    """Parse `column`, `day(column)` or `bucket(16, column)`. Raises ValueError."""
    found = _PARTITION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is neither a column nor a transform such as bucket(16, key) or day(event_time)")
    transform, width, column, plain = found.groups()
    if plain is not None:
        return PartitionColumn(plain)
    if transform in WIDTHS:
        if width is None or not 0 < int(width) <= WIDTH_MAX:
            raise ValueError(f"{text!r}: expected {transform}(N, {column}) with a number from 1 to {WIDTH_MAX}")
        return PartitionColumn(column, transform, int(width))
    if transform not in PERIODS:
        raise ValueError(f"{text!r}: the transforms are {', '.join((*PERIODS, *WIDTHS))}; a plain column needs none")
    if width is not None:
        raise ValueError(f"{text!r}: expected {transform}({column})")
    return PartitionColumn(column, transform)


def parse_sort_column(text: str) -> SortColumn:
    """Parse `column`, `column desc` or `column asc nulls last`. Nulls are Iceberg's smallest value by default.

    Raises ValueError.
    """
    found = _SORT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a column, such as 'data.name' or 'timestamp desc nulls last'")
    column, direction, nulls = found.groups()
    descending = (direction or "").lower() == "desc"
    return SortColumn(column, descending, not descending if nulls is None else nulls.lower() == "first")


def format_columns(columns: Collection[PartitionColumn | SortColumn]) -> str:
    """Return columns in the file's notation, or `none`."""
    return ", ".join(map(str, columns)) or "none"


PIPELINES_OWN = "the pipeline sets it itself"
OF_ICEBERG = "Iceberg computes it"
PROPERTIES_RESERVED: Mapping[str, Mapping[str, str]] = {
    "iceberg": {
        "write.wap.enabled": PIPELINES_OWN,
        "write.spark.accept-any-schema": PIPELINES_OWN,
        "write.target-file-size-bytes": "set table.target_file_bytes instead",
        "uuid": OF_ICEBERG,
        "snapshot-count": OF_ICEBERG,
        "current-snapshot-id": OF_ICEBERG,
        "current-snapshot-summary": OF_ICEBERG,
        "current-snapshot-timestamp-ms": OF_ICEBERG,
        "current-schema": OF_ICEBERG,
        "default-partition-spec": OF_ICEBERG,
        "default-sort-order": OF_ICEBERG,
    },
    "delta": {
        "delta.settransactionretentionduration": "Delta would forget which micro-batches it has",
        "delta.minreaderversion": "name a feature instead: delta.feature.NAME = supported",
        "delta.minwriterversion": "name a feature instead: delta.feature.NAME = supported",
    },
}
"""Names in lower case, with the reason why the file may not set them, by format."""
COLUMNS_ADDED = "the pipeline adds new columns itself"
OPTIONS_RESERVED: Mapping[str, Mapping[str, str]] = {
    "iceberg": {
        "mergeschema": COLUMNS_ADDED,
        "merge-schema": COLUMNS_ADDED,
        "check-ordering": "the pipeline writes the columns in the order of the table",
        "distribution-mode": PIPELINES_OWN,
        "branch": PIPELINES_OWN,
        "output-spec-id": PIPELINES_OWN,
        "output-sort-order-id": PIPELINES_OWN,
        "snapshot-property.anabranch.query-id": PIPELINES_OWN,
        "snapshot-property.anabranch.batch-id": PIPELINES_OWN,
    },
    "delta": {
        "mergeschema": COLUMNS_ADDED,
        "txnappid": PIPELINES_OWN,
        "txnversion": PIPELINES_OWN,
        "path": PIPELINES_OWN,
    },
    "parquet": {"path": PIPELINES_OWN, "checkpointlocation": PIPELINES_OWN},
}
"""Options of the writer, in lower case, with the reason why the file may not set them, by format."""


Problem = tuple[tuple[str, ...], str]
"""Path of a setting, and what is wrong with it."""


def layout_problems(
    table_format: str, layout: TableLayout, columns: Collection[str] | None, time_column: str
) -> Iterator[Problem]:
    """Yield what a format or the columns do not allow.

    `columns` are those of the table, without fields; None: they are not known before the schema.
    """
    for setting, named in (("partition_by", layout.partitions), ("sort_by", layout.order)):
        for each in named:
            if columns is not None and each.column.partition(".")[0] not in columns:
                yield ("table", setting), _unknown(each.column, columns)
    if table_format != "iceberg":
        yield from _folder_problems(table_format, layout, time_column)


def property_problems(table_format: str, properties: Collection[str]) -> Iterator[Problem]:
    """Yield the properties that the section of a table may not set."""
    for name in properties:
        path = ("properties", name)
        if table_format == "parquet":
            yield path, "has no effect: a table of format parquet has no properties"
        elif name.lower().startswith("anabranch."):
            yield path, PIPELINES_OWN
        elif (reason := PROPERTIES_RESERVED[table_format].get(name.lower())) is not None:
            yield path, reason


def option_problems(table_format: str, options: Collection[str]) -> Iterator[Problem]:
    """Yield the options of the writer that the section of a table may not set, or that it would ignore."""
    for name in options:
        path, lower = ("options", name), name.lower()
        if (reason := OPTIONS_RESERVED[table_format].get(lower)) is not None:
            yield path, reason
        elif _is_property(table_format, lower):
            yield path, "a property of the table: put it into table.properties"


def _folder_problems(table_format: str, layout: TableLayout, time_column: str) -> Iterator[Problem]:
    """Yield what a format with folders for partitions does not have."""
    for each in layout.partitions:
        of_column = each.transform == IDENTITY and each.column in FOLDER_COLUMNS
        if not of_column and not (each.transform in PERIODS and each.column == time_column):
            possible = (*FOLDER_COLUMNS, *(f"{period}({time_column})" for period in PERIODS))
            only = f"a table of format {table_format} is partitioned by {', '.join(possible)} only"
            yield ("table", "partition_by"), f"{only}, and not by {each}; format iceberg has all transforms"
    if layout.order_named:
        why = "Spark's file sink does not sort"
        if table_format == "delta":
            why = "Delta's OPTIMIZE ZORDER BY, in a job of your own, rewrites the whole table each time"
        yield ("table", "sort_by"), f"only tables of format iceberg are sorted; {why}"


def _is_property(table_format: str, name: str) -> bool:
    """Tell a property from an option of a writer, by its name in lower case."""
    if table_format == "iceberg":
        return name == "format-version" or ("." in name and not name.startswith("snapshot-property."))
    return table_format == "delta" and name.startswith("delta.")


def _unknown(column: str, columns: Collection[str]) -> str:
    name = column.partition(".")[0]
    if name == "event_time":
        return "there is no column event_time, since table.event_time is not set; the record's time is timestamp"
    if name == "data":
        return f"there is no column {column}: values are not decoded, since decode.format is not set"
    hint = f"; write {name}(COLUMN)" if name in PERIODS else ""
    return f"there is no column {column}; the table has {', '.join(columns)}{hint}"
