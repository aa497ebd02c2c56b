"""Avro values: the schema as a type of columns, and a decoder (Spark's own Avro jar is not needed).

A record is read with its writer's schema and resolved to the newest one, by Avro's rules of schema resolution. Types
are those of Spark's own Avro source. Unions of more than null and one type are refused.
"""

import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException

from anabranch.tables.avro_reasons import wrong_field
from anabranch.tables.errors import NotDecodableError, SchemaError, UnknownSchemaError
from anabranch.tables.field_limit import FieldCount
from anabranch.tables.framing import Framing
from anabranch.tables.registry import RegisteredSchema, SchemaKey, WriterSchemas
from anabranch.tables.types import DECIMAL_DIGITS_MAX, LOCAL_TIMESTAMP, TIMESTAMP, list_of, map_of, type_name

PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "fixed": pa.binary(), "string": pa.string(), "enum": pa.string(),
}  # fmt: skip
LOGICAL: dict[str, pa.DataType] = {
    "date": pa.date32(), "timestamp-millis": TIMESTAMP, "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": LOCAL_TIMESTAMP, "local-timestamp-micros": LOCAL_TIMESTAMP, "uuid": pa.string(),
}  # fmt: skip
ONLY_FIELD = "value"
"""Field of values whose schema is no record, such as keys that are texts."""
DIGITS_MAX = 100_000
"""More than a decimal of a table has."""
FREE_VALUES_MAX = 4_000_000
"""Limit of a record's values that take no bytes, such as nulls: a few bytes may encode any number of them."""
RECURSIVE_BYTES_MAX = 4096
"""Bytes of a record whose schema contains itself: each may be a level, and fastavro crashes at some ten thousand."""
WRITERS_MAX = 1_000
"""Schemas that records were written with, or reasons why one is unknown, that are kept."""
WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


def parse_avro(text: str, references: tuple[tuple[str, str], ...] = ()) -> Any:
    """Parse a schema with fastavro. Times of day and durations stay numbers. Raises SchemaError."""
    try:
        named: dict[str, Any] = {}
        for _, reference in references:
            fastavro.parse_schema(_without_times(json.loads(reference)), named_schemas=named)
        return fastavro.parse_schema(_without_times(json.loads(text)), named_schemas=named)
    except (ValueError, SchemaParseException, KeyError, TypeError, RecursionError) as error:
        raise SchemaError(f"not an Avro schema: {error}") from error


def avro_type(schema: Any) -> pa.StructType:
    """Return the columns of a record; of a schema that is none, a single one. Raises SchemaError."""
    kind = _whole_type(schema)
    return kind if pa.types.is_struct(kind) else pa.struct([pa.field(ONLY_FIELD, kind)])


def _whole_type(schema: Any) -> pa.DataType:
    """Return the type of a parsed schema, of which fastavro has not checked logical types. Raises SchemaError."""
    named = dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}
    try:
        return _Types(named).of(schema, ())
    except SchemaError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SchemaError(f"an Avro schema that can't be read: {error}") from error


@dataclass(slots=True)
class AvroDecoder:
    """Decodes bytes to a dict. It is pickled to tasks, and caches the schemas it meets there."""

    reader: RegisteredSchema
    registry: WriterSchemas | None
    framing: Framing
    _writers: dict[SchemaKey, Any] = field(default_factory=dict)
    """Parsed schemas with the largest number of bytes to read with them, or errors, by id."""
    _reader: Any = None
    _reader_bytes_max: float = 0
    _shape: Callable[[Any], Any] | None = None

    def __call__(self, value: bytes) -> Any:
        """Decode a value. Raises NotDecodableError, and RegistryError when the registry does not answer."""
        if self._shape is None:
            self._reader = parse_avro(self.reader.text, tuple(self.reader.references))
            self._shape = _row_shaper(_whole_type(self._reader))
            _keep_digits(self._reader)
            self._reader_bytes_max = safe_bytes(self._reader)
        body, writer, bytes_max = value, self._reader, self._reader_bytes_max
        if self.framing is not Framing.NONE:
            schema_id, body = self.framing.unframe(value)
            if self.registry is not None:
                writer, bytes_max = self._writer(schema_id)
        if len(body) > bytes_max:
            raise NotDecodableError(f"by its schema, {len(body)} bytes may become too many values")
        stream = io.BytesIO(body)
        try:
            found = fastavro.schemaless_reader(stream, writer, self._reader if writer is not self._reader else None)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro raises many kinds of errors for invalid bytes
            reason = wrong_field(writer, body) or f"{type(error).__name__}: {error}"
            raise NotDecodableError(f"not Avro of this schema: {reason}") from None
        if left := len(body) - stream.tell():
            raise NotDecodableError(f"not Avro of this schema: {left} bytes are left over")
        return self._shape(found)

    def _writer(self, schema_id: SchemaKey) -> tuple[Any, float]:
        assert self.registry is not None, "asked only with one"
        found = self._writers.get(schema_id)
        if found is None:
            found = self._find_writer(schema_id)
            if len(self._writers) < WRITERS_MAX:
                self._writers[schema_id] = found
        if isinstance(found, Exception):
            raise NotDecodableError(str(found))
        return found  # type: ignore[no-any-return]

    def _find_writer(self, schema_id: SchemaKey) -> Any:
        assert self.registry is not None, "asked only with one"
        if schema_id == self.reader.schema_id:
            return self._reader, self._reader_bytes_max
        try:
            schema = self.registry.by_key(schema_id)
            parsed = parse_avro(schema.text, tuple(schema.references))
            _keep_digits(parsed)
            return parsed, safe_bytes(parsed)
        except (UnknownSchemaError, SchemaError) as error:
            return error


def safe_bytes(schema: Any) -> float:
    """Return the number of bytes up to which records of a parsed schema are read; -1 for none. Raises SchemaError.

    fastavro counts nothing and cannot be interrupted: records that would not end, or not fit, are not begun.
    """
    scales = _Scales(schema.get("__named_schemas", {}) if isinstance(schema, dict) else {})
    try:
        scales.enter(schema, ())
    except RecursionError:
        raise SchemaError("the schema is nested too deeply") from None
    allowed = FREE_VALUES_MAX // scales.free_values - 1 if scales.free_values > 1 else math.inf
    return min(allowed, RECURSIVE_BYTES_MAX) if scales.is_recursive else allowed


class _Scales:
    """Finds how many values of no bytes may follow each byte."""

    def __init__(self, named: dict[str, Any]) -> None:
        self.free_values: float = 0
        self.is_recursive = False
        self._named = named
        self._known: dict[str, tuple[float, bool]] = {}

    def enter(self, schema: Any, inside: tuple[str, ...], *, follows_byte: bool = True) -> None:
        """Weigh what follows a byte: a branch, an item, a value."""
        free, takes_bytes = self._weigh(schema, inside, ())
        self.free_values = max(self.free_values, free if follows_byte or takes_bytes else math.inf)

    def _weigh(self, schema: Any, inside: tuple[str, ...], direct: tuple[str, ...]) -> tuple[float, bool]:
        """Return the number of values of no bytes, and whether it takes bytes.

        `inside`: the records around it; `direct`: those of them without a byte in between.
        """
        if isinstance(schema, list):
            for part in schema:
                self.enter(part, inside)
            return 0, True
        if isinstance(schema, str):
            return self._weigh_name(schema, inside, direct)
        kind = schema["type"]
        if kind == "array":
            self.enter(schema["items"], inside, follows_byte=False)
        elif kind == "map":
            self.enter(schema["values"], inside)
        elif kind == "fixed":
            return (0, True) if schema["size"] else (1, False)
        elif kind in {"record", "error"}:
            name = schema["name"]
            parts = [self._weigh(part["type"], (*inside, name), (*direct, name)) for part in schema["fields"]]
            takes_bytes = any(takes for _, takes in parts)
            self._known[name] = sum(free for free, _ in parts) + (not takes_bytes), takes_bytes
            return self._known[name]
        elif kind != "enum":
            return self._weigh(kind, inside, direct)
        return 0, True

    def _weigh_name(self, name: str, inside: tuple[str, ...], direct: tuple[str, ...]) -> tuple[float, bool]:
        if name in direct:
            return math.inf, False
        if name in inside:
            self.is_recursive = True
            return 0, True
        if name == "null":
            return 1, False
        if name in self._named and name not in self._known:
            return self._weigh(self._named[name], inside, direct)
        return self._known.get(name, (0, True))


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _without_times(part) if key in {"type", "fields", "items", "values"} else part
            for key, part in schema.items()}  # fmt: skip
    logical = kept.get("logicalType")
    # A UUID stays the text that was written.
    if str(logical).startswith(("time-", "duration")) or (logical == "uuid" and kept["type"] == "string"):
        del kept["logicalType"]
    return kept


def _keep_digits(schema: Any) -> None:
    """Let fastavro keep all digits of a parsed schema's decimals: it rounds those that have too many."""
    if isinstance(schema, dict):
        if schema.get("logicalType") == "decimal":
            schema["precision"] = DIGITS_MAX
        for part in schema.values():
            _keep_digits(part)
    elif isinstance(schema, list):
        for part in schema:
            _keep_digits(part)


class _Types:
    """Types of a schema's parts."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._count = FieldCount()

    def of(self, schema: Any, inside: tuple[str, ...]) -> pa.DataType:
        """Return the type of a part of the records `inside`."""
        if isinstance(schema, list):
            return self._union(schema, inside)
        if isinstance(schema, str):
            return self._of_name(schema, inside)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical == "decimal":
            return _decimal(schema["precision"], schema.get("scale", 0))
        if logical in LOGICAL:
            return LOGICAL[logical]
        if kind == "array":
            self._count.add(1)
            return list_of(self.of(schema["items"], inside))
        if kind == "map":
            self._count.add(2)
            return map_of(pa.string(), self.of(schema["values"], inside))
        if "name" in schema:
            self._named[schema["name"]] = schema
        if kind in {"record", "error"}:
            within = (*inside, schema["name"])
            self._count.add(len(schema["fields"]))
            return pa.struct([pa.field(part["name"], self.of(part["type"], within)) for part in schema["fields"]])
        return self.of(kind, inside)

    def _of_name(self, name: str, inside: tuple[str, ...]) -> pa.DataType:
        if name in PLAIN:
            return PLAIN[name]
        if name in inside:
            raise SchemaError(f"{name} contains itself, which a table cannot")
        if name not in self._named:
            raise SchemaError(f"{name} is not defined")
        return self.of(self._named[name], inside)

    def _union(self, schema: list[Any], inside: tuple[str, ...]) -> pa.DataType:
        members = [part for part in schema if part != "null"]
        if len(members) == 1:
            return self.of(members[0], inside)
        if all(isinstance(part, str) for part in members) and (wider := WIDER.get(frozenset(members))):
            return PLAIN[wider]
        raise SchemaError(f"a union of more than null and one type has no column: {json.dumps(members)[:200]}")


def _decimal(precision: int, scale: int) -> pa.DataType:
    if precision > DECIMAL_DIGITS_MAX:
        raise SchemaError(f"a decimal of {precision} digits has no column: {DECIMAL_DIGITS_MAX} are the most")
    return pa.decimal128(precision, scale)


def _row_shaper(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns whole values into the columns of `avro_type`, as `_shaper`."""
    if pa.types.is_struct(kind):
        return _shaper("", kind)
    only = _shaper(ONLY_FIELD, kind)
    return lambda value: {ONLY_FIELD: only(value)}


def _shaper(path: str, kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that turns fastavro's values into those of Arrow: maps become pairs, and UUIDs text.

    It raises NotDecodableError for a decimal with too many digits.
    """
    if pa.types.is_struct(kind):
        inside = f"{path}." if path else ""
        parts = [(part.name, _shaper(f"{inside}{part.name}", part.type)) for part in kind]
        return lambda value: None if value is None else {name: shape(value.get(name)) for name, shape in parts}
    if pa.types.is_list(kind):
        element = _shaper(path, kind.value_type)
        return lambda value: None if value is None else [element(part) for part in value]
    if pa.types.is_map(kind):
        of_value = _shaper(path, kind.item_type)
        return lambda value: None if value is None else [(key, of_value(part)) for key, part in value.items()]
    if pa.types.is_string(kind):
        return lambda value: None if value is None else str(value)
    if pa.types.is_decimal(kind):
        digits_max = kind.precision - kind.scale

        def checked(value: Any) -> Any:
            if value and value.adjusted() >= digits_max:
                raise NotDecodableError(f"{path}: {value} has more digits than a {type_name(kind)}")
            return value

        return checked
    return lambda value: value
