"""Layout of Iceberg tables: partition spec, sort order and properties, through Iceberg's own interface.

A change is metadata only. Files keep the spec and the order that they were written with, and Iceberg plans each of them
by its own; the next rewrite of small files gives them the new ones.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import DataType, StructType

from anabranch.spark.pipeline.errors import SettingError, reason_of
from anabranch.spark.pipeline.layout import (
    IDENTITY,
    PartitionColumn,
    SortColumn,
    TableLayout,
    format_columns,
)

FORMAT_VERSION = "format-version"
VOID = "void"
"""Transform of a field that was dropped from the spec of a table of version 1."""


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """Steps that give an existing table the layout of the file."""

    lines: tuple[str, ...]
    """A line for each change, for people."""
    fields_dropped: tuple[str, ...]
    """Names of partition fields."""
    partitions_added: tuple[PartitionColumn, ...]
    order: tuple[SortColumn, ...] | None
    """None: it stays."""
    properties: Mapping[str, str]


def java_schema(jvm: Any, columns: StructType) -> Any:
    """Return Iceberg's schema of columns. All are optional, as in a table that Spark creates from a query."""
    spark_type = jvm.org.apache.spark.sql.types.DataType.fromJson(columns.json())
    return jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(spark_type.asNullable())


def partition_spec(jvm: Any, schema: Any, partitions: tuple[PartitionColumn, ...]) -> Any:
    """Return Iceberg's partition spec. Raises what Iceberg raises."""
    builder = jvm.org.apache.iceberg.PartitionSpec.builderFor(schema)
    for each in partitions:
        add = getattr(builder, each.transform)
        builder = add(each.column) if each.width is None else add(each.column, each.width)
    return builder.build()


def sort_order(jvm: Any, builder: Any, order: tuple[SortColumn, ...]) -> Any:
    """Add columns to a builder or an update of a sort order, and return it. Raises what Iceberg raises."""
    nulls = jvm.org.apache.iceberg.NullOrder
    for each in order:
        add = builder.desc if each.descending else builder.asc
        # By reference: py4j does not see the defaults of an interface, which take a name.
        builder = add(
            jvm.org.apache.iceberg.expressions.Expressions.ref(each.column),
            nulls.NULLS_FIRST if each.nulls_first else nulls.NULLS_LAST,
        )
    return builder


def check_layout(jvm: Any, layout: TableLayout, columns: StructType) -> None:
    """Raise SettingError if the columns of the table do not allow the layout."""
    schema = java_schema(jvm, columns)
    for setting, named in (("table.partition_by", layout.partitions), ("table.sort_by", layout.order)):
        for each in named:
            _check_exists(setting, each.column, columns)
    with _errors_of("table.partition_by"):
        partition_spec(jvm, schema, layout.partitions)
    with _errors_of("table.sort_by"):
        sort_order(jvm, jvm.org.apache.iceberg.SortOrder.builderFor(schema), layout.order).build()


def plan_change(jvm: Any, table: Any, layout: TableLayout) -> LayoutChange:
    """Return what an existing table needs for a layout."""
    lines = []
    fields = partitions_of(table)
    dropped: list[str] = []
    added: list[PartitionColumn] = []
    if layout.partitions_named and set(fields.values()) != set(layout.partitions):
        dropped = [name for name, each in fields.items() if each not in layout.partitions]
        added = [each for each in layout.partitions if each not in fields.values()]
        before, after = format_columns(fields.values()), format_columns(layout.partitions)
        lines.append(f"partition_by changes from {before} to {after}; files that exist stay as they are")
    order = None
    if layout.order_named and (found := _order_of(table)) != list(map(str, layout.order)):
        order = layout.order
        before = ", ".join(found) or "none"
        lines.append(f"sort_by changes from {before} to {format_columns(order)}; files that exist stay as they are")
    known = table.properties()
    values = {name: known.get(name) for name in layout.properties}
    if FORMAT_VERSION in values:
        values[FORMAT_VERSION] = str(jvm.org.apache.iceberg.TableUtil.formatVersion(table))
    properties = {name: value for name, value in layout.properties.items() if values[name] != value}
    lines += [
        f"property {name} changes from {'none' if values[name] is None else values[name]} to {value}"
        for name, value in properties.items()
    ]
    return LayoutChange(tuple(lines), tuple(dropped), tuple(added), order, properties)


def apply_change(jvm: Any, table: Any, change: LayoutChange, columns: StructType) -> None:
    """Make a change in one commit. Raises SettingError for what Iceberg refuses."""
    transaction = table.newTransaction()
    if change.partitions_added or change.order:
        # The file may name columns that the first micro-batch would add.
        with _errors_of("table"):
            transaction.updateSchema().unionByNameWith(java_schema(jvm, columns)).commit()
    if change.fields_dropped or change.partitions_added:
        with _errors_of("table.partition_by"):
            update = transaction.updateSpec()
            for name in change.fields_dropped:
                update = update.removeField(name)
            for each in change.partitions_added:
                update = update.addField(_term(jvm, each))
            update.commit()
    if change.order is not None:
        with _errors_of("table.sort_by"):
            sort_order(jvm, transaction.replaceSortOrder(), change.order).commit()
    if change.properties:
        with _errors_of("table.properties"):
            properties = transaction.updateProperties()
            for name, value in change.properties.items():
                properties = properties.set(name, value)
            properties.commit()
    with _errors_of("table"):
        transaction.commitTransaction()


@contextmanager
def _errors_of(setting: str) -> Iterator[None]:
    """Turn errors of Iceberg, which have no common class, into those of a setting."""
    try:
        yield
    except Exception as error:
        raise SettingError(setting, reason_of(error)) from error


def _term(jvm: Any, partition: PartitionColumn) -> Any:
    make = getattr(
        jvm.org.apache.iceberg.expressions.Expressions,
        "ref" if partition.transform == IDENTITY else partition.transform,
    )
    return make(partition.column) if partition.width is None else make(partition.column, partition.width)


def partitions_of(table: Any) -> dict[str, PartitionColumn]:
    """Return what a loaded table is partitioned by, by names of the spec's fields."""
    schema = table.schema()
    return {
        field.name(): PartitionColumn.of_iceberg(
            str(field.transform().toString()), str(schema.findColumnName(field.sourceId()))
        )
        for field in table.spec().fields()
        if field.transform().toString() != VOID
    }


def _order_of(table: Any) -> list[str]:
    """Return what a loaded table is sorted by, in the file's notation as far as that has one."""
    schema = table.schema()
    order = []
    for field in table.sortOrder().fields():
        source = str(schema.findColumnName(field.sourceId()))
        column = str(PartitionColumn.of_iceberg(str(field.transform().toString()), source))
        descending, nulls_first = field.direction().name() == "DESC", field.nullOrder().name() == "NULLS_FIRST"
        order.append(str(SortColumn(column, descending, nulls_first)))
    return order


def _check_exists(setting: str, name: str, columns: StructType) -> None:
    """Raise SettingError if a name is not that of a column, or of a field of its struct."""
    found: DataType = columns
    before = "the table"
    for part in name.split("."):
        names = found.names if isinstance(found, StructType) else []
        if not isinstance(found, StructType) or part not in names:
            raise SettingError(setting, f"there is no column {name}; {before} has {', '.join(names) or 'no fields'}")
        found, before = found[part].dataType, part
