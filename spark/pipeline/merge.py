"""The merge of the newest rows of some keys into a table, for Iceberg and Delta alike.

The merge reads the files of the table that may have one of the keys. Its condition includes what is known of the keys
beforehand: the topics, the smallest and largest value of each part of the key, and the buckets. Iceberg and Delta use
it to skip files.

Nothing of this is SQL text: keys and topics are literals of Spark's plan, whatever characters they have.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
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

from anabranch.spark.pipeline.changes import DELETED, DELETED_AT, HAS_ROW, IDENTITY_COLUMNS, IS_DELETED
from anabranch.spark.pipeline.names import quoted

BOUNDED = (BinaryType, ByteType, ShortType, IntegerType, LongType, StringType, DateType)
"""Types of keys whose smallest and largest value become part of the condition."""
BOUND_LENGTH_MAX = 1_000
"""Longer values are not worth their place in the condition."""
TOPICS_MAX, BUCKETS_MAX = 100, 100
"""Longer lists are not worth their place either."""
MERGE_TRIES = 10
PLACE_COLUMNS = ["topic", "partition", "offset", "timestamp"]
"""Columns that identify a record. A recreated topic has other records at the same offsets."""
CHANGES = "anabranch_changes"
"""Alias of the rows that are merged into a table."""
Row = Callable[[str], Column]
"""Gives a column of a row by its name: of the table's, or of that which may replace it."""
Newer = Callable[[Row, Row], Column]
"""Condition for a row, the second, that replaces the first."""


def row_of(alias: str) -> Row:
    """Return the columns of an alias, or of a table, whose name is quoted."""
    return lambda name: f.col(f"{alias}.{quoted(name)}")


CHANGE = row_of(CHANGES)


def later(old: Row, new: Row) -> Column:
    """Return the condition for a row of a later time."""
    time, offset = new("timestamp"), new("offset")
    return (time > old("timestamp")) | ((time == old("timestamp")) & (offset >= old("offset")))


def newer(old: Row, new: Row) -> Column:
    """Return the condition for a newer row, or the same again.

    A topic that is read again from its beginning takes a table back for a moment only where its timestamps go back.
    """
    return later(old, new) | ((new("partition") == old("partition")) & (new("offset") > old("offset")))


def newer_letter(old: Row, new: Row) -> Column:
    """Return the same for a dead letter that is put back: no later record follows it and mends what clocks confuse."""
    is_of_partition = new("partition") == old("partition")
    return f.when(is_of_partition, new("offset") >= old("offset")).otherwise(later(old, new))


def same_place(old: Row, new: Row) -> Column:
    """Return the condition for two rows of one record."""
    return _all(old(name) == new(name) for name in PLACE_COLUMNS)


@dataclass(frozen=True, slots=True)
class BucketFunction:
    """An SQL function that gives the bucket of a column, by which the table is partitioned."""

    name: str
    width: int
    column: str

    def of(self, row: Row) -> Column:
        """Return the bucket of a row."""
        first, *fields = self.column.split(".")
        return f.call_function(self.name, f.lit(self.width), _field(row(first), fields))


class TableMerge(Protocol):
    """A merge into a table."""

    def run(self, begin: Callable[[Any, Any], Any], end: str, old: Row) -> None:
        """Merge into a table, whose columns `old` gives.

        `begin` returns the merge of Java for the changes and the condition, and `end` is its method that runs it.
        """


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge of changed rows into a table of the same columns."""

    rows: DataFrame
    """One row for each topic and key, with the column `deleted`, in the columns of the table."""
    buckets: tuple[BucketFunction, ...]
    newer: Newer

    @classmethod
    def of(
        cls, rows: DataFrame, table: StructType, newer: Newer = newer, buckets: tuple[BucketFunction, ...] = ()
    ) -> "Merge":
        """Return the merge of rows that may lack some of the table's columns and fields."""
        marks = [HAS_ROW] if HAS_ROW in rows.columns else []
        return cls(fitted_rows(rows, table, DELETED, *marks), buckets, newer)

    def run(self, begin: Callable[[Any, Any], Any], end: str, old: Row) -> None:
        """Merge into a table, as `TableMerge` says."""
        same_row = (old(name) == CHANGE(name) for name in IDENTITY_COLUMNS)
        condition = _all([*same_row, *bounds_of(self.rows, self.buckets, old)])
        is_newer = self.newer(old, CHANGE)
        merge = begin(java_of(self.rows.alias(CHANGES)), java_of(condition))
        if HAS_ROW in self.rows.columns:
            # What is deleted keeps its fields.
            own = assigned(
                self.rows.sparkSession, "partition", "offset", "timestamp", "headers", IS_DELETED, DELETED_AT
            )
            merge = merge.whenMatched(java_of(is_newer & ~CHANGE(HAS_ROW))).update(own)
            is_row = f.lit(True)
        else:
            merge = merge.whenMatched(java_of(is_newer & CHANGE(DELETED))).delete()
            is_row = ~CHANGE(DELETED)
        merge = merge.whenMatched(java_of(is_newer)).updateAll()
        getattr(merge.whenNotMatched(java_of(is_row)).insertAll(), end)()


def assigned(session: SparkSession, *names: str) -> Any:
    """Return what gives a table's columns the values of the rows that are merged, for Java's `update`."""
    utils: Any = session.sparkContext._jvm  # noqa: SLF001 - as below
    return utils.PythonUtils.toScalaMap({quoted(name, whole=True): java_of(CHANGE(name)) for name in names})


def java_of(each: Any) -> Any:
    """Return the object of Java behind rows or a column."""
    return each._jdf if isinstance(each, DataFrame) else each._jc  # noqa: SLF001 - Delta has no Python interface here


def bounds_of(rows: DataFrame, buckets: Sequence[BucketFunction], old: Row) -> Iterator[Column]:
    """Yield conditions on a table's rows that hold for each of those with one of the keys.

    Without any key that is false, and no file is read.
    """
    parts = list(_parts((), rows.schema["key"].dataType))
    columns = [_countable(_field(f.col("key"), path), kind) for path, kind in parts]
    smallest = [f.min(column).alias(f"min{n}") for n, column in enumerate(columns)]
    largest = [f.max(column).alias(f"max{n}") for n, column in enumerate(columns)]
    complete = [f.every(column.isNotNull()).alias(f"all{n}") for n, column in enumerate(columns)]
    touched = [f.collect_set(each.of(f.col)).alias(f"buckets{n}") for n, each in enumerate(buckets)]
    # Comparisons with an empty part hold for no row.
    in_buckets = [f.every(each.of(f.col).isNotNull()).alias(f"in_bucket{n}") for n, each in enumerate(buckets)]
    topics = f.collect_set("topic").alias("topics")
    found = rows.agg(topics, *smallest, *largest, *complete, *touched, *in_buckets).collect()[0]
    if not found["topics"]:
        yield f.lit(False)
        return
    if len(found["topics"]) <= TOPICS_MAX:
        yield old("topic").isin(sorted(found["topics"]))
    for n, (path, kind) in enumerate(parts):
        bounds = found[f"min{n}"], found[f"max{n}"]
        if found[f"all{n}"] and all(isinstance(each, int) or len(each) <= BOUND_LENGTH_MAX for each in bounds):
            low, high = (_literal(each, kind) for each in bounds)
            yield _field(old("key"), path).between(low, high)
    for n, each in enumerate(buckets):
        numbers = found[f"buckets{n}"]
        if found[f"in_bucket{n}"] and len(numbers) <= min(BUCKETS_MAX, each.width - 1):
            yield each.of(old).isin(sorted(numbers))


def overtaken(place: str, batch_id: int) -> str:
    """Return the error of a merge that other writers have overtaken each time."""
    return (
        f"{place}: micro-batch {batch_id} was merged {MERGE_TRIES} times, and each time another writer was faster; "
        f"stop what writes to the table besides this pipeline"
    )


@contextmanager
def session_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set session settings for one statement; nothing else may use the session in the meantime."""
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
    return rows.select(
        *(fitted_to(f.col(quoted(each.name, whole=True)), rows.schema, each) for each in table.fields), *others
    )


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


def _all(conditions: Iterable[Column]) -> Column:
    return reduce(and_, conditions)


def _field(column: Column, path: Iterable[str]) -> Column:
    """Return a field of a struct, by the names on the way to it."""
    return reduce(Column.getField, path, column)


def _parts(path: tuple[str, ...], kind: DataType) -> Iterator[tuple[tuple[str, ...], DataType]]:
    """Yield the parts of a key that have bounds, with their types."""
    if isinstance(kind, BOUNDED):
        yield path, kind
    elif isinstance(kind, StructType):
        for each in kind.fields:
            yield from _parts((*path, each.name), each.dataType)


def _countable(part: Column, kind: DataType) -> Column:
    """Return a part of a key as what Python can hold: its dates end with the year 9999."""
    return f.unix_date(part) if isinstance(kind, DateType) else part


def _literal(value: Any, kind: DataType) -> Column:
    literal = f.lit(value)
    return f.date_from_unix_date(literal) if isinstance(kind, DateType) else literal.cast(kind)
