"""The fields of decoded values as the table's columns: `[columns]` of the file.

Names are checked against the schema before anything is written. Casts are those of `tables.casts`, in one vectorised
Python function for all of them; everything else is done by Spark itself.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import reduce

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, DataType, StringType, StructField, StructType

from anabranch.spark.pipeline.arrow_values import SCALARS, arrow_type
from anabranch.spark.pipeline.changes import DELETED
from anabranch.spark.pipeline.columns_section import ColumnsSection
from anabranch.spark.pipeline.decode import session_zone, vectorised
from anabranch.spark.pipeline.errors import SettingError, UnusableSchema, reason_of
from anabranch.tables.casts import cast_column, check_cast
from anabranch.tables.errors import SchemaError

Casts = Mapping[str, DataType]
"""Types that fields are cast to, by path."""
_CAST, _KEY, _KEPT = "_cast", "_key", "_kept"
"""Columns between two steps."""


def filtered(records: DataFrame, condition: str, key: str, *, is_keyed: bool) -> DataFrame:
    """Return decoded records of which those that do not meet a condition are left out. Raises SettingError.

    In a table with keys they delete their row, else they get an empty error. `key` is the column that the condition
    knows as `key`.
    """
    if key != "key":
        records = records.withColumnsRenamed({"key": _KEY, key: "key"})
    try:
        kind = records.select(f.expr(condition)).schema.fields[0].dataType
        if not isinstance(kind, BooleanType):
            raise SettingError("columns.filter", f"{condition!r} is no condition: it gives {kind.simpleString()}")
        is_out = f.col("error").isNull() & ~f.coalesce(f.expr(condition), f.lit(False))
        records = records.withColumn(_KEPT, ~is_out)
    except (AnalysisException, ParseException) as error:
        raise SettingError("columns.filter", reason_of(error)) from error
    if key != "key":
        records = records.withColumnsRenamed({"key": key, _KEY: "key"})
    if is_keyed:
        if "data" in records.columns:  # a deletion has no fields
            records = records.withColumn("data", f.when(f.col(_KEPT), f.col("data")))
        return records.withColumn(DELETED, f.col(DELETED) | ~f.col(_KEPT)).drop(_KEPT)
    return records.withColumn("error", f.when(f.col(_KEPT), f.col("error")).otherwise("")).drop(_KEPT)


def shaped(records: DataFrame, columns: ColumnsSection) -> DataFrame:
    """Return records with the fields in `data` that the table gets, and the errors of casts.

    Raises SettingError for fields that the values do not have, and for types and casts that do not exist.
    """
    if columns.is_plain:
        return records
    kind = records.schema["data"].dataType
    assert isinstance(kind, StructType), "the settings demand a schema"
    casts = {path: _cast_type(path, text, kind) for path, text in columns.cast.items()}
    for setting, paths in (("select", columns.select), ("rename", columns.rename)):
        for path in paths:
            _type_of(path, kind, f"columns.{setting}")
    if casts:
        records = _with_casts(records, casts)
    fields = list(_fields(f.col("data"), kind, columns, list(casts)))
    _refuse_twins([name for name, _ in fields], "columns.select")
    struct = f.struct(*(column.alias(name) for name, column in fields))
    return records.withColumn("data", f.when(f.col("data").isNotNull(), struct)).drop(_CAST)


def top_level_columns(kind: DataType, own: Collection[str]) -> list[Column]:
    """Return the fields of `data`, which has a type, as columns beside the record's own. Raises UnusableSchema."""
    assert isinstance(kind, StructType), "the settings demand a schema"
    taken = {name.lower() for name in own}
    for name in kind.names:
        if name.lower() in taken:
            raise UnusableSchema(
                "columns.top_level",
                f"the field {name} of the values has the name of one of the record's own columns ({', '.join(own)}): "
                f"give it another one in [columns] rename",
            )
    _refuse_twins(kind.names, "columns.top_level")
    return [f.col("data").getField(name).alias(name) for name in kind.names]


def _refuse_twins(names: Collection[str], setting: str) -> None:
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name or list(names).count(name) > 1:
            raise UnusableSchema(
                setting, f"two fields would be columns {other} and {name}: give one another name in [columns] rename"
            )


def _type_of(path: str, kind: StructType, setting: str) -> DataType:
    """Return the type of a field of values. Raises UnusableSchema if they do not have it."""
    found: DataType = kind
    before = "values have"
    for part in path.split("."):
        names = found.names if isinstance(found, StructType) else []
        if not isinstance(found, StructType) or part not in names:
            has = ", ".join(names) or f"no fields: it is {found.simpleString()}"
            raise UnusableSchema(setting, f"there is no field {path}: {before} {has}")
        found, before = found[part].dataType, f"{part} has"
    return found


def _cast_type(path: str, text: str, kind: StructType) -> DataType:
    """Return the type that a field is cast to. Raises SettingError, and UnusableSchema."""
    setting = f"columns.cast.{path}"
    source = _type_of(path, kind, setting)
    try:
        target = DataType.fromDDL(text)
    except ParseException as error:
        raise SettingError(setting, f"{text!r} is no type, such as int, decimal(12,2) or string") from error
    for each in (source, target):
        if type(each) not in SCALARS:
            raise SettingError(setting, f"no cast from {source.simpleString()} to {target.simpleString()}")
    try:
        check_cast(path, arrow_type(source), arrow_type(target))
    except SchemaError as error:
        raise SettingError(setting, str(error).removeprefix(f"{path}: ")) from error
    return target


def _with_casts(records: DataFrame, casts: Casts) -> DataFrame:
    """Add the values of casts, and their first error unless a record has one already."""
    zone = session_zone()
    targets = {path: arrow_type(target) for path, target in casts.items()}

    def cast(values: pa.Array) -> pa.Array:
        found, errors = [], pa.nulls(len(values), pa.string()).to_pylist()
        for (path, target), each in zip(targets.items(), values.flatten(), strict=True):
            column, wrong = cast_column(each, path, target, zone)
            found.append(column)
            errors = [before or error for before, error in zip(errors, wrong, strict=True)]
        names = [*(str(number) for number in range(len(found))), "error"]
        return pa.StructArray.from_arrays([*found, pa.array(errors, pa.string())], names=names)

    result = StructType([StructField(str(number), each) for number, each in enumerate(casts.values())])
    given = [reduce(Column.getField, path.split("."), f.col("data")).alias(path) for path in casts]
    records = records.withColumn(_CAST, vectorised(cast, result.add("error", StringType()))(f.struct(*given)))
    wrong = f.when(~f.col(DELETED), f.col(_CAST).getField("error"))
    return records.withColumn("error", f.coalesce("error", wrong))


def _fields(data: Column, kind: StructType, columns: ColumnsSection, casts: list[str]) -> Iterator[tuple[str, Column]]:
    """Yield the new names of fields, and what is in them."""
    for path in columns.select or kind.names:
        column = reduce(Column.getField, path.split("."), data)
        name = columns.rename.get(path, path.rpartition(".")[2])
        yield name, _changed(column, _type_of(path, kind, "columns.select"), path, columns, casts)


def _changed(column: Column, kind: DataType, path: str, columns: ColumnsSection, casts: list[str]) -> Column:
    """Return a field with its casts and renamed fields."""
    if path in casts:
        return f.col(_CAST).getField(str(casts.index(path)))
    inside = f"{path}."
    if not isinstance(kind, StructType) or not any(each.startswith(inside) for each in (*columns.rename, *casts)):
        return column
    parts = []
    for each in kind.fields:
        part = f"{inside}{each.name}"
        changed = _changed(column.getField(each.name), each.dataType, part, columns, casts)
        parts.append(changed.alias(columns.rename.get(part, each.name)))
    return f.when(column.isNotNull(), f.struct(*parts))
