"""Schemas of tables as Iceberg has them."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from anabranch.tables.schema import id_of
from anabranch.tables.types import LOCAL_TIMESTAMP, TIMESTAMP

_TYPES: Final[Mapping[pa.DataType, IcebergType]] = {
    pa.bool_(): BooleanType(), pa.int32(): IntegerType(), pa.int64(): LongType(), pa.float32(): FloatType(),
    pa.float64(): DoubleType(), pa.string(): StringType(), pa.binary(): BinaryType(), pa.date32(): DateType(),
    TIMESTAMP: TimestamptzType(), LOCAL_TIMESTAMP: TimestampType(),
}  # fmt: skip


def iceberg_schema(schema: pa.Schema, schema_id: int) -> Schema:
    """Return a table's schema with the ids of its fields. pyiceberg's own conversion reserves 1 GiB of memory."""
    return Schema(*map(_field, schema), schema_id=schema_id)


def _field(part: pa.Field) -> NestedField:
    return NestedField(id_of(part), part.name, _type(part.type), required=not part.nullable)


def _type(kind: pa.DataType) -> IcebergType:
    if pa.types.is_struct(kind):
        return StructType(*map(_field, kind))
    if pa.types.is_list(kind):
        element = kind.value_field
        return ListType(id_of(element), _type(element.type), element_required=not element.nullable)
    if pa.types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        return MapType(id_of(key), _type(key.type), id_of(value), _type(value.type), value_required=not value.nullable)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _TYPES[kind]
