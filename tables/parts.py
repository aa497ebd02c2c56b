"""Decoding of the keys and values of a table: from what a topic's configuration says to decoders."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import pyarrow as pa

from anabranch.tables.connect_schema import parse_connect
from anabranch.tables.decoding import (
    Decoder,
    avro_decoder,
    connect_json_decoder,
    json_decoder,
    json_text_decoder,
    protobuf_decoder,
    schema_text,
)
from anabranch.tables.errors import SchemaError, UnknownSchemaError
from anabranch.tables.framing import CONFLUENTS, Framing
from anabranch.tables.json_schema import json_schema_type
from anabranch.tables.registry import RegisteredSchema, SchemaRegistry
from anabranch.tables.requests import RAW, Asked, Finding, Part, Question, Registry
from anabranch.tables.schema import decode_schema, encode_schema, evolve
from anabranch.tables.values import refuse_column

ZONE: Final = "UTC"
"""That of JSON's times without one."""


def answer(question: Question, registries: Mapping[Registry, SchemaRegistry]) -> Finding:
    """Return what a table's next shares are made with. `registries` are those of keys and values.

    Raises RegistryError if a registry does not answer, SchemaError and UnknownSchemaError.
    """

    def of(asked: Asked, before: Part | None) -> tuple[Part, pa.StructType | None]:
        registry = None if asked.registry is None else registries[asked.registry]
        part = find(asked, registry, before)
        decoder = decoder_of(part, registry)
        return part, None if decoder is None else decoder.kind

    value, value_kind = of(question.value, question.value_before)
    key, key_kind = of(question.key, question.key_before)
    found = evolve(None if question.schema is None else decode_schema(question.schema), value_kind, key_kind)
    return Finding(encode_schema(found.schema), value, key, found.added, found.promoted, found.unfit)


def find(asked: Asked, registry: SchemaRegistry | None, before: Part | None = None) -> Part:
    """Return how to decode with the newest schema. `before` was found with an earlier version.

    Raises RegistryError if the registry does not answer, SchemaError and UnknownSchemaError.
    """
    if asked.format == "raw":
        return RAW
    if asked.schema is not None:
        if asked.format == "auto":
            raise SchemaError("the format auto is that of the registry's schema: name the format of the file")
        part = Part(
            asked.format,
            asked.schema,
            framing=asked.framing or Framing.NONE,
            message=asked.message,
            encodings=asked.encodings,
        )
    elif asked.format == "json" and registry is None:
        part = Part("json")
    else:
        if registry is None:
            raise SchemaError(f"the format {asked.format} needs a schema: that of a file or of a registry")
        try:
            schema = registry.latest(asked.subject, protobuf=True)
        except UnknownSchemaError as error:
            if asked.format != "auto":
                raise
            return Part("none", reason=str(error))
        part = Part(
            _format_of(schema) if asked.format == "auto" else asked.format,
            schema,
            framing=asked.framing or Framing.CONFLUENT,
            # A version with further messages does not change which one it is.
            message=asked.message or (before.message if before is not None else None),
            registry=asked.registry,
            encodings=asked.encodings,
        )
    decoder = decoder_of(part, registry)
    assert decoder is not None, "it is not raw"
    return replace(part, message=decoder.message)


def decoder_of(part: Part, registry: SchemaRegistry | None) -> Decoder | None:
    """Return the decoder of a part; None if the bytes stay as they are. Raises SchemaError."""
    decoder = _decoder_of(part, registry)
    return None if decoder is None else replace(decoder, framing=part.framing)


def _decoder_of(part: Part, registry: SchemaRegistry | None) -> Decoder | None:
    if part.format == "raw":
        return None
    if part.format == "none":
        return Decoder(pa.struct([]), partial(refuse_column, reason=part.reason or ""))
    if part.schema is None:
        assert part.format == "json", "the only format whose values can be read without one"
        return json_text_decoder()
    framing = part.framing
    match part.format:
        case "json":
            text = schema_text(part.schema, "JSON")
            if (connect := parse_connect(text)) is not None:
                if part.encodings:
                    raise SchemaError("a schema in Kafka Connect's notation has encodings of its own: set no others")
                return connect_json_decoder(connect, ZONE, framing=framing)
            kind = json_schema_type(text)
            return json_decoder(kind, ZONE, framing=framing, encodings=part.encodings)
        case "avro":
            return avro_decoder(part.schema, registry, framing=framing)
        case "protobuf":
            if framing not in CONFLUENTS:
                raise SchemaError("messages of protobuf are found by Confluent's headers only: set another framing")
            return protobuf_decoder(part.schema, registry, framing=framing, message=part.message)


def _format_of(schema: RegisteredSchema) -> Literal["json", "avro", "protobuf"]:
    match schema.kind:
        case "JSON":
            return "json"
        case "AVRO":
            return "avro"
        case "PROTOBUF":
            return "protobuf"
    raise SchemaError(f"a schema of the unknown kind {schema.kind}")
