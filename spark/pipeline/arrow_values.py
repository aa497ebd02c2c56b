"""Decodes values one by one into Arrow columns, so that a bad record does not affect others.

The types are Spark's, and all nullable: a table's columns outlive the schema versions that had them.
"""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from anabranch.spark.pipeline.registry import NotDecodableError

DecodeValue = Callable[[bytes], Any]
"""Decodes the bytes of one value to dicts, lists and scalars. Raises NotDecodableError."""
ERROR_CHARS_MAX = 500
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
"""Time zone of Spark's timestamp columns. Spark 4.2 requires it explicitly."""


def decoded_type(data: StructType) -> StructType:
    """Return the struct that a decoder returns: the data or the error, and neither for a tombstone."""
    return StructType([StructField("data", data), StructField("error", StringType())])


def decode_column(values: Iterable[Any], decode: DecodeValue, data_type: StructType) -> pa.Array:
    """Return an Arrow column of `decoded_type` from a column of binary values."""
    rows: list[Any] = []
    errors: list[str | None] = []
    for value in values:
        row, error = None, None
        content = value.as_py() if hasattr(value, "as_py") else value
        if content is not None:
            try:
                row = decode(content)
            except NotDecodableError as failure:
                error = str(failure)[:ERROR_CHARS_MAX]
        rows.append(row)
        errors.append(error)
    return pa.StructArray.from_arrays(
        [_to_arrow(rows, errors, arrow_type(data_type)), pa.array(errors, pa.string())], names=["data", "error"]
    )


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a column of Spark."""
    return to_arrow_type(kind, **_IN_UTC)


def _to_arrow(rows: list[Any], errors: list[str | None], wanted: pa.DataType) -> pa.Array:
    try:
        return pa.array(rows, wanted)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        # One value does not fit its column: find it.
        for index, row in enumerate(rows):
            try:
                pa.scalar(row, wanted)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as failure:
                rows[index] = None
                errors[index] = f"a value does not fit its column: {failure}"[:ERROR_CHARS_MAX]
        return pa.array(rows, wanted)


def nullable(kind: DataType) -> DataType:
    """Return the type with everything in it nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind
