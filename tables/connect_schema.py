"""Kafka Connect's JSON: a schema in its notation as the type of columns, and values that carry theirs.

With `schemas.enable=true` Connect's JsonConverter writes each value as `{"schema": ..., "payload": ...}`. The schema
says what a number or a text stands for (`encodings`). A value whose own schema says something else than the file is
converted by its own, or has an error: a producer's change from milliseconds to microseconds does not pass unseen.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.encodings import (
    DATES,
    DECIMAL,
    EPOCHS,
    TIMES_OF_DAY,
    ZONED,
    EncodedDecoder,
    Encoding,
    EncodingError,
    Encodings,
    Unscaled,
    convert,
    encoding_of,
    transported,
    type_at,
)
from anabranch.tables.errors import NotDecodableError, SchemaError
from anabranch.tables.json_columns import JsonDecoder
from anabranch.tables.json_values import json_reader
from anabranch.tables.types import DECIMAL_DIGITS_MAX, LOCAL_TIMESTAMP, TIMESTAMP, list_of, map_of
from anabranch.tables.values import ERROR_CHARS_MAX, decode_column, decoded_type

PLAIN: Final[Mapping[str, pa.DataType]] = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "boolean": pa.bool_(), "string": pa.string(), "bytes": pa.binary(),
}  # fmt: skip
PRECISION: Final = "connect.decimal.precision"
"""Parameter of a decimal that Debezium and others add: Connect's own has a scale only."""
SCHEMAS_KEPT: Final = 100
SCHEMA, PAYLOAD = "schema", "payload"
_JSON: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class ConnectSchema:
    """Columns of a schema in Connect's notation."""

    kind: pa.StructType
    logical: Mapping[str, str]
    """Names of logical types that have an encoding, by path."""
    scales: Mapping[str, int]
    """Scales of decimals, by path."""
    is_wrapped: bool = False
    """True if values are `{"schema": ..., "payload": ...}`."""

    @property
    def encodings(self) -> dict[str, Encoding]:
        """Encodings of the fields, by path. Raises EncodingError."""
        found = {path: encoding_of(name, type_at(path, self.kind), path) for path, name in self.logical.items()}
        return {path: each for path, each in found.items() if each is not None}


def parse_connect(text: str) -> ConnectSchema | None:
    """Return a schema in Connect's notation, or that of a whole value; None for a text of another kind.

    Raises SchemaError for what has no column.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    is_wrapped = isinstance(values.get(SCHEMA), dict)
    schema = values[SCHEMA] if is_wrapped else values
    fields = schema.get("fields")
    if schema.get("type") != "struct" or not isinstance(fields, list):
        return None
    if not all(isinstance(each, dict) and "field" in each for each in fields):
        return None
    logical: dict[str, str] = {}
    scales: dict[str, int] = {}
    try:
        kind = _type_of(schema, "", logical, scales)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"not a schema of Kafka Connect: {type(error).__name__}: {error}") from error
    return ConnectSchema(kind, logical, scales, is_wrapped)


def _type_of(schema: Mapping[str, Any], path: str, logical: dict[str, str], scales: dict[str, int]) -> pa.DataType:
    kind, name = schema["type"], str(schema.get("name"))
    if kind == "struct":
        before = f"{path}." if path else ""
        parts = [
            (each["field"], _type_of(each, f"{before}{each['field']}", logical, scales)) for each in schema["fields"]
        ]
        return pa.struct(parts)
    if kind == "array":
        return list_of(_type_of(schema["items"], path, logical, scales))
    if kind == "map":
        if schema["keys"]["type"] != "string":
            raise SchemaError(f"{path}: a map with keys of type {schema['keys']['type']} has no column")
        return map_of(pa.string(), _type_of(schema["values"], path, logical, scales))
    if kind not in PLAIN:
        raise SchemaError(f"{path}: Kafka Connect has no type {kind}")
    column = PLAIN[kind]
    if name in EPOCHS:
        column = TIMESTAMP if name.startswith("org.") else LOCAL_TIMESTAMP
    elif name in DATES:
        column = pa.date32()
    elif name in TIMES_OF_DAY:
        column = pa.string()
    elif name == ZONED:
        column = TIMESTAMP
    elif name == DECIMAL:
        parameters = schema.get("parameters") or {}
        scales[path] = int(parameters["scale"])
        precision = int(parameters.get(PRECISION, DECIMAL_DIGITS_MAX))
        if not 0 <= scales[path] <= precision <= DECIMAL_DIGITS_MAX:
            raise SchemaError(f"{path}: a decimal of {precision} digits with scale {scales[path]} has no column")
        column = pa.decimal128(precision, scales[path])
    else:
        return column
    logical[path] = name
    return column


@dataclass(frozen=True, slots=True)
class WrappedDecoder:
    """Decoder of values with their schema beside them, into the fields of the payload. It can be pickled."""

    schema: ConnectSchema
    zone: str
    encodings: Encodings = field(init=False)

    def __post_init__(self) -> None:
        """Raise EncodingError for a type that cannot be converted."""
        object.__setattr__(self, "encodings", self.schema.encodings)

    def __call__(self, texts: pa.Array) -> pa.StructArray:
        """Return a column of `values.decoded_type` from a binary column."""
        parts, places = [], []
        slow: list[int] = []
        left = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        while len(left):
            some = texts.take(pa.array(left))
            first = _beginning_of(some[0].as_py())
            is_alike = np.zeros(len(left), np.bool_)
            if first is not None:
                is_alike = np.asarray(pc.and_(pc.starts_with(some, first), pc.ends_with(some, b"}")))
            if not is_alike[0]:
                slow.append(left[0])
                left = left[1:]
                continue
            assert first is not None, "or none is alike"
            decoded = self._payloads(some.filter(pa.array(is_alike)), first)
            is_good = decoded.field("error").is_null()
            rows, good = left[is_alike], np.asarray(is_good)
            parts.append(self._converted(decoded.filter(is_good), first[len(_BEFORE) : -len(_BETWEEN)].decode()))
            places.append(rows[good])
            slow += rows[~good].tolist()
            left = left[~is_alike]
        places.append(np.concatenate([np.array(slow, np.int64), np.flatnonzero(np.asarray(texts.is_null()))]))
        parts.append(self._by_whole(texts.take(pa.array(places[-1]))))
        order = np.empty(len(texts), np.int64)
        order[np.concatenate(places)] = np.arange(len(texts))
        return pa.concat_arrays(parts).take(pa.array(order))

    def _payloads(self, texts: pa.Array, first: bytes) -> pa.StructArray:
        """Return the column of payloads that have the same before them."""
        bodies = pc.binary_slice(texts, len(first), -1)
        bodies = pc.if_else(pc.equal(bodies, b"null"), pa.scalar(None, bodies.type), bodies)
        return JsonDecoder(transported(self.schema.kind, self.encodings), self.zone)(bodies)

    def _by_whole(self, texts: pa.Array) -> pa.StructArray:
        """Return the column for values that are not written as Connect does it, or are not of the schema."""
        kind = pa.struct([(SCHEMA, pa.string()), (PAYLOAD, transported(self.schema.kind, self.encodings))])
        read = json_reader(kind, self.zone)

        def decode(text: bytes) -> Any:
            try:
                whole = read(text)
            except NotDecodableError as error:
                # Fields are named as in the table.
                raise NotDecodableError(str(error).removeprefix(f"{PAYLOAD}.")) from None
            if whole[SCHEMA] is None and whole[PAYLOAD] is not None:
                raise NotDecodableError(f"{SCHEMA}: missing beside the {PAYLOAD}, which the schema file has it with")
            return whole

        found = [self._converted(pa.nulls(0, decoded_type(kind.field(1).type)), None)]
        for text in texts:
            whole = decode_column([text], decode, kind)
            schemas, payloads = whole.field("data").flatten()
            decoded = pa.StructArray.from_arrays([payloads, whole.field("error")], names=["data", "error"])
            found.append(self._converted(decoded, schemas[0].as_py()))
        return pa.concat_arrays(found)

    def _converted(self, decoded: pa.StructArray, schema: str | None) -> pa.StructArray:
        """Return payloads, converted by their own schema."""
        encodings, reason = (self.encodings, None) if schema is None else self._of(schema)
        if reason is not None:
            data, errors = decoded.flatten()
            is_there = pc.or_(data.is_valid(), errors.is_valid())
            wrong = pc.if_else(is_there, pa.scalar(reason[:ERROR_CHARS_MAX]), pa.scalar(None, pa.string()))
            decoded = pa.StructArray.from_arrays([pa.nulls(len(data), data.type), wrong], names=["data", "error"])
        return convert(decoded, self.schema.kind, encodings, self.zone)

    def _of(self, text: str) -> tuple[Encodings, str | None]:
        """Return how values with a schema are converted, or why they are not."""
        found = _parsed(text)
        if isinstance(found, str):
            return self.encodings, found
        encodings = dict(self.encodings)
        for path in {*self.schema.logical, *found.logical}:
            name = found.logical.get(path)
            if name == self.schema.logical.get(path) and found.scales.get(path) == self.schema.scales.get(path):
                continue
            if (reason := self._change(path, name, found, encodings)) is not None:
                return encodings, f"{path}: {reason}"
        return encodings, None

    def _change(self, path: str, name: str | None, found: ConnectSchema, encodings: dict[str, Encoding]) -> str | None:
        """Let a field be converted by a value's own schema; return why it can't."""
        try:
            kind = type_at(path, self.schema.kind)
            type_at(path, found.kind)
        except EncodingError:
            return None  # one of both does not have the field
        usual = self.schema.logical.get(path) or "no logical type"
        other = f"the value's schema says {name or 'no logical type'}, and the file {usual}"
        if name is None:
            return other
        try:
            encoding = encoding_of(name, kind, path)
        except EncodingError:
            return other
        if isinstance(encoding, Unscaled):
            encoding = Unscaled(encoding.kind, found.scales[path])
        before = encodings.get(path)
        if encoding is None or before is None or encoding.transport != before.transport:
            return other
        encodings[path] = encoding
        return None


_BEFORE, _BETWEEN = b'{"schema":', b',"payload":'


def _beginning_of(value: bytes) -> bytes | None:
    """Return what comes before a payload, up to its first character, in a value as Connect writes it.

    What follows is the payload if it is one value of JSON and a closing brace.
    """
    if not value.startswith(_BEFORE):
        return None
    try:
        text = value.decode()
        _, end = _JSON.raw_decode(text, len(_BEFORE))
    except (ValueError, RecursionError):
        return None
    first = text[:end].encode() + _BETWEEN
    return first if value.startswith(first) else None


@lru_cache(SCHEMAS_KEPT)
def _parsed(text: str) -> ConnectSchema | str:
    """Return a schema, or why it is none."""
    try:
        found = parse_connect(text)
    except SchemaError as error:
        return f"{SCHEMA}: {error}"
    return found if found is not None else f"{SCHEMA}: not that of a struct in Kafka Connect's notation"


def connect_decoder(schema: ConnectSchema, zone: str) -> WrappedDecoder | EncodedDecoder:
    """Return the decoder of values. Raises EncodingError."""
    if schema.is_wrapped:
        return WrappedDecoder(schema, zone)
    return EncodedDecoder(schema.kind, zone, schema.encodings)
