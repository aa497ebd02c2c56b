"""Decoders of keys and values for one version of their schema, in each format.

Each takes a binary column and returns one of `values.decoded_type`: data, or an error, or neither for null. They can be
pickled, and look up in the registry the schemas that records were written with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.avro import AvroDecoder, avro_type, parse_avro
from anabranch.tables.connect_schema import ConnectSchema, connect_decoder
from anabranch.tables.encodings import EncodedDecoder, find_encodings
from anabranch.tables.errors import NotDecodableError, SchemaError
from anabranch.tables.framing import Framing
from anabranch.tables.json_columns import JsonDecoder
from anabranch.tables.protobuf import (
    ProtobufDecoder,
    descriptor_set,
    find_message,
    find_only_message,
    message_names,
    protobuf_type,
    registered_set,
)
from anabranch.tables.registry import HEADER_BYTES, RegisteredSchema, WriterSchemas
from anabranch.tables.types import nullable
from anabranch.tables.values import DecodeValue, decode_column

NOT_UTF8: Final = "not valid UTF-8"
END: Final = 2**31 - 1
TEXT: Final = "value"
"""Name of the column of texts."""
NO_NAME: Final = "\0" * 16
"""Name of a field that nothing has."""
DecodeColumn = Callable[[pa.Array], pa.StructArray]


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decoder of one part of records."""

    kind: pa.StructType
    """Type of `data`."""
    column: DecodeColumn
    message: str | None = None
    """Protobuf: full name of the message."""
    framing: Framing = Framing.NONE
    """Place of the id of a schema; for one in a header, `column` takes what `header_ids.with_header_ids` returns."""


def schema_text(schema: RegisteredSchema | bytes, kind: str) -> str:
    """Return the text of a schema of a kind, from the registry or a file. Raises SchemaError."""
    if isinstance(schema, RegisteredSchema):
        check_kind(schema, kind)
        return schema.text
    try:
        return bytes(schema).decode()
    except UnicodeDecodeError as error:
        raise SchemaError(NOT_UTF8) from error


def check_kind(schema: RegisteredSchema | bytes, kind: str) -> None:
    """Raise SchemaError if a registered schema is of another kind."""
    if isinstance(schema, RegisteredSchema) and schema.kind != kind:
        raise SchemaError(f"the schema is {schema.kind}, but the format is {kind.lower()}")


def json_decoder(
    kind: pa.StructType, zone: str, *, framing: Framing, encodings: Mapping[str, str] | None = None
) -> Decoder:
    """Return the decoder of JSON. `zone` is that of times without one.

    `encodings` are names or patterns of fields (see `encodings`). Raises EncodingError.
    """
    kind = nullable(kind)
    found = find_encodings(encodings or {}, kind)
    decoder = EncodedDecoder(kind, zone, found) if found else JsonDecoder(kind, zone)
    return Decoder(kind, _unframed(decoder, framing))


def connect_json_decoder(schema: ConnectSchema, zone: str, *, framing: Framing) -> Decoder:
    """Return the decoder of Kafka Connect's JSON. Raises EncodingError."""
    decoder = connect_decoder(schema, zone)
    return Decoder(nullable(schema.kind), _unframed(decoder, framing))


def json_text_decoder() -> Decoder:
    """Return the decoder of JSON without a schema: objects as texts, as they were sent."""
    return Decoder(pa.struct([pa.field(TEXT, pa.string())]), _texts)


def _texts(values: pa.Array) -> pa.StructArray:
    # Any value of this field would do, and there is none.
    errors = JsonDecoder(pa.struct([pa.field(NO_NAME, pa.string())]), "UTC")(values).field("error")
    texts = pc.if_else(errors.is_null(), values, pa.scalar(None, values.type)).cast(pa.string())
    data = pa.StructArray.from_arrays([texts], names=[TEXT], mask=texts.is_null())
    return pa.StructArray.from_arrays([data, errors], names=["data", "error"])


def avro_decoder(schema: RegisteredSchema | bytes, registry: WriterSchemas | None, *, framing: Framing) -> Decoder:
    """Return the decoder of Avro. Raises SchemaError."""
    text = schema_text(schema, "AVRO")
    reader = schema if isinstance(schema, RegisteredSchema) else RegisteredSchema(-1, "AVRO", text)
    kind = avro_type(parse_avro(text, tuple(reader.references)))
    return _singly(kind, AvroDecoder(reader, registry, framing))


def protobuf_decoder(
    schema: RegisteredSchema | bytes,
    registry: WriterSchemas | None,
    *,
    framing: Framing,
    message: str | None = None,
    known: str | None = None,
) -> Decoder:
    """Return the decoder of Protobuf. Raises SchemaError.

    `known` is the message of an earlier version of the schema, which counts if no `message` is named.
    """
    check_kind(schema, "PROTOBUF")
    if isinstance(schema, RegisteredSchema):
        data, schema_id = registered_set(schema), schema.schema_id
        if known not in [name.full for name in message_names(data).values()]:
            known = None
        wanted = message or known
        descriptor = find_message(data, wanted) if wanted else find_only_message(data)
        decoder = ProtobufDecoder(data, descriptor.full_name, framing, registry, schema_id)
    else:
        data = descriptor_set(schema)
        descriptor = find_message(data, message)
        decoder = ProtobufDecoder(data, descriptor.full_name, framing)
    return _singly(protobuf_type(descriptor), decoder, descriptor.full_name)


def _singly(kind: pa.StructType, decode: DecodeValue, message: str | None = None) -> Decoder:
    kind = nullable(kind)
    return Decoder(kind, partial(decode_column, decode=decode, data_type=kind), message)


def _unframed(decode: DecodeColumn, framing: Framing) -> DecodeColumn:
    """Return a decoder of values with the id of a schema before them."""
    if framing is Framing.NONE:
        return decode
    if framing is Framing.CONFLUENT:
        return partial(_after_header, decode)
    return partial(_after_frame, decode, framing)


def _after_frame(decode: DecodeColumn, framing: Framing, values: pa.Array) -> pa.StructArray:
    """Decode what follows the id of a schema. A value without one has the error of `Framing.unframe`."""
    bodies: list[bytes | None] = values.to_pylist()
    errors: dict[int, str] = {}
    for at, value in enumerate(bodies):
        if value is not None:
            try:
                bodies[at] = framing.unframe(value)[1]
            except NotDecodableError as error:
                bodies[at], errors[at] = None, str(error)
    return _with_errors(decode(pa.array(bodies, values.type)), errors)


def _after_header(decode: DecodeColumn, values: pa.Array) -> pa.StructArray:
    """Do the same for Confluent's header, for many values at once."""
    is_headed = np.asarray(pc.fill_null(pc.greater_equal(pc.binary_length(values), HEADER_BYTES), False))
    is_headed = is_headed & np.asarray(pc.fill_null(pc.starts_with(values, b"\0"), False))
    others = np.flatnonzero(~is_headed & values.is_valid().to_numpy(zero_copy_only=False))
    # Without an end, Arrow miscounts the bytes of values of several lengths.
    bodies = pc.binary_slice(values, HEADER_BYTES, END)
    if not len(others):
        return decode(bodies)
    decoded = decode(pc.if_else(pa.array(is_headed), bodies, pa.scalar(None, bodies.type)))
    errors: dict[int, str] = {}
    for at in others.tolist():
        try:
            Framing.CONFLUENT.unframe(values[at].as_py())
        except NotDecodableError as error:
            errors[at] = str(error)
    return _with_errors(decoded, errors)


def _with_errors(decoded: pa.StructArray, errors: Mapping[int, str]) -> pa.StructArray:
    if not errors:
        return decoded
    found = decoded.field("error").to_pylist()
    for at, error in errors.items():
        found[at] = error
    return pa.StructArray.from_arrays([decoded.field("data"), pa.array(found, pa.string())], names=["data", "error"])
