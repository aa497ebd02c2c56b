"""Types of a table's columns: Arrow's, with the names that messages give them, which are those of SQL in Spark.

All are nullable, since a table's columns outlive the schema versions that had them. Lists and maps name their parts as
Iceberg and Parquet do: `element`, `key` and `value`.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", "UTC")
LOCAL_TIMESTAMP: Final = pa.timestamp("us")
DECIMAL_DIGITS_MAX: Final = 38
_NAMES: Final[Mapping[Any, str]] = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "binary", pa.date32(): "date",
    TIMESTAMP: "timestamp", LOCAL_TIMESTAMP: "timestamp_ntz",
}  # fmt: skip


def list_of(kind: pa.DataType) -> pa.ListType:
    """Return the type of lists of a type."""
    return pa.list_(pa.field("element", kind))


def map_of(key: pa.DataType, value: pa.DataType) -> pa.MapType:
    """Return the type of maps."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


def nullable(kind: pa.DataType) -> pa.DataType:
    """Return the type with everything in it nullable, but for the keys of maps, and without metadata."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, nullable(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return map_of(nullable(kind.key_type), nullable(kind.item_type))
    if pa.types.is_list(kind):
        return list_of(nullable(kind.value_type))
    return kind


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type for messages, such as `struct<at:timestamp,tags:array<string>>`."""
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{part.name}:{type_name(part.type)}' for part in kind)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(kind) or str(kind)
