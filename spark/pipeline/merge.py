"""The SQL that merges the newest rows of some keys into a table, for Iceberg and Delta alike.

The merge reads those files of the table that may have one of the keys. What is known of them beforehand is part of its
condition: the topics, the smallest and largest value of each part of the key, and the buckets. Iceberg and Delta skip
files by that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from spark.pipeline.changes import DELETED, IDENTITY_COLUMNS
from spark.pipeline.names import quoted, text_literal

BOUNDED = (BinaryType, ByteType, ShortType, IntegerType, LongType, StringType, DateType)
"""Types of keys whose smallest and largest value become part of the condition."""
BOUND_CHARS_MAX = 1_000
"""Longer values are not worth their place in the condition."""
TOPICS_MAX, BUCKETS_MAX = 100, 100
"""Longer lists are not worth their place either."""
LATER = "s.timestamp > t.timestamp OR (s.timestamp = t.timestamp AND s.offset >= t.offset)"
NEWER = f"{LATER} OR (s.partition = t.partition AND s.offset > t.offset)"
"""Condition for a row that replaces another, or is the same again. A topic that is read again from its beginning takes
a table back for a moment only where its timestamps go back."""
NEWER_LETTER = f"(s.partition = t.partition AND s.offset >= t.offset) OR (s.partition <> t.partition AND ({LATER}))"
"""The same for a dead letter that is put back: no later record follows it and mends what clocks have confused."""
MERGE_TRIES = 10
PLACE_COLUMNS = ["topic", "partition", "offset", "timestamp"]
"""Columns that name a record. A topic that was made anew has other records at the same offsets."""
SAME_PLACE = " AND ".join(f"t.{name} = s.{name}" for name in PLACE_COLUMNS)
"""Condition for two rows of one record."""


@dataclass(frozen=True, slots=True)
class BucketFunction:
    """An SQL function that gives the bucket of a column, by which the table is partitioned."""

    name: str
    width: int
    column: str

    def of(self, alias: str) -> str:
        """Return the bucket of a row as SQL. The alias ends with a dot, or is empty."""
        return f"{self.name}({self.width}, {alias}{quoted(self.column)})"


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of changed rows into a table of the same columns."""

    rows: DataFrame
    """One row for each topic and key, with the column `deleted`, in the columns of the table."""
    columns: tuple[str, ...]
    buckets: tuple[BucketFunction, ...]
    newer: str
    """Condition for a row that replaces the one in the table: NEWER or NEWER_LETTER."""

    @classmethod
    def of(
        cls, rows: DataFrame, table: StructType, newer: str = NEWER, buckets: tuple[BucketFunction, ...] = ()
    ) -> "Merge":
        """Return the merge of rows that may lack some of the table's columns and fields."""
        return cls(fitted_rows(rows, table, DELETED), tuple(table.names), buckets, newer)

    def run(self, table: str) -> None:
        """Merge into a table, whose name is quoted."""
        with view_of(self.rows) as view:
            self.rows.sparkSession.sql(self.sql(table, view))

    def sql(self, table: str, view: str) -> str:
        """Return the statement. The table is `t`, and the changes are `s`."""
        same_row = [f"t.{name} = s.{name}" for name in IDENTITY_COLUMNS]
        condition = " AND ".join([*same_row, *bounds_of(self.rows, self.buckets)])
        names = [quoted(name, whole=True) for name in self.columns]
        updates = ", ".join(f"t.{name} = s.{name}" for name in names)
        values = ", ".join(f"s.{name}" for name in names)
        clauses = (
            ("MERGE INTO", table, "AS t USING", view, "AS s ON", condition),
            (f"WHEN MATCHED AND ({self.newer}) AND s.{DELETED} THEN DELETE",),
            (f"WHEN MATCHED AND ({self.newer}) THEN UPDATE SET", updates),
            (f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT", f"({', '.join(names)}) VALUES ({values})"),
        )
        return " ".join(part for clause in clauses for part in clause)


def bounds_of(rows: DataFrame, buckets: Sequence[BucketFunction]) -> Iterator[str]:
    """Yield conditions on the table `t` that hold for each row with one of the keys.

    Without any key that is `false`, and no file is read.
    """
    parts = list(_parts("key", rows.schema["key"].dataType))
    smallest = [f.min(quoted(path)).alias(f"min{n}") for n, (path, _) in enumerate(parts)]
    largest = [f.max(quoted(path)).alias(f"max{n}") for n, (path, _) in enumerate(parts)]
    complete = [f.every(f.col(quoted(path)).isNotNull()).alias(f"all{n}") for n, (path, _) in enumerate(parts)]
    touched = [f.collect_set(f.expr(each.of(""))).alias(f"buckets{n}") for n, each in enumerate(buckets)]
    # Comparisons with an empty part hold for no row.
    in_buckets = [f.every(f.expr(each.of("")).isNotNull()).alias(f"in_bucket{n}") for n, each in enumerate(buckets)]
    topics = f.collect_set("topic").alias("topics")
    found = rows.agg(topics, *smallest, *largest, *complete, *touched, *in_buckets).collect()[0]
    if not found["topics"]:
        yield "false"
        return
    if len(found["topics"]) <= TOPICS_MAX:
        yield f"t.topic IN ({', '.join(map(text_literal, sorted(found['topics'])))})"
    for n, (path, _) in enumerate(parts):
        low, high = _literal(found[f"min{n}"]), _literal(found[f"max{n}"])
        if found[f"all{n}"] and low is not None and high is not None:
            yield f"t.{quoted(path)} BETWEEN {low} AND {high}"
    for n, each in enumerate(buckets):
        numbers = found[f"buckets{n}"]
        if found[f"in_bucket{n}"] and len(numbers) <= min(BUCKETS_MAX, each.width - 1):
            yield f"{each.of('t.')} IN ({', '.join(map(str, sorted(numbers)))})"


def overtaken(place: str, batch_id: int) -> str:
    """Return the error of a merge that other writers have overtaken each time."""
    return (
        f"{place}: micro-batch {batch_id} was merged {MERGE_TRIES} times, and each time another writer was faster; "
        f"stop what writes to the table besides this pipeline"
    )


@contextmanager
def view_of(rows: DataFrame) -> Iterator[str]:
    """Give rows a name for SQL, for a while."""
    name = f"rows_{id(rows)}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session that nothing else uses meanwhile, for one statement."""
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            session.conf.unset(key)


def has_new_fields(rows: DataType, table: DataType) -> bool:
    """Return whether rows have a column or field, or a type, that the table does not have."""
    if isinstance(rows, StructType) and isinstance(table, StructType):
        return any(
            each.name not in table.names or has_new_fields(each.dataType, table[each.name].dataType)
            for each in rows.fields
        )
    if isinstance(rows, ArrayType) and isinstance(table, ArrayType):
        return has_new_fields(rows.elementType, table.elementType)
    if isinstance(rows, MapType) and isinstance(table, MapType):
        return has_new_fields(rows.keyType, table.keyType) or has_new_fields(rows.valueType, table.valueType)
    return rows != table


def fitted_rows(rows: DataFrame, table: StructType, *others: str) -> DataFrame:
    """Return rows in the columns and types of a table, with null for what they lack, and other columns after that."""
    return rows.select(*(fitted_to(f.col(quoted(each.name)), rows.schema, each) for each in table.fields), *others)


def fitted_to(column: Column, rows: StructType, field: StructField) -> Column:
    """Return a column in the type of the table's field, with null for what the rows lack."""
    if field.name not in rows.names:
        return f.lit(None).cast(field.dataType).alias(field.name)
    return _fitted(column, rows[field.name].dataType, field.dataType).alias(field.name)


def _fitted(column: Column, found: DataType, wanted: DataType) -> Column:
    if found == wanted:
        return column
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        fields = [fitted_to(column.getField(each.name), found, each) for each in wanted.fields]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        of_element, to_element = found.elementType, wanted.elementType
        return f.transform(column, lambda each: _fitted(each, of_element, to_element))
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        of_value, to_value = found.valueType, wanted.valueType
        return f.transform_values(column, lambda _, each: _fitted(each, of_value, to_value))
    return column.cast(wanted)


def _parts(path: str, kind: DataType) -> Iterator[tuple[str, AtomicType]]:
    """Yield the parts of a key that have bounds, with their types."""
    if isinstance(kind, BOUNDED):
        yield path, kind
    elif isinstance(kind, StructType):
        for each in kind.fields:
            yield from _parts(f"{path}.{each.name}", each.dataType)


def _literal(value: Any) -> str | None:
    """Return a value as SQL, or None if that is too long."""
    match value:
        case str():
            text = text_literal(value)
        case bytes() | bytearray():
            text = f"X'{value.hex()}'"
        case date():
            text = f"DATE '{value.isoformat()}'"
        case int():
            text = str(value)
        case _:
            return None
    return text if len(text) <= BOUND_CHARS_MAX else None
