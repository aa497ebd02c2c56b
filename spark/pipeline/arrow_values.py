"""Spark's types and those of Arrow, which decoders know. All are nullable: see `tables.types`."""

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from anabranch.tables.types import list_of, map_of

SCALARS = (BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType,
           ShortType, StringType, TimestampNTZType, TimestampType)  # fmt: skip
"""Types that decoders make."""
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
"""Time zone of Spark's timestamp columns. Spark 4.2 requires it explicitly."""


def decoded_type(data: StructType) -> StructType:
    """Return the struct that a decoder returns: the data or the error, and neither for a tombstone."""
    return StructType([StructField("data", data), StructField("error", StringType())])


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a column of Spark; null in place of scalars that decoders do not make."""
    if isinstance(kind, StructType):
        return pa.struct([pa.field(part.name, arrow_type(part.dataType)) for part in kind.fields])
    if isinstance(kind, ArrayType):
        return list_of(arrow_type(kind.elementType))
    if isinstance(kind, MapType):
        return map_of(arrow_type(kind.keyType), arrow_type(kind.valueType))
    return to_arrow_type(kind, **_IN_UTC) if type(kind) in SCALARS else pa.null()


def spark_type(kind: pa.StructType) -> StructType:
    """Return the type of a decoder's columns as Spark's."""
    found = from_arrow_type(kind, prefer_timestamp_ntz=True)
    assert isinstance(found, StructType), "as it was"
    return found


def nullable(kind: DataType) -> DataType:
    """Return the type with everything in it nullable."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind
