"""Schemas of tables: columns with ids that they keep for ever, and how they follow the schemas of values.

A table's schema is one of Arrow whose fields have their id as Iceberg and Parquet know it, in the metadata
`PARQUET:field_id`, at each level. The fields of values are its columns, and `_kafka` is where a record was and what it
had besides its value. By Iceberg's rules a column is never removed, its type grows only, and what is new is null in
older rows. A field whose type cannot grow into the new one keeps its column: values that do not fit have an error.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from anabranch.tables.errors import SchemaError
from anabranch.tables.field_limit import FieldCount
from anabranch.tables.types import TIMESTAMP, list_of, map_of, nullable, type_name

KAFKA: Final = "_kafka"
"""Column of what a record has besides its value."""
RAW_VALUE: Final = "value"
"""Column of values that are not decoded."""
FIELD_ID: Final = b"PARQUET:field_id"
HEADERS: Final = list_of(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
LEVELS_MAX: Final = 50
"""Levels of fields. Readers and writers go through them by recursion: pyiceberg writes no 90 levels of structs."""
PATH_CHARS_MAX: Final = 100
_WIDER: Final[Mapping[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int8(): (pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
"""Promotions of Iceberg, and those to its smallest integer."""


@dataclass(frozen=True, slots=True)
class Evolution:
    """Schema of a table after that of its values or keys has changed, and what is different."""

    schema: pa.Schema
    added: list[str] = field(default_factory=list)
    """Paths of new columns and fields."""
    promoted: list[str] = field(default_factory=list)
    """Paths, with both types."""
    unfit: list[str] = field(default_factory=list)
    """Paths, with both types, of fields whose values do not fit their columns."""


def kafka_type(key: pa.DataType | None) -> pa.StructType:
    """Return the type of `_kafka`. `key` is that of decoded keys, which leave theirs in `key_raw` if they are not.

    Keys without any field, such as those whose schema is still unknown, have no column: Parquet has none for them.
    """
    parts = [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary() if key is None else key),
        pa.field("headers", HEADERS),
        pa.field("error", pa.string()),
        pa.field("value_raw", pa.binary()),
    ]
    if key is None:
        return pa.struct(parts)
    return pa.struct([*(part for part in parts if not _is_empty(part.type)), pa.field("key_raw", pa.binary())])


def evolve(schema: pa.Schema | None, value: pa.StructType | None, key: pa.StructType | None) -> Evolution:
    """Return the schema of a table, from the one so far, for values and keys of these types; None: they stay bytes.

    Raises SchemaError for a type that cannot become the columns of a table.
    """
    wanted = pa.struct([pa.field(RAW_VALUE, pa.binary())]) if value is None else _iceberg_type(value)
    if wanted.get_field_index(KAFKA) >= 0:
        raise SchemaError(f"a field {KAFKA}, which is the table's own")
    kafka = kafka_type(None if key is None else _iceberg_type(key))
    wanted = pa.struct([*wanted, pa.field(KAFKA, kafka, nullable=False)])
    _check_fields(wanted)
    if schema is None:
        return Evolution(numbered(pa.schema(list(wanted))))
    found = Evolution(schema)
    columns = _Merge(found, max(field_ids(schema)) + 1).fields(pa.struct(list(schema)), wanted, "")
    _check_fields(pa.struct(columns))  # a new name may be a twin of one that only older values have
    return Evolution(pa.schema(columns), found.added, found.promoted, found.unfit)


def field_ids(parts: Iterable[pa.Field]) -> Iterator[int]:
    """Yield the ids of fields and of all that is inside of them."""
    for part in parts:
        yield id_of(part)
        yield from field_ids(_inside(part.type))


def id_of(part: pa.Field) -> int:
    """Return the id of a field of a table's schema."""
    return int(part.metadata[FIELD_ID])


def promotes(kind: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether a type may grow into another one, by Iceberg's rules."""
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wider):
        return bool(kind.scale == wider.scale and kind.precision < wider.precision)
    return wider in _WIDER.get(kind, ())


class _Merge:
    """Merges wanted fields into those that are there."""

    def __init__(self, found: Evolution, next_id: int) -> None:
        self._found = found
        self._ids = iter(range(next_id, 1 << 31))

    def fields(self, known: pa.StructType, wanted: pa.StructType, path: str) -> list[pa.Field]:
        merged = []
        for part in known:
            at = wanted.get_field_index(part.name)
            merged.append(part if at < 0 else self._field(part, wanted.field(at), f"{path}{part.name}"))
        for part in wanted:
            if known.get_field_index(part.name) < 0:
                self._found.added.append(f"{path}{part.name}")
                merged.append(_with_ids(part.with_nullable(True), self._ids))
        return merged

    def _field(self, known: pa.Field, wanted: pa.Field, path: str) -> pa.Field:
        old, new = known.type, wanted.type
        if pa.types.is_struct(old) and pa.types.is_struct(new):
            return known.with_type(pa.struct(self.fields(old, new, f"{path}.")))
        if pa.types.is_list(old) and pa.types.is_list(new):
            return known.with_type(pa.list_(self._field(old.value_field, new.value_field, f"{path}.element")))
        if pa.types.is_map(old) and pa.types.is_map(new) and nullable(old.key_type) == nullable(new.key_type):
            return known.with_type(pa.map_(old.key_field, self._field(old.item_field, new.item_field, f"{path}.value")))
        if promotes(old, new):
            self._found.promoted.append(f"{path}: {type_name(old)} to {type_name(new)}")
            return known.with_type(new)
        if old != new and not promotes(new, old):
            self._found.unfit.append(f"{path}: {type_name(new)} is no {type_name(old)}")
        return known


def _with_ids(part: pa.Field, ids: Iterator[int]) -> pa.Field:
    """Return a field with new ids for it and all that is inside of it."""
    part = part.with_metadata({FIELD_ID: str(next(ids))})
    kind = part.type
    if pa.types.is_struct(kind):
        return part.with_type(pa.struct([_with_ids(each, ids) for each in kind]))
    if pa.types.is_map(kind):
        return part.with_type(pa.map_(_with_ids(kind.key_field, ids), _with_ids(kind.item_field, ids)))
    if pa.types.is_list(kind):
        return part.with_type(pa.list_(_with_ids(kind.value_field, ids)))
    return part


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if pa.types.is_list(kind) else []


def _iceberg_type(kind: pa.DataType) -> pa.DataType:
    """Return a decoder's type as Iceberg and Parquet have it: the smallest integer has 32 bits.

    Fields without anything inside, such as empty messages, are left out.
    """
    if pa.types.is_struct(kind):
        parts = [part.with_type(_iceberg_type(part.type)) for part in kind]
        return pa.struct([part for part in parts if not _is_empty(part.type)])
    if pa.types.is_map(kind):
        return map_of(_iceberg_type(kind.key_type), _iceberg_type(kind.item_type))
    if pa.types.is_list(kind):
        return list_of(_iceberg_type(kind.value_type))
    return pa.int32() if kind in {pa.int8(), pa.int16()} else kind


def _is_empty(kind: pa.DataType) -> bool:
    parts = _inside(kind)
    return pa.types.is_nested(kind) and (not parts or (not pa.types.is_struct(kind) and _is_empty(parts[-1].type)))


def _check_fields(columns: pa.StructType) -> None:
    """Raise SchemaError for what engines do not read: too many fields, too deep ones, and two of one name.

    They ignore case, and find fields by paths.
    """
    known: dict[str, str] = {}
    count = FieldCount()
    for path in _paths(columns, "", 1):
        other = known.setdefault(path.lower(), path)
        if other is path:
            count.add(1)
        elif other == path:
            raise SchemaError(
                f"two fields {path}: Iceberg finds fields by such a path, so a name with dots may be taken"
            )
        else:
            raise SchemaError(f"fields {other} and {path}, which engines that ignore case cannot tell apart")


def _paths(kind: pa.DataType, path: str, level: int) -> Iterator[str]:
    """Yield the paths of all that is inside of a type, with dots between the names, as Iceberg does."""
    for part in _inside(kind):
        if level > LEVELS_MAX:
            raise SchemaError(f"fields of more than {LEVELS_MAX} levels, such as {path[:PATH_CHARS_MAX]}...")
        yield (inner := f"{path}{part.name}")
        yield from _paths(part.type, f"{inner}.", level + 1)


def numbered(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields have ids of their own, for columns whose ids are not known."""
    ids = iter(range(1, 1 << 31))
    return pa.schema([_with_ids(part, ids) for part in schema])


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as text."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Return the schema of a text."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
